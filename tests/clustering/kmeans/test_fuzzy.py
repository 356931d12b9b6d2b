"""Fuzzy c-means against its equations in plain loops, and against scikit-fuzzy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skfuzzy.cluster import cmeans  # type: ignore[import-untyped]
from torch import Tensor

from ccfcpp.clustering.kmeans.fuzzy import FuzzyClustering, fuzzy_c_means, memberships
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.core.randomness import Randomness

Rows = list[list[float]]

SEEDS = st.integers(0, 10**6)
FUZZIFIERS = st.floats(1.2, 6)
DISTANCES = st.integers(1, 6).flatmap(
    lambda k: st.lists(
        st.lists(st.floats(0.1, 10), min_size=k, max_size=k), min_size=1, max_size=10
    )
)


def normal(seed: int, *shape: int) -> Tensor:
    """Use float64, so that differences from an oracle are not rounding errors."""
    drawn = torch.randn(*shape, generator=Randomness(seed).generator("points"))
    return drawn.double()


def blobs(seed: int, k: int, each: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Well separated groups around centres that are at least 10 apart, and these centres."""
    centres = 10 * torch.eye(k, dimensions, dtype=torch.float64)
    return centres.repeat_interleave(each, dim=0) + normal(seed, k * each, dimensions), centres


def book_memberships(distances: Rows, m: float) -> Rows:
    return [[1 / sum((d / to) ** (2 / (m - 1)) for to in row) for d in row] for row in distances]


def book_iteration(points: Rows, centroids: Rows, m: float) -> tuple[Rows, Rows]:
    """Next centroids, and the memberships from which they are computed."""
    degrees = book_memberships([[math.dist(x, c) for c in centroids] for x in points], m)
    moved = []
    for j in range(len(centroids)):
        weights = [row[j] ** m for row in degrees]
        total = sum(weights)
        moved.append(
            [
                sum(w * x[axis] for w, x in zip(weights, points, strict=True)) / total
                for axis in range(len(points[0]))
            ]
        )
    return moved, degrees


def book_objective(points: Rows, centroids: Rows, m: float) -> float:
    distances = [[math.dist(x, c) for c in centroids] for x in points]
    degrees = book_memberships(distances, m)
    return math.fsum(
        u**m * d**2
        for us, ds in zip(degrees, distances, strict=True)
        for u, d in zip(us, ds, strict=True)
    )


def iterate(points: Tensor, starts: Tensor, m: float, iterations: int = 1) -> FuzzyClustering:
    return fuzzy_c_means(points, starts, m=m, tolerance=0, iterations=iterations)


@given(SEEDS, st.floats(1.1, 8))
def test_how_many_points_a_centroid_is_a_mean_of(seed: int, m: float) -> None:
    points, starts = normal(seed, 12, 2), normal(seed + 1, 3, 2)
    found = iterate(points, starts, m)
    distances = [[math.dist(x, c) for c in found.centroids.tolist()] for x in points.tolist()]
    degrees = book_memberships(distances, m)
    for cluster, averaged in enumerate(found.averaged.tolist()):
        weights = [row[cluster] ** m for row in degrees]
        expected = math.fsum(weights) ** 2 / math.fsum(w**2 for w in weights)
        assert math.isclose(averaged, expected, rel_tol=1e-6)
        assert 1 - 1e-9 <= averaged <= 12 + 1e-9


# --- memberships -------------------------------------------------------------------------------


@given(DISTANCES, st.floats(1.1, 10))
def test_memberships_are_as_printed(distances: Rows, m: float) -> None:
    found = memberships(torch.tensor(distances, dtype=torch.float64).square(), m)
    expected = torch.tensor(book_memberships(distances, m), dtype=torch.float64)
    # Logarithms of up to 5, times at most 2 / (m − 1) = 20: a hundred roundings.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=1, max_size=8),
    st.floats(1.001, 100),
)
def test_memberships_of_any_distances_sum_to_one(exponents: Rows, m: float) -> None:
    found = memberships(10 ** torch.tensor(exponents), m)
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(exponents)))


@given(SEEDS)
def test_close_to_one_memberships_are_those_of_k_means(seed: int) -> None:
    points, centroids = normal(seed, 30, 3).float(), normal(seed + 1, 5, 3).float()
    distances = torch.cdist(points, centroids)
    found = memberships(distances.square(), 1.001)
    first, second = distances.topk(2, largest=False).values.T
    clear = second > 1.01 * first
    # (1 / 1.01)^2000 is less than 1e-8.
    expected = torch.nn.functional.one_hot(nearest(points, centroids), 5).float()
    torch.testing.assert_close(found[clear], expected[clear], atol=1e-6, rtol=0)


@pytest.mark.parametrize("m", [1.001, 1.1, 2.0, 100.0])
def test_a_sample_on_centroids_belongs_to_these_alone_in_equal_parts(m: float) -> None:
    found = memberships(torch.tensor([[0.0, 1e-30, 4.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]]), m)
    third = 1 / 3
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [third, third, third]])
    torch.testing.assert_close(found, expected)


