"""Computations for figures against slow, obvious versions."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from ccfcpp.core.metrics import contingency_table, covariance, distances_to_centroids
from ccfcpp.reports.statistics import matched_classes, pair_correlations
from ccfcpp.runs.report_samples import extremes


@pytest.fixture
def points() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(30, 5, generator=generator) @ torch.randn(5, 5, generator=generator) + 2


def test_covariance_and_correlations_are_those_of_each_pair(points: Tensor) -> None:
    z, count = points.double().tolist(), len(points)
    means = [sum(row[i] for row in z) / count for i in range(5)]

    def slow(i: int, j: int) -> float:
        return float(sum((row[i] - means[i]) * (row[j] - means[j]) for row in z) / count)

    found = covariance(points)
    expected = torch.tensor([[slow(i, j) for j in range(5)] for i in range(5)])
    torch.testing.assert_close(found, expected.double())
    pairs = itertools.combinations(range(5), 2)
    correlations = [slow(i, j) / math.sqrt(slow(i, i) * slow(j, j)) for i, j in pairs]
    torch.testing.assert_close(pair_correlations(found), torch.tensor(correlations).double())


def test_a_constant_dimension_has_no_correlations(points: Tensor) -> None:
    points[:, 2] = 0.1
    assert len(pair_correlations(covariance(points))) == 6
    assert len(pair_correlations(torch.zeros(3, 3))) == 0


def test_counts_are_those_of_each_pair() -> None:
    rows, columns = torch.tensor([0, 1, 1, 2, 1]), torch.tensor([1, 0, 1, 1, 1])
    counts = contingency_table(rows, columns, 4, 2)
    for row, column in itertools.product(range(4), range(2)):
        expected = sum((r, c) == (row, column) for r, c in zip(rows, columns, strict=True))
        assert counts[row, column] == expected


def test_clusters_are_matched_so_that_most_images_agree() -> None:
    generator = torch.Generator().manual_seed(1)
    classes = torch.randint(3, (50,), generator=generator)
    found = torch.randint(4, (50,), generator=generator)
    matched = matched_classes(classes, found, 5)
    best = max(
        sum(int(classes[i]) == order[int(found[i])] for i in range(50))
        for order in itertools.permutations([0, 1, 2, -1])
    )
    assert int((matched[found] == classes).sum()) == best
    assert matched[4] == -1
    assert sorted(matched.tolist()) == [-1, -1, 0, 1, 2]


@pytest.mark.parametrize("by_angle", [False, True])
@pytest.mark.parametrize("farthest", [False, True])
@pytest.mark.parametrize("at_a_time", [4096, 7])
def test_the_most_extreme_images_are_those_of_sorted_distances(
    points: Tensor,
    by_angle: bool,
    farthest: bool,
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccfcpp.core.metrics._POINTS_AT_A_TIME", at_a_time)
    found, centroids = torch.arange(30) % 3, points[:3] * 1.5

    def slow(image: int) -> float:
        a, b = points[image].tolist(), centroids[image % 3].tolist()
        if by_angle:
            product = sum(x * y for x, y in zip(a, b, strict=True))
            return float(math.degrees(math.acos(min(1, product / math.hypot(*a) / math.hypot(*b)))))
        return math.dist(a, b)

    distance = distances_to_centroids(points, found, centroids, by_angle)
    expected = torch.tensor([slow(image) for image in range(30)], dtype=torch.float64)
    torch.testing.assert_close(distance, expected, rtol=1e-5, atol=1e-2 if by_angle else 1e-5)
    sign = -1 if farthest else 1
    members = sorted(range(1, 30, 3), key=lambda image: (sign * float(distance[image]), image))
    assert extremes(distance, found == 1, farthest).tolist() == members[:8]
    assert extremes(distance, found == 7, farthest).tolist() == []


def test_of_equal_distances_the_first_image_comes_first() -> None:
    members = torch.arange(12) > 1
    assert extremes(torch.ones(12), members, farthest=True).tolist() == [*range(2, 10)]
