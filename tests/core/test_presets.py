"""The presets that are shipped, by name."""

from pathlib import Path

import pytest

from ccfcpp.core.config_layers import read_configs, read_yaml
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import (
    ITEMS_OF_PAPERS,
    find_preset,
    preset_file,
    preset_folder,
    preset_names,
    summary,
)


def test_every_preset_has_a_name_and_a_line() -> None:
    names = preset_names()
    files = set(preset_folder().rglob("*.yaml"))
    files -= set((preset_folder() / ITEMS_OF_PAPERS).iterdir())
    assert len(names) == len(set(names)) == len(files)
    assert names[0] == "cluster/cifar10"
    assert {"cluster/published/mnist", "classify/digits", "feddecorr/table1"} < set(names)
    for name in names:
        assert preset_file(name).is_file()
        said = summary(name)
        assert 10 < len(said) < 200, name
        assert said.count("(") == said.count(")"), name


@pytest.mark.parametrize(
    ("name", "groups", "found"),
    [
        ("feddecorr/table1", (), "feddecorr/table1"),
        ("table1", (), "feddecorr/table1"),
        ("cifar10", ("cluster",), "cluster/cifar10"),
        ("cifar10", ("classify", "feddecorr"), "classify/cifar10"),
        ("table4", ("classify", "feddecorr"), "feddecorr/table4"),
        ("mnist-two-cores", ("compare", "cluster"), "compare/mnist-two-cores"),
        ("digits", ("compare", "cluster"), "cluster/digits"),
    ],
)
def test_a_short_name_is_enough(name: str, groups: tuple[str, ...], found: str) -> None:
    assert find_preset(name, groups) == found


@pytest.mark.parametrize(
    ("name", "groups", "nearest"),
    [
        ("cifar1", ("cluster",), "cluster/cifar10"),
        ("cifar1", ("classify",), "classify/cifar10"),
        ("feddecorr/tabel9", (), "feddecorr/table"),
        ("fashion_mnist.yaml", ("classify",), "classify/fashion-mnist"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(
    name: str, groups: tuple[str, ...], nearest: str
) -> None:
    with pytest.raises(UsageError, match=f"no preset '{name}': did you mean '{nearest}") as caught:
        find_preset(name, groups)
    assert "\n" not in str(caught.value)


def test_a_name_that_several_kinds_of_command_have_must_be_whole() -> None:
    with pytest.raises(UsageError, match=r"'mnist' may be cluster/mnist or .* give its whole name"):
        find_preset("mnist")


def test_a_file_beats_a_preset_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10").mkdir()
    preset = read_yaml(preset_file("cluster/cifar10"))
    assert read_configs([Path("cifar10")], ("cluster",)) == [preset]
    (tmp_path / "digits").write_text("seed: 3\n")
    assert read_configs([Path("digits")], ("cluster",)) == [{"seed": 3}]


def test_what_is_neither_a_file_nor_a_preset_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^there is no file and no preset 'cifar11'"):
        read_configs([Path("cifar11")], ("cluster",))
