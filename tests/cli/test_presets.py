"""The list of presets, and one of them by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from ccfcpp import load_model
from ccfcpp.core.presets import preset_file, preset_names
from tests.support import originals
from tests.support.command import refused, set_options, succeeded

FEW_STEPS = set_options(
    *("crops.steps=2", "crops.steps_per_round=1", "crops.batch=4", "crops.each=2"),
    *("crops.widths=[8,8]", "means.rounds=2"),
)


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
    assert f"did you mean '{nearest}'?" in refused(*arguments)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10"])
def test_colour_photos_are_for_fed_emp_and_those_of_stl10_become_smaller(
    name: str, tmp_path: Path
) -> None:
    side, labels = 96 if name == "stl10" else 32, np.arange(60, dtype=np.uint8) % 10
    images = originals.random_images(0, 60, 3, side, side)
    if name == "stl10":
        files = originals.stl10(images, labels, 20)
        originals.write_tar_gz(tmp_path / "stl10_binary.tar.gz", "stl10_binary", files)
    elif name == "cifar10":
        files = originals.cifar10(images, labels.tolist())
        originals.write_tar_gz(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    else:
        files = originals.cifar100(images, labels.tolist(), 50)
        originals.write_tar_gz(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", files)
    given = ("--p", 0.5, "--clients", 3, "--clusters", 5, "--data-root", tmp_path, *FEW_STEPS)
    told = succeeded("cluster", "--dataset", name, *given, "--out", tmp_path / "run", "--json")
    summary = json.loads(told.stdout)
    assert (summary["method"], summary["samples"]) == ("fed-emp", 60)
    assert load_model(tmp_path / "run").image_shape == (3, 32, 32)
