"""Embeddings of points with fewer than two dimensions, or with none."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.reports.statistics import CannotDrawError, tsne
from ccfcpp.runs.report_samples import plot_arrays

COUNT = 40
STEPS = torch.arange(1.0, COUNT + 1)
VECTOR = torch.tensor([1.0, -2.0, 0.5, 4.0])
ONE_LIVE = torch.tensor([0.0, 0.0, 1.0, 0.0])
BY_ANGLE = pytest.mark.parametrize("by_angle", [False, True])


def embed(points: Tensor, by_angle: bool) -> NDArray[np.float64]:
    """The embedding of representations as a run keeps them."""
    shown = plot_arrays(points, torch.arange(len(points)), by_angle)
    assert shown["index"].tolist() == list(range(len(points)))
    return tsne(shown["points"], by_angle)


def assert_in_the_plane(found: NDArray[np.float64]) -> None:
    """All points have finite places, which are not on a line along an axis."""
    assert found.shape == (COUNT, 2)
    assert np.isfinite(found).all()
    assert (found.std(axis=0) > 0).all()


def test_points_in_one_direction_have_no_places_by_angle() -> None:
    """Such points once crashed the interpreter."""
    with pytest.raises(CannotDrawError, match=r"^all representations are the same in direction$"):
        embed(STEPS[:, None] * VECTOR, by_angle=True)


@pytest.mark.parametrize(
    "points",
    [STEPS[:, None] * VECTOR, STEPS[:, None] * ONE_LIVE, STEPS[:, None] * VECTOR + ONE_LIVE],
    ids=["multiples of a vector", "one live dimension", "a line"],
)
def test_points_on_a_line_have_places(points: Tensor) -> None:
    found = embed(points, by_angle=False)
    assert_in_the_plane(found)
    assert np.array_equal(embed(points, by_angle=False), found)


@pytest.mark.parametrize("vector", [VECTOR, ONE_LIVE])
def test_two_opposite_directions_have_places(vector: Tensor) -> None:
    points = (STEPS - COUNT / 2 - 0.5)[:, None] * vector
    assert_in_the_plane(embed(points, by_angle=True))


@BY_ANGLE
@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_points_that_are_all_the_same_have_no_places(by_angle: bool, value: float) -> None:
    with pytest.raises(CannotDrawError, match=r"^all representations are the same"):
        embed(torch.full((COUNT, 4), value), by_angle)


@BY_ANGLE
def test_a_few_points_have_no_neighbourhoods(by_angle: bool) -> None:
    with pytest.raises(CannotDrawError, match=r"^7 images are too few"):
        embed(torch.randn(7, 4), by_angle)
