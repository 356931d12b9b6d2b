"""Colours as readers with and without colour blindness see them."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from ccfcpp.reports.palette import CATEGORIES, INKS, colours, ink_on, line_style, marker

Floats = NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> Floats:
    shares = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def cielab(rgb: Floats) -> Floats:
    ratios = TO_XYZ @ rgb.clip(0, 1) / WHITE
    x, y, z = np.where(
        ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116
    ).tolist()
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_can_be_told_apart(sight: str) -> None:
    seen = {colour: cielab(SIGHT[sight] @ linear(colour)) for colour in CATEGORIES}
    for first, second in itertools.combinations(CATEGORIES, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 15, (first, second)


def test_beyond_ten_categories_markers_and_dashes_differ() -> None:
    looks = {(colours(60)[number], marker(number)) for number in range(60)}
    assert len(looks) == 60
    assert len({str(line_style(number)) for number in range(20)}) == 20
    assert len({str(line_style(number) | {"color": ""}) for number in range(4)}) == 4


def test_no_category_has_the_colour_of_an_ink() -> None:
    assert not set(CATEGORIES) & set(INKS)


def test_numbers_are_dark_on_light_and_light_on_dark() -> None:
    assert ink_on(1, 0.9, 0.2) == "#000000"
    assert ink_on(0, 0.13, 0.3) == "#ffffff"
