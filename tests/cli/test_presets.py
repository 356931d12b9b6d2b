"""The list of presets, and one of them by name."""

import pytest

from ccfcpp.core.presets import preset_file, preset_names
from tests.support.command import ccfcpp, succeeded


def test_they_are_listed_with_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = succeeded("presets").stdout
    for name in preset_names():
        assert f"{name} " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_one_of_them_is_printed_as_it_is() -> None:
    for name in ("feddecorr/table1", "table1"):
        assert succeeded("presets", name).stdout == preset_file("feddecorr/table1").read_text()


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("presets", "cifar1"), "cluster/cifar10"),
        (("cluster", "--config", "cifar1"), "cluster/cifar10"),
        (("classify", "--config", "cifar1"), "classify/cifar10"),
        (("compare", "--config", "mnist-two-core"), "compare/mnist-two-cores"),
    ],
)
def test_an_unknown_one_is_one_line_with_the_nearest(
    arguments: tuple[str, ...], nearest: str
) -> None:
    result = ccfcpp(*arguments)
    assert (result.code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert f"did you mean '{nearest}'?" in line
