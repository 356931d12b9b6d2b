"""Mapping of images to points, and their assignment to centroids."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.systems.shallow import pixels
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.core.randomness import Randomness
from tests.support.clustering import digits

SHAPE = (2, 3, 4)
SEEDS = st.integers(0, 10**6)


def some_images(seed: int, count: int) -> Tensor:
    source = Randomness(seed).generator("images")
    return torch.randint(256, (count, *SHAPE), dtype=torch.uint8, generator=source)


def rule(normalise: bool = False, assignment: str = "euclidean") -> PixelRule:
    config = PixelsConfig.model_validate({"normalise": normalise, "assignment": assignment})
    return PixelRule(config, SHAPE)


def book_points(images: Tensor, normalise: bool) -> list[list[float]]:
    """Pixels are ordered by channel, then by row."""
    points = []
    for image in images.tolist():
        values = [value / 255 for channel in image for row in channel for value in row]
        length = math.hypot(*values) if normalise else 1
        points.append([value / length if length else 0.0 for value in values])
    return points


@given(st.booleans(), st.integers(1, 5), SEEDS)
def test_points_are_pixels_in_their_order(normalise: bool, count: int, seed: int) -> None:
    images = some_images(seed, count)
    found = rule(normalise).points(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(book_points(images, normalise)))
    assert rule(normalise).dimensions == found.shape[1] == 24


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("assignment", ["euclidean", "cosine"])
@given(st.integers(1, 12), st.integers(1, 5), SEEDS)
def test_each_image_goes_to_the_nearest_or_most_similar_centroid(
    normalise: bool, assignment: str, count: int, k: int, seed: int
) -> None:
    images = some_images(seed, count)
    # Of very different lengths, which only one of both rules heeds.
    lengths = torch.tensor([0.2, 1.0, 5.0, 0.5, 2.0])[:k].unsqueeze(1)
    centroids = lengths * torch.rand(k, 24, generator=Randomness(seed).generator("centroids"))
    labels = rule(normalise, assignment).assign(images, centroids)
    assert labels.dtype == torch.int64
    for x, label in zip(book_points(images, normalise), labels.tolist(), strict=True):
        if assignment == "euclidean":
            costs = [math.dist(x, c) for c in centroids.tolist()]
        else:
            costs = [
                -sum(a * b for a, b in zip(x, c, strict=True)) / math.hypot(*c)
                for c in centroids.tolist()
            ]
        assert costs[label] == pytest.approx(min(costs), rel=1e-5)


def test_the_two_rules_differ() -> None:
    centroids = torch.stack([torch.full((24,), 0.1), torch.eye(24)[0]])
    grey = torch.full((1, *SHAPE), 200, dtype=torch.uint8)
    assert rule(assignment="cosine").assign(grey, centroids).tolist() == [0]
    assert rule(assignment="cosine").assign(grey, centroids[[1, 0]] * 9).tolist() == [1]
    far = torch.stack([torch.full((24,), 9.0), torch.eye(24)[0]])
    assert rule().assign(grey, far).tolist() == [1]


@pytest.mark.parametrize("assignment", ["euclidean", "cosine"])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_black_image_has_a_cluster_too(normalise: bool, assignment: str) -> None:
    black = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    own = rule(normalise, assignment)
    assert torch.equal(own.points(black), torch.zeros(2, 24))
    centroids = torch.stack([torch.ones(24), torch.full((24,), 0.1), torch.zeros(24)])
    labels = own.assign(black, centroids)
    # Every direction is as similar to it as any other.
    assert labels.tolist() == ([2, 2] if assignment == "euclidean" else [0, 0])


def test_many_images_are_assigned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    images = digits()[0][:50]
    own = PixelRule(PixelsConfig(), (1, 8, 8))
    centroids = own.points(images[:7])
    whole = own.assign(images, centroids)
    assert whole[:7].tolist() == list(range(7))
    monkeypatch.setattr(pixels, "IMAGES_AT_A_TIME", 8)
    assert torch.equal(own.assign(images, centroids), whole)
