"""What the program says of itself."""

import pytest

from tests.support.command import ccfcpp


def test_alone_it_prints_its_help_with_examples() -> None:
    result = ccfcpp()
    assert result.code == 0
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
    shown = ccfcpp(command, "--help")
    assert shown.code == 0
    assert "bool" not in shown.stdout.lower()
