"""Robust means against their definitions, written out in loops."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.robust.centroids import disagreement, robust_kmeans
from ccfcpp.robust.config import RobustMean
from ccfcpp.robust.estimators import (
    assumed_hostile,
    krum_order,
    make_estimator,
    median,
    pairwise_squares,
    trimmed_mean,
)

geometric_median = make_estimator(RobustMean(rule="geometric-median"))
RULES = ("trimmed-mean", "median", "geometric-median", "krum", "multi-krum")


@st.composite
def some_points(draw: st.DrawFn, least: int = 1, most: int = 9) -> Tensor:
    """A few points of few dimensions; some of them may be the same."""
    shape = draw(st.integers(least, most)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    points = torch.randn(shape, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        points = (points * 2).round()
    return points


@given(some_points(), st.integers(0, 4))
def test_a_trimmed_mean_leaves_out_the_ends_of_each_coordinate(points: Tensor, cut: int) -> None:
    n = len(points)
    if 2 * cut >= n:
        with pytest.raises(ValueError, match="leave none"):
            trimmed_mean(points, cut)
        return
    slow = [statistics.mean(sorted(column)[cut : n - cut]) for column in points.T.tolist()]
    torch.testing.assert_close(trimmed_mean(points, cut), torch.tensor(slow, dtype=torch.float64))


@given(some_points())
def test_a_median_is_each_coordinates(points: Tensor) -> None:
    slow = [statistics.median(column) for column in points.T.tolist()]
    torch.testing.assert_close(median(points), torch.tensor(slow, dtype=torch.float64))


def _distances_to(points: Tensor, place: Tensor) -> float:
    return sum(math.dist(point, place.tolist()) for point in points.tolist())


@given(some_points(), st.integers(0, 10**6))
def test_no_place_is_nearer_to_all_than_the_geometric_median(points: Tensor, seed: int) -> None:
    # The sum of distances is convex: what is no worse than all places around it is the best.
    found = geometric_median(points)
    reached = _distances_to(points, found)
    scale = float(points.abs().max()) + 1
    generator = torch.Generator().manual_seed(seed)
    for place in points:
        assert reached <= _distances_to(points, place) + 1e-4 * scale
    for size in (1.0, 0.1, 0.01):
        step = torch.randn(found.shape, generator=generator, dtype=torch.float64)
        assert reached <= _distances_to(points, found + size * scale * step) + 1e-4 * scale


@given(some_points(least=3))
def test_at_the_geometric_median_directions_to_the_points_cancel(points: Tensor) -> None:
    found = geometric_median(points)
    far = (points - found).norm(dim=1)
    near = far < 1e-3 * float(points.abs().max() + 1)
    pull = ((points - found)[~near] / far[~near].unsqueeze(1)).sum(dim=0).norm()
    # Points at the place itself hold it by 1 each.
    assert float(pull) <= int(near.sum()) + 0.05


@given(some_points(least=2), st.integers(0, 4))
def test_krum_sums_the_distances_to_the_nearest_others(points: Tensor, hostile: int) -> None:
    n = len(points)
    neighbours = min(max(1, n - hostile - 2), n - 1)
    scores = []
    for i, point in enumerate(points.tolist()):
        far = sorted(math.dist(point, o) ** 2 for j, o in enumerate(points.tolist()) if j != i)
        scores.append(sum(far[:neighbours]))
    order = krum_order(pairwise_squares(points), hostile).tolist()
    assert sorted(order) == list(range(n))
    ordered = [scores[i] for i in order]
    assert ordered == pytest.approx(sorted(scores))


@given(some_points())
def test_squared_distances_are_those_of_each_pair(points: Tensor) -> None:
    slow = [[math.dist(a, b) ** 2 for b in points.tolist()] for a in points.tolist()]
    torch.testing.assert_close(pairwise_squares(points), torch.tensor(slow, dtype=torch.float64))


@given(st.sampled_from(RULES), st.integers(7, 15), st.integers(0, 10**6), st.floats(10, 1e30))
def test_hostile_points_move_no_estimate_out_of_the_honest_ones(
    rule: str, n: int, seed: int, size: float
) -> None:
    config = RobustMean(rule=rule, hostile=0.28)
    hostile = (n - 3) // 4
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    points[:hostile] += size
    honest = points[hostile:]
    found = make_estimator(config)(points)
    if rule == "geometric-median":
        # Minsker, *Geometric Median and Robust Estimation in Banach Spaces* (2015), Lemma 2.1
        share = hostile / n
        allowed = 2 * (1 - share) / (1 - 2 * share)
        assert float((found - honest[0]).norm()) <= allowed * float(
            (honest - honest[0]).norm(dim=1).max()
        )
        return
    assert bool((found >= honest.amin(dim=0) - 1e-6).all())
    assert bool((found <= honest.amax(dim=0) + 1e-6).all())


def test_half_of_the_points_in_one_place_are_the_geometric_median() -> None:
    points = torch.tensor([[1.0, 2.0]] * 5 + [[7.0, 1.0], [3e30, 1.0], [-2e38, 5.0]])
    torch.testing.assert_close(geometric_median(points), points[0], atol=1e-5, rtol=0)


def test_there_is_always_a_point_left() -> None:
    assert [assumed_hostile(0.4, n) for n in (1, 2, 3, 4, 5, 10, 20)] == [0, 0, 1, 1, 2, 4, 8]
    assert assumed_hostile(0.3, 10) == 3  # and not 4 by rounding
    for rule in RULES:
        only = torch.tensor([[3.0, 4.0]])
        config = RobustMean(rule=rule)
        torch.testing.assert_close(make_estimator(config)(only), only[0])


# --- centroids ----------------------------------------------------------------------------------


def slow_kmeans(local: list[list[list[float]]], hostile: int) -> list[list[float]]:
    """k-means by votes with medians, for the client that agrees most with the others."""

    def apart(one: list[list[float]], other: list[list[float]]) -> float:
        there = statistics.mean(min(math.dist(a, b) for b in other) for a in one)
        back = statistics.mean(min(math.dist(a, b) for a in one) for b in other)
        return there + back

    scores = {
        i: statistics.median(apart(own, o) for j, o in enumerate(local) if j != i)
        for i, own in enumerate(local)
    }
    kept = sorted(scores, key=lambda i: scores[i])[: len(local) - hostile]
    most = max(len(local[i]) for i in kept)
    centres = local[next(i for i in kept if len(local[i]) == most)]
    local = [own for i, own in enumerate(local) if i in kept]
    for _ in range(50):
        votes: list[list[list[float]]] = [[] for _ in centres]
        for own in local:
            mine: dict[int, list[list[float]]] = {}
            for point in own:
                near = [math.dist(point, centre) for centre in centres]
                mine.setdefault(near.index(min(near)), []).append(point)
            for number, points in mine.items():
                votes[number].append([statistics.mean(c) for c in zip(*points, strict=True)])
        moved = [
            [statistics.median(c) for c in zip(*some, strict=True)] if some else centre
            for some, centre in zip(votes, centres, strict=True)
        ]
        if moved == centres:
            break
        centres = moved
    return centres


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 2), st.integers(0, 10**6))
def test_k_means_by_votes_is_that_of_the_slow_version(
    clients: int, k: int, hostile: int, seed: int
) -> None:
    hostile = min(hostile, (clients - 1) // 2)
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, k + 1, (clients,), generator=generator).tolist()
    local = [torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in sizes]
    centres, labels = robust_kmeans(local, median, hostile)
    expected = torch.tensor(
        slow_kmeans([own.tolist() for own in local], hostile), dtype=torch.float64
    )
    torch.testing.assert_close(centres, expected)
    for own, label in zip(local, labels, strict=True):
        torch.testing.assert_close(torch.cdist(own, centres).argmin(dim=1), label)


@pytest.mark.parametrize("place", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("rule", RULES)
def test_a_point_on_which_attackers_agree_gets_no_centre(rule: str, place: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    honest = [true + 0.1 * torch.randn(3, 2, generator=generator) for _ in range(7)]
    hostile = [torch.full((3, 2), place) for _ in range(3)]
    config = RobustMean(rule=rule, hostile=0.3)
    centres, _ = robust_kmeans([*hostile, *honest], make_estimator(config), 3)
    nearest = torch.cdist(true, centres).amin(dim=1)
    assert float(nearest.max()) < 1.0
    assert int(disagreement([*hostile, *honest]).argmin()) >= 3
