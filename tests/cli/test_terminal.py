"""What commands share: flags as a tree, errors of files, and how to go on."""

from pathlib import Path

import pytest
import typer
from rich.console import Console

from ccfcpp.cli.terminal import given, resumable, resume_command, usage_errors, user_layers
from ccfcpp.core.errors import StoppedError, UsageError


def test_flags_that_were_given_become_a_tree() -> None:
    assert given({"a.b": "1", "a.c": None, "d": "x"}) == {"a": {"b": "1"}, "d": "x"}


def test_single_settings_lie_over_flags_and_flags_over_files(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("seed: 1\n")
    files, values = user_layers([file], {"seed": "2", "partition.p": "0.5"}, ["seed=3"])
    assert files == [{"seed": 1}]
    assert values == {"seed": 3, "partition": {"p": "0.5"}}


def test_a_file_that_cannot_be_used_is_the_users_to_mend() -> None:
    with pytest.raises(UsageError, match="/nowhere/x cannot be used"), usage_errors():
        Path("/nowhere/x").read_bytes()


def test_the_command_to_go_on_by_can_be_pasted() -> None:
    assert resume_command("cluster", Path("a b")) == "ccfcpp cluster --out 'a b' --resume"


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
def test_a_stop_says_how_to_go_on(error: type[BaseException]) -> None:
    console = Console(record=True, width=200)
    with pytest.raises(typer.Exit) as stopped, resumable("ccfcpp go-on", console):
        raise error
    assert stopped.value.exit_code == 130
    assert "stopped; go on with: ccfcpp go-on" in console.export_text()
