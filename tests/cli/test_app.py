"""What the program says of itself."""

import io
import sys

import pytest
import torch

from ccfcpp.cli import app as command_line
from ccfcpp.cli.app import main
from tests.support.command import ccfcpp, succeeded


def test_alone_it_prints_its_help_with_examples() -> None:
    result = succeeded()
    assert result.stderr == ""
    assert result.stdout == ccfcpp("--help").stdout
    for command in ("cluster --p", "cluster --dataset", "report runs/"):
        assert f"ccfcpp {command}" in result.stdout


def test_help_says_what_arguments_are() -> None:
    assert "A run's model.safetensors, or the run's folder." in ccfcpp("predict", "--help").stdout


@pytest.mark.parametrize(
    "command",
    ["cluster", "classify", "compare", "datasets", "predict", "presets", "report", "reproduce"],
)
def test_flags_without_a_value_show_no_type(command: str) -> None:
    assert "bool" not in succeeded(command, "--help").stdout.lower()


def test_letters_that_a_terminal_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "argv", ["ccfcpp", "--version"])
    with pytest.raises(SystemExit):
        main()
    print("caf\u00e9 \udcf4")
    terminal.flush()
    assert terminal.buffer.getvalue().endswith(b"caf? ?\n")


def test_memory_that_is_not_there_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def allocate(command: object) -> None:
        torch.empty(1 << 58, dtype=torch.float64)

    monkeypatch.setattr(command_line, "_in_first_process", allocate)
    with pytest.raises(SystemExit, match="1"):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory (can't allocate memory: you tried to allocate")
    assert line.endswith("lower --cohort, or give a smaller batch or network")
