"""``ccfcpp.run`` does what ``ccfcpp cluster`` does."""

import json
from pathlib import Path

import pytest

import ccfcpp
from ccfcpp.core.errors import UsageError
from tests.support import command


def test_it_is_the_command(tmp_path: Path) -> None:
    settings = {"method": "k-fed", "partition": {"p": 0.5}, "partition.clients": 4, "seed": 2}
    summary = ccfcpp.run(settings, out=tmp_path / "python")
    flags = ("--method", "k-fed", "--p", 0.5, "--clients", 4, "--seed", 2)
    shown = command.succeeded("cluster", *flags, "--json", "--out", tmp_path / "command").stdout
    times = {"seconds": None, "out": None}
    assert json.loads(shown) | times == summary | times
    files = [(tmp_path / place / "model.safetensors") for place in ("python", "command")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_takes_the_presets_of_the_command(tmp_path: Path) -> None:
    few = {"training": {"rounds": 1, "pretrain_rounds": 1}, "data.images": 60}
    summary = ccfcpp.run({"preset": "published", **few}, out=tmp_path / "published")
    assert (summary["method"], summary["rounds"]) == ("ccfc++", 2)
    with pytest.raises(UsageError, match=r"training\..*rounds = 1 has no effect on fed-scan"):
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
        ({"preset": "paper"}, "preset = paper is refused: it should be 'default' or 'published'"),
    ):
        with pytest.raises(UsageError, match=complaint):
            ccfcpp.run(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
