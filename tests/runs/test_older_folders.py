"""Folders of runs as earlier versions left them."""

import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import save_file

from ccfcpp.core.files import read_tensors
from tests.support.command import ccfcpp, report, succeeded

SHORT = (
    "cluster", "--method", "sda-fc-km", "--clients", 2, "--set", "data.images=60",
    "--set", "gan.epochs=2", "--set", "gan.generator_width=8",
    "--set", "gan.generator_channels=[4,4]", "--set", "gan.discriminator_channels=[4,4]",
    "--set", "gan.discriminator_width=8",
)  # fmt: skip


def renamed(path: Path, new: str, old: str) -> None:
    """Write a file of tensors as it was when some of them had another name."""
    tensors, header = read_tensors(path)
    assert any(name.startswith(new) for name in tensors)
    changed = {name.replace(new, old, 1): tensor for name, tensor in tensors.items()}
    save_file(changed, path, metadata=header)


@pytest.mark.usefixtures("unrendered")
def test_a_run_from_before_absent_clients_were_scored_apart(tmp_path: Path) -> None:
    """Its settings held what did not count for it, and no imbalance."""
    run = tmp_path / "run"
    few = ("--set", "data.images=150")
    settings = ("--method", "km", "--clients", 4, "--disconnection-rate", 0.5, *few)
    succeeded("cluster", *settings, "--out", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["partition"]["kind"] == "skew"
    config["partition"] |= {"alpha": 0.5, "classes_per_client": 2, "min_samples": 10}
    del config["data"]["imbalance"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    whole = json.loads((run / "summary.json").read_text())
    new = ("alpha", "imbalance", "scores_connected", "scores_absent")
    older_summary = {key: value for key, value in whole.items() if key not in new}
    assert len(older_summary) == len(whole) - len(new)
    (run / "summary.json").write_text(json.dumps(older_summary))
    assert "confusion" in report(run)["figures"]
    shown = (run / "report.html").read_text()
    assert "<dt>NMI</dt>" in shown
    assert ", absent clients" not in shown
    result = succeeded("cluster", *settings, "--out", run, "--resume")
    assert "absent clients" in result.stdout
    assert json.loads((run / "summary.json").read_text()) == whole


def test_a_state_of_another_version_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeeded(*SHORT, "--out", run)
    renamed(run / "checkpoint" / "latest.safetensors", "images/", "pictures/")
    result = ccfcpp("cluster", "--out", run, "--resume")
    assert result.code == 2
    assert "PooledState has no 'pictures/" in result.stderr
    assert "is of another version of ccfcpp" in result.stderr
