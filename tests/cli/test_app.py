"""What the program says of itself."""

import io
import sys

import pytest

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
