"""Folders of runs as earlier versions left them."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ccfcpp.engine.checkpoint import load_checkpoint
from tests.support.command import ccfcpp, succeeded
from tests.support.reports import report

SHORT = (
    "cluster", "--method", "sda-fc-km", "--clients", 2, "--set", "data.images=60",
    "--set", "gan.epochs=2", "--set", "gan.generator_width=8",
    "--set", "gan.generator_channels=[4,4]", "--set", "gan.discriminator_channels=[4,4]",
    "--set", "gan.discriminator_width=8",
)  # fmt: skip


OPTIONS_OF_ONCE = {"heads": (1, 2), "views_first": (0, 5), "shares": (None, [2.0, 1.0])}
"""Removed options of Fed-SCAN: the default, and another value."""


def renamed(path: Path, new: str, old: str) -> None:
    """Write a file of tensors as it was when some of them had another name."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    assert any(name.startswith(new) for name in tensors)
    changed = {name.replace(new, old, 1): tensor for name, tensor in tensors.items()}
    save_file(changed, path, metadata=header)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A finished run of SDA-FC from the time when its synthetic images were called samples."""
    run = tmp_path / "run"
    succeeded(*SHORT, "--out", run)
    renamed(run / "checkpoint" / "latest.safetensors", "images/", "samples/")
    return run


def test_its_images_are_kept_when_it_is_resumed(older: Path) -> None:
    before = load_file(older / "model.safetensors")
    succeeded("cluster", "--out", older, "--resume")
    after = load_file(older / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(after[name].equal(before[name]) for name in before)


def test_it_has_a_report(older: Path) -> None:
    assert "confusion" in report(older)["figures"]


def test_a_run_from_before_absent_clients_were_scored_apart(tmp_path: Path) -> None:
    """Nor was there a Dirichlet partition for clustering, nor an imbalance."""
    run = tmp_path / "run"
    settings = ("--method", "km", "--clients", 4, "--disconnection-rate", 0.5)
    succeeded("cluster", *settings, "--out", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["partition"]["alpha"], config["partition"]["min_samples"]
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


def test_a_state_of_another_version_is_one_line(older: Path) -> None:
    renamed(older / "checkpoint" / "latest.safetensors", "samples/", "pictures/")
    result = ccfcpp("cluster", "--out", older, "--resume")
    assert result.code == 2
    assert "PooledState has no 'pictures/" in result.stderr
    assert "is of another version of ccfcpp" in result.stderr


def test_a_run_with_options_that_were_removed_goes_on_where_they_had_their_defaults(
    tmp_path: Path,
) -> None:
    """Its clusters had a row for each of several heads, which was one."""
    from ccfcpp.clustering.config import ClusterConfig
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.core.errors import StoppedError
    from ccfcpp.engine.checkpoint import save_checkpoint
    from ccfcpp.runs.folder import RunFolder

    tiny = ("scan.steps=4", "scan.steps_per_round=2", "data.images=60", "scan.overclustering=1")
    settings = [part for each in tiny for part in ("--set", each)]
    begun = ("cluster", "--method", "fed-scan", "--clients", 2)
    succeeded(*begun, *settings, "--out", tmp_path / "whole")
    config = RunFolder(tmp_path / "whole").saved_config(ClusterConfig)
    folder = RunFolder.create(tmp_path / "parts", config)
    experiment = ClusteringExperiment(config)
    with pytest.raises(StoppedError):
        experiment.run(folder, should_stop=lambda: True)
    kept = load_checkpoint(folder.checkpoint, experiment.algorithm.state_type, experiment.device)
    older_state = dataclasses.replace(kept.state, groups=kept.state.groups.unsqueeze(0))
    save_checkpoint(folder.checkpoint, dataclasses.replace(kept, state=older_state))
    tree = yaml.safe_load(folder.config.read_text())
    for key, (_, other) in OPTIONS_OF_ONCE.items():
        folder.config.write_text(yaml.safe_dump(tree | {"scan": tree["scan"] | {key: other}}))
        result = ccfcpp("cluster", "--out", folder.path, "--resume")
        assert result.code == 2
        assert f"scan.{key} = {other} is refused" in result.stderr
    defaults = {key: default for key, (default, _) in OPTIONS_OF_ONCE.items()}
    folder.config.write_text(yaml.safe_dump(tree | {"scan": tree["scan"] | defaults}))
    succeeded("cluster", "--out", folder.path, "--resume")
    whole, found = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert all(found[name].flatten().equal(whole[name].flatten()) for name in whole)


def test_memories_by_their_older_names_are_taken_up(tmp_path: Path) -> None:
    """They were named by the round of their checkpoint."""
    from ccfcpp.clustering.config import ClusterConfig
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.core.errors import StoppedError
    from ccfcpp.engine.checkpoint import save_checkpoint
    from ccfcpp.runs.folder import RunFolder

    succeeded(*SHORT, "--out", tmp_path / "whole")
    config = RunFolder(tmp_path / "whole").saved_config(ClusterConfig)
    folder = RunFolder.create(tmp_path / "parts", config)
    experiment = ClusteringExperiment(config)
    with pytest.raises(StoppedError):
        experiment.run(folder, should_stop=lambda: True)
    kept = load_checkpoint(folder.checkpoint, experiment.algorithm.state_type, experiment.device)
    assert kept.memories
    for client, name in kept.memories.items():
        older_name = f"client-{client}-round-0.safetensors"
        shutil.move(folder.checkpoint.parent / name, folder.checkpoint.parent / older_name)
        kept.memories[client] = older_name
    save_checkpoint(folder.checkpoint, kept)
    succeeded("cluster", "--out", folder.path, "--resume")
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert folder.model.read_bytes() == whole
