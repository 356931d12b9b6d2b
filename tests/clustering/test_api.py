"""``ccfcpp.run`` does what ``ccfcpp cluster`` does."""

import json
from pathlib import Path

import numpy as np
import pytest

import ccfcpp
from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.core.config_layers import unflatten
from ccfcpp.core.errors import UsageError
from tests.support import command
from tests.support.clustering import digits


def test_it_is_the_command(tmp_path: Path) -> None:
    settings = {"method": "k-fed", "partition": {"p": 0.5}, "partition.clients": 4, "seed": 2}
    summary = ccfcpp.run(settings, out=tmp_path / "python")
    flags = ("--method", "k-fed", "--p", 0.5, "--clients", 4, "--seed", 2)
    shown = command.succeeded("cluster", *flags, "--json", "--out", tmp_path / "command").stdout
    found = json.loads(shown)
    for each in (found, summary):
        each |= {"seconds": None, "out": None, "epilogue": each["epilogue"] | {"seconds": None}}
    assert found == summary
    files = [(tmp_path / place / "model.safetensors") for place in ("python", "command")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_takes_the_presets_of_the_command(tmp_path: Path) -> None:
    few = {"training": {"rounds": 1, "pretrain_rounds": 1}, "data.images": 60}
    summary = ccfcpp.run({"preset": "published", **few}, out=tmp_path / "published")
    assert (summary["method"], summary["rounds"]) == ("ccfc++", 2)
    with pytest.raises(UsageError, match=r"pretrain_rounds = 1 has no effect: it needs"):
        ccfcpp.run(few, out=tmp_path / "default")


def test_it_goes_on_with_a_run(tmp_path: Path) -> None:
    ccfcpp.run({"method": "k-fed", "partition.clients": 3}, out=tmp_path / "run")
    again = ccfcpp.run(out=tmp_path / "run", resume=True)
    assert again == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_bad_settings_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    for settings, complaint in (
        ({"loss.lamda": 1}, "did you mean 'loss.lam'"),
        ({"method": "km", "loss.eta": 1}, "no effect on km"),
        ({"partition.p": 2}, "partition.p = 2"),
        (
            {"preset": "paper"},
            "preset = paper is refused: it should be 'default', 'published', 'fast' or 'best'",
        ),
    ):
        with pytest.raises(UsageError, match=complaint):
            ccfcpp.run(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_setting_may_count_by_what_the_images_ask_for(tmp_path: Path) -> None:
    """Before they are read nothing is refused that may count; with them, what does not count."""
    shown = (digits()[0][:40].numpy()[:, 0] * 10).clip(0, 255)
    few = {"dataset": str(tmp_path / "few.npz"), "clusters": 3, "partition.clients": 2}
    np.savez(tmp_path / "few.npz", images=shown)
    opened = CLUSTERING.open([unflatten(few | {"scan.exact_steps": 2})], tmp_path / "run")
    with pytest.raises(UsageError, match="has no effect: it needs") as refused:
        CLUSTERING.start(opened)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"loss.eta = 3 has no effect on fed-scan"):
        CLUSTERING.open([unflatten(few | {"loss.eta": 3})], tmp_path / "other")
