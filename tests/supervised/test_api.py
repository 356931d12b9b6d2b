"""``supervised.run`` does what ``ccfcpp classify`` does."""

import json
from pathlib import Path

import pytest

import supervised
from ccfcpp.core.errors import UsageError
from tests.support import command

SMALL = {
    "training": {"rounds": 2, "local_epochs": 1},
    "model": {"widths": [4], "representation": 6},
    "data.train_images": 150,
    "data.test_images": 60,
    "partition.clients": 3,
}


def test_it_is_the_command(tmp_path: Path) -> None:
    summary = supervised.run({**SMALL, "method": "moon", "seed": 2}, out=tmp_path / "python")
    flags = ("--method", "moon", "--seed", 2, "--rounds", 2, "--local-epochs", 1, "--clients", 3)
    few = command.set_options(
        "model.widths=[4]", "model.representation=6", "data.train_images=150", "data.test_images=60"
    )
    out = tmp_path / "command"
    shown = command.succeeded("classify", *flags, *few, "--json", "--out", out).stdout
    times = {"seconds": None, "out": None}
    assert json.loads(shown) | times == summary | times
    files = [(tmp_path / place / "model.safetensors") for place in ("python", "command")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_goes_on_with_a_run(tmp_path: Path) -> None:
    supervised.run(SMALL, out=tmp_path / "run")
    again = supervised.run(out=tmp_path / "run", resume=True)
    assert again == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_bad_settings_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    for settings, complaint in (
        ({"moon.muu": 1}, "did you mean 'moon.mu'"),
        ({"moon.mu": 1}, "moon.mu = 1 has no effect on fedavg"),
        ({"method": "moon", "moon": {"mu": 0, "temperature": 0.5}}, "it needs moon.mu other"),
        ({"method": "fedavgm", "fedavgm": {"momentum": 0, "dampening": "none"}}, "needs fedavgm"),
        ({"partition.alpha": 0}, "partition.alpha = 0"),
    ):
        with pytest.raises(UsageError, match=complaint):
            supervised.run(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