# --- iterations --------------------------------------------------------------------------------


@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 3), FUZZIFIERS, SEEDS)
def test_an_iteration_is_the_loops(
    samples: int, k: int, dimensions: int, m: float, seed: int
) -> None:
    points, starts = normal(seed, samples, dimensions), normal(seed + 1, k, dimensions)
    found = iterate(points, starts, m)
    moved, _ = book_iteration(points.tolist(), starts.tolist(), m)
    expected = torch.tensor(moved, dtype=torch.float64)
    # ‖x‖² − 2xᵀc + ‖c‖² loses digits where x is close to c, half of them at the worst.
    torch.testing.assert_close(found.centroids, expected, atol=1e-7, rtol=0)
    _, after = book_iteration(points.tolist(), found.centroids.tolist(), m)
    supports = torch.tensor(after, dtype=torch.float64).sum(dim=0)
    torch.testing.assert_close(found.supports, supports, atol=1e-6, rtol=0)
    objective = book_objective(points.tolist(), found.centroids.tolist(), m)
    assert found.objective == pytest.approx(objective, rel=1e-9, abs=1e-12)
    assert found.iterations == 1


@given(st.integers(2, 5), st.floats(1.2, 3), st.integers(2, 12), SEEDS)
def test_the_whole_is_scikit_fuzzys(k: int, m: float, iterations: int, seed: int) -> None:
    points, _ = blobs(seed, k, 15, 6)
    drawn = torch.rand(k, len(points), generator=Randomness(seed).generator("partition"))
    partition = (drawn / drawn.sum(dim=0)).double().numpy()
    data = points.T.numpy()
    # Its first iteration gives the centroids that ours start from.
    starts = cmeans(data, k, m, error=0, maxiter=1, init=partition)[0]
    theirs, degrees, _, distances, *_ = cmeans(
        data, k, m, error=0, maxiter=1 + iterations, init=partition
    )
    found = iterate(points, torch.from_numpy(starts), m, iterations)
    torch.testing.assert_close(found.centroids, torch.from_numpy(theirs), atol=1e-7, rtol=0)
    supports = torch.from_numpy(degrees.sum(axis=1))
    torch.testing.assert_close(found.supports, supports, atol=1e-6, rtol=0)
    assert found.objective == pytest.approx(float(np.sum(degrees**m * distances**2)), rel=1e-7)


def test_it_ends_where_no_coordinate_moves_further_than_the_tolerance() -> None:
    points, starts = normal(0, 60, 3), normal(1, 3, 3)
    found = fuzzy_c_means(points, starts, m=2, tolerance=1e-3, iterations=300)
    assert 2 < found.iterations < 300
    last, *others = [
        float((now.centroids - before.centroids).abs().max())
        for now, before in (
            (iterate(points, starts, 2, count), iterate(points, starts, 2, count - 1))
            for count in range(found.iterations, 1, -1)
        )
    ]
    assert last <= 1e-3 < min(others)
    torch.testing.assert_close(
        found.centroids, iterate(points, starts, 2, found.iterations).centroids, rtol=0, atol=0
    )


def test_single_precision_gives_what_double_precision_does() -> None:
    points, centres = blobs(0, 4, 25, 8)
    starts = centres + normal(1, 4, 8)
    double = fuzzy_c_means(points, starts, m=1.5, tolerance=1e-4, iterations=50)
    single = fuzzy_c_means(points.float(), starts.float(), m=1.5, tolerance=1e-4, iterations=50)
    assert single.centroids.dtype == torch.float32
    assert single.supports.dtype == torch.float64
    torch.testing.assert_close(single.centroids.double(), double.centroids, atol=1e-4, rtol=0)
    torch.testing.assert_close(single.supports, double.supports, atol=1e-3, rtol=0)
    assert single.objective == pytest.approx(double.objective, rel=1e-4)


# --- far from the origin -----------------------------------------------------------------------

FAR = 4096.0


def on_a_grid(values: Tensor) -> Tensor:
    """Multiples of 1 / 256, to which float32 can add ``FAR`` without rounding."""
    return torch.round(values * 256) / 256


@given(SEEDS)
def test_far_from_the_origin_distances_keep_their_digits(seed: int) -> None:
    points, starts = on_a_grid(normal(seed, 20, 3)), on_a_grid(normal(seed + 1, 3, 3))
    exact = iterate(points, starts, 2, 3)
    far = iterate((points + FAR).float(), (starts + FAR).float(), 2, 3)
    # The centroids themselves have a precision of 2⁻¹¹ there, and the mean one that is no better.
    torch.testing.assert_close(far.centroids.double() - FAR, exact.centroids, atol=2e-3, rtol=0)
    torch.testing.assert_close(far.supports, exact.supports, atol=2e-2, rtol=0)


@pytest.mark.parametrize("shift", [0.0, FAR])
def test_a_sample_on_a_centroid_counts_for_no_other(shift: float) -> None:
    """The formula alone would give 0 / 0 here."""
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]]) + shift
    found = iterate(points, points.clone(), 1.5)
    assert torch.equal(found.centroids, points)
    assert found.supports.tolist() == [1, 1, 1, 1]
    assert found.objective == 0


