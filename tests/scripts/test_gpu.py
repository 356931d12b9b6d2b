"""The script for a GPU: long runs that stop at a deadline, and the commands that it knows."""

from pathlib import Path

import pytest

from scripts.gpu import RUNS, run_until
from tests.support.command import ccfcpp


def test_a_long_run_stops_at_its_deadline_and_goes_on(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    few = ["--preset", "published", "--pretrain-rounds", "2", "--rounds", "1"]
    few += ["--set", "data.images=160"]
    stopped = run_until(0.0, ["cluster", "--dataset", "digits", *few, *out])
    assert stopped.startswith("stopped with exit code")
    again = ["--resume"] if (tmp_path / "run" / "config.yaml").exists() else few
    assert run_until(300.0, ["cluster", *again, *out]) == "ended with exit code 0"


@pytest.mark.parametrize("name", RUNS)
def test_every_long_run_is_a_command(name: str, tmp_path: Path) -> None:
    """Refused for one reason alone: there are no such images."""
    missing = ["--dataset", str(tmp_path / "nowhere"), "--set", "data.root=null"]
    result = ccfcpp(*RUNS[name], *missing)
    assert result.code == 2
    assert "nowhere" in result.stderr
