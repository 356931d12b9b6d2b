"""Settings that follow from the images."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from ccfcpp.clustering.auto_settings import settings_for, settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import PrecisionConfig
from ccfcpp.core.config_layers import resolve, values_of
from ccfcpp.data.images import ImageData
from tests.support.command import ccfcpp, set_options, succeeded


def images(count: int, channels: int, side: int) -> ImageData:
    return ImageData("mine", torch.zeros(count, channels, side, side, dtype=torch.uint8), None, ())


@pytest.mark.parametrize(
    ("count", "channels", "side", "expected"),
    [
        (60, 3, 28, {"widths": [32, 64, 128], "batch": 60, "steps": 120, "overclustering": 1}),
        (60, 3, 64, {"widths": [16, 32, 64, 128], "first_neighbours": "gradients"}),
        (60, 3, 64, {"crops.widths": [16, 32, 64, 128, 256], "crops.batch": 60}),
        (60, 3, 32, {"crops.widths": [32, 64, 128, 256], "crops.steps": 150}),
        (60, 1, 64, {"first_neighbours": "pixels", "neighbours": 5, "hidden": 128}),
        (1797, 1, 8, {"widths": [128], "stem": 64, "batch": 1797, "overclustering": 3}),
        (60, 3, 8, {"first_neighbours": "pixels"}),
        (30_000, 3, 2, {"batch": 2000, "overclustering": 5, "neighbours": 50, "hidden": 256}),
        (1, 1, 1, {"batch": 2}),
    ],
)
def test_they_fit_size_colour_and_number(
    count: int, channels: int, side: int, expected: dict[str, object]
) -> None:
    settings = settings_for(count, (channels, side, side))
    of_crops = any(key.startswith("crops.") for key in expected)
    named = {"dataset": "/my/images", **({"method": "fed-emp"} if of_crops else {})}
    config = resolve(ClusterConfig, "cluster", settings, named)
    values = {key.removeprefix("scan."): value for key, value in values_of(config).items()}
    assert expected == {key: values[key] for key in expected}
    assert of_crops or config.method == "fed-scan"


def test_many_photos_in_colour_are_for_fed_emp_in_one_process_alone() -> None:
    def chosen(count: int, shape: tuple[int, int, int], network: bool = False) -> str:
        fit = settings_over_a_network if network else settings_for
        config = resolve(ClusterConfig, "cluster", fit(count, shape), {"dataset": "/mine"})
        rounding = "auto" if config.method == "fed-emp" else "float32"
        assert config.section(PrecisionConfig).precision == rounding
        return config.method

    assert chosen(1000, (3, 24, 24)) == "fed-emp"
    for fewer in (chosen(999, (3, 64, 64)), chosen(5000, (3, 20, 64)), chosen(5000, (1, 64, 64))):
        assert fewer == "fed-scan"
    assert chosen(5000, (3, 64, 64), network=True) == "fed-scan"


def test_what_the_photos_are_decides_on_the_system_unless_the_user_does(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (1000, 24, 24, 3), np.uint8)
    np.savez(tmp_path / "mine.npz", images=pixels)
    small = ("--clusters", 2, "--clients", 2, *set_options("crops.steps=2", "crops.widths=[8]"))
    few = ("cluster", "--dataset", tmp_path / "mine.npz", *small)
    said = succeeded(*few, "--out", tmp_path / "run").stderr
    first, second, *_ = said.splitlines()
    assert first.startswith("reading ")
    assert second.startswith("Fed-EMP on ")
    other = ccfcpp(*few, "--method", "km", "--out", tmp_path / "other")
    assert "crops.steps" in other.stderr.splitlines()[-1]  # of a method that has none


def test_a_run_takes_them_says_so_and_keeps_them(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "mine.npz", images=pixels)
    few = ("--clusters", 2, "--clients", 2, "--set", "scan.steps=10")
    out = tmp_path / "run"
    result = succeeded("cluster", "--dataset", tmp_path / "mine.npz", *few, "--out", out)
    said = "widths [64, 128], 10 steps of 24 images, first neighbours by gradients"
    assert said in result.stderr
    assert "24 images of 16x16 pixels, no labels; 2 clients; 10 rounds on" in result.stderr
    scan = yaml.safe_load((out / "config.yaml").read_text())["scan"]
    # What the user gave lies over them.
    assert (scan["widths"], scan["batch"], scan["steps"]) == ([64, 128], 24, 10)
    again = succeeded("cluster", "--out", out, "--resume")
    assert "going on with Fed-SCAN" in again.stderr