@pytest.mark.parametrize("shift", [0.0, FAR])
def test_coincident_centroids_share_what_lies_on_them(shift: float) -> None:
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.25, 0.0]]) + shift
    found = iterate(points[:2], points[[0, 0, 1]], 1.5)
    assert torch.equal(found.centroids, points[[0, 0, 1]])
    assert found.supports.tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_is_on_a_centroid_in_spite_of_rounding(seed: int) -> None:
    """With m = 10, a distance of 1e-4 in place of 0 would give the others a third."""
    points = normal(seed, 4, 50).float()
    found = iterate(points, points[[0, 1, 2, 3, 3]], 10)
    torch.testing.assert_close(found.centroids, points[[0, 1, 2, 3, 3]], atol=1e-6, rtol=0)
    assert found.supports.tolist() == [1, 1, 1, 0.5, 0.5]


# --- awkward cases -----------------------------------------------------------------------------


def test_a_centroid_without_any_weight_stays() -> None:
    starts = torch.tensor([[0.0], [1.0], [5.0]])
    found = iterate(starts[:2], starts, 2, 3)
    assert found.centroids.tolist() == [[0.0], [1.0], [5.0]]
    assert found.supports.tolist() == [1, 1, 0]


@pytest.mark.parametrize("m", [1.001, 1.02, 1.05, 1.1, 1.2])
@pytest.mark.parametrize("distance", [10.0, 30.0, 40.0, 100.0, 200.0, 300.0, 400.0, 1e4, 1e6])
def test_a_far_centroid_goes_where_exact_arithmetic_sends_it_or_stays(
    m: float, distance: float
) -> None:
    """The weights would underflow in float32, and lose precision before."""
    points = normal(0, 50, 2)
    starts = torch.tensor([[0.0, 0.0], [distance, distance]], dtype=torch.float64)
    exact = iterate(points, starts, m).centroids
    found = iterate(points.float(), starts.float(), m).centroids.double()
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[0], exact[0], atol=1e-4, rtol=0)
    stayed = torch.allclose(found[1], starts[1], rtol=1e-6)
    # Squared distances of a relative precision of 1e-6 at best, to the power of 1 / (m − 1).
    precision = 1e-5 / (m - 1)
    assert stayed or torch.allclose(found[1], exact[1], atol=max(precision, 1e-4))


@pytest.mark.parametrize("m", [20.0, 60.0, 100.0])
def test_small_powers_of_memberships_are_weights_too(m: float) -> None:
    """The memberships are about 1 / 10, whose 60th power underflows in float32."""
    points, starts = normal(0, 40, 3), normal(1, 10, 3)
    exact, found = iterate(points, starts, m), iterate(points.float(), starts.float(), m)
    torch.testing.assert_close(found.centroids.double(), exact.centroids, atol=1e-3, rtol=0)


@pytest.mark.parametrize("m", [1.001, 2.0])
def test_a_single_sample_draws_every_centroid(m: float) -> None:
    point = torch.tensor([[1.0, 2.0]])
    found = fuzzy_c_means(point, point + torch.eye(2), m=m, tolerance=1e-6, iterations=10)
    torch.testing.assert_close(found.centroids, point.expand(2, 2))
    assert found.supports.tolist() == [0.5, 0.5]
    assert found.objective == pytest.approx(0, abs=1e-12)


@given(st.integers(1, 3), st.integers(1, 3), FUZZIFIERS, SEEDS)
def test_fewer_samples_than_centroids(samples: int, more: int, m: float, seed: int) -> None:
    points, starts = normal(seed, samples, 2), normal(seed + 1, samples + more, 2)
    moved, _ = book_iteration(points.tolist(), starts.tolist(), m)
    expected = torch.tensor(moved, dtype=torch.float64)
    torch.testing.assert_close(iterate(points, starts, m).centroids, expected, atol=1e-7, rtol=0)
    found = fuzzy_c_means(points.float(), starts.float(), m=m, tolerance=1e-4, iterations=100)
    assert torch.isfinite(found.centroids).all()
    assert float(found.supports.sum()) == pytest.approx(samples)


def test_neither_samples_nor_starts_are_changed() -> None:
    points, starts = normal(0, 10, 2), normal(1, 3, 2)
    before = points.clone(), starts.clone()
    iterate(points, starts, 2, 3)
    assert torch.equal(points, before[0])
    assert torch.equal(starts, before[1])


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        iterate(torch.empty(0, 2), torch.zeros(3, 2), 2)


@pytest.mark.parametrize(("m", "iterations"), [(1.0, 5), (0.5, 5), (2.0, 0)])
def test_arguments_out_of_range_are_errors(m: float, iterations: int) -> None:
    with pytest.raises(ValueError, match="m must be above 1 and iterations at least 1"):
        iterate(torch.zeros(2, 2), torch.zeros(1, 2), m, iterations)
