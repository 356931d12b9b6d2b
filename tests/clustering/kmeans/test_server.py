import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.clustering.kmeans import server
from ccfcpp.clustering.kmeans.server import Clustering, most_similar, nearest
from ccfcpp.core.randomness import Randomness

Way = Callable[..., Clustering]


def on_a_device(points: Tensor, k: int, *, seed: int, **given: Any) -> Clustering:
    """By batched products, as on an accelerator."""
    weights, starts = given.get("weights"), given.get("init")
    (found,) = server._kmeans_on_device(
        [points],
        [server._weights_of(points, weights)],
        k,
        [seed],
        given.get("restarts", 10),
        given.get("iterations", 100),
        starts,
    )
    return found


both = pytest.mark.parametrize(
    "kmeans", [pytest.param(server.kmeans, id="faiss"), pytest.param(on_a_device, id="device")]
)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Randomness(seed).generator("points"))


@both
def test_inertia_is_scikit_learns(kmeans: Way) -> None:
    pixels = load_digits().data.astype(np.float32)
    theirs = KMeans(10, n_init=10, random_state=0).fit(pixels).inertia_
    ours = kmeans(torch.from_numpy(pixels), 10, seed=0).inertia
    assert ours == pytest.approx(theirs, rel=0.01)


@both
def test_separated_groups_are_found_with_their_sizes(kmeans: Way) -> None:
    centres = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    points = torch.cat([centres[c] + normal(c, n, 2) for c, n in enumerate((5, 20, 40))])
    found = kmeans(points, 3, seed=1)
    order = nearest(centres, found.centroids)
    assert found.sizes[order].tolist() == [5, 20, 40]
    expected = torch.stack([part.mean(dim=0) for part in torch.split(points, [5, 20, 40])])
    torch.testing.assert_close(found.centroids[order], expected)


@both
@pytest.mark.parametrize("far", [0.0, 1e4, 1e5])
def test_groups_are_found_far_from_the_origin(kmeans: Way, far: float) -> None:
    centres = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    labels = torch.arange(3).repeat_interleave(torch.tensor([50, 70, 90]))
    points = far + centres[labels] + 0.3 * normal(7, len(labels), 2)
    assert torch.equal(nearest(points, far + centres), labels)
    found = kmeans(points, 3, seed=1, restarts=3)
    order = nearest(far + centres, found.centroids)
    assert found.sizes[order].tolist() == [50, 70, 90]
    assert found.inertia == pytest.approx(0.09 * 2 * len(labels), rel=0.3)
    started = kmeans(points, 3, seed=1, init=far + centres)
    torch.testing.assert_close(started.centroids, found.centroids[order])


@both
def test_weights_move_centroids_as_repetition_does(kmeans: Way) -> None:
    points = torch.tensor([[0.0], [1.0], [10.0], [14.0]])
    found = kmeans(points, 2, seed=0, weights=torch.tensor([1.0, 3.0, 1.0, 1.0]))
    assert sorted(found.centroids.flatten().tolist()) == pytest.approx([0.75, 12.0])
    assert sorted(found.sizes.tolist()) == [2, 4]
    assert found.inertia == pytest.approx(0.75 + 8)


def lloyd(points: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Lloyd's k-means to convergence, by loops over the points."""
    centroids, before = starts.tolist(), None
    while centroids != before:
        before = centroids
        labels = [
            min(range(len(before)), key=[math.dist(x, c) for c in before].__getitem__)
            for x in points.tolist()
        ]
        # faiss splits another cluster where one has lost its last member.
        assume(len(set(labels)) == len(starts))
        centroids = []
        for c in range(len(starts)):
            own = torch.tensor([label == c for label in labels])
            mean = (weights[own].unsqueeze(1) * points[own]).sum(dim=0) / weights[own].sum()
            centroids.append(mean.tolist())
    return torch.tensor(centroids)


@both
@given(st.integers(10, 40), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_from_given_starts_it_ends_where_lloyds_algorithm_does(
    kmeans: Way, samples: int, k: int, dimensions: int, weighted: bool, seed: int
) -> None:
    points = normal(seed, samples, dimensions)
    weights = torch.arange(samples).remainder(3) + 1.0 if weighted else torch.ones(samples)
    starts = points[torch.randperm(samples, generator=Randomness(seed).generator("order"))[:k]]
    expected = lloyd(points.double(), starts.double(), weights.double())
    found = kmeans(points, k, seed=seed, weights=weights if weighted else None, init=starts)
    # Each in the place of the start that it comes from.
    torch.testing.assert_close(found.centroids, expected, atol=1e-5, rtol=0)


@both
@given(st.integers(0, 10**6))
def test_the_order_of_the_points_does_not_matter(kmeans: Way, seed: int) -> None:
    """Drawn starts depend on the order, but results of separated groups or given starts do not."""
    points = normal(seed, 60, 3)
    order = torch.randperm(60, generator=Randomness(seed).generator("order"))
    starts = points[:4].clone()
    first, second = (kmeans(some, 4, seed=0, init=starts) for some in (points, points[order]))
    assume(len(first.centroids) == 4)  # where a cluster runs empty faiss splits another at random
    torch.testing.assert_close(first.centroids, second.centroids, rtol=1e-4, atol=1e-4)
    assert first.sizes.tolist() == second.sizes.tolist()
    apart = points + 100 * torch.arange(60).remainder(3).unsqueeze(1)
    drawn, again = (kmeans(some, 3, seed=seed).centroids for some in (apart, apart[order]))
    torch.testing.assert_close(drawn[drawn[:, 0].argsort()], again[again[:, 0].argsort()])


@both
def test_given_starts_leave_no_draw(kmeans: Way) -> None:
    """A single bad start is not replaced by restarts."""
    points = torch.tensor([[0.0], [1.0], [50.0], [51.0], [90.0], [91.0]])
    starts = torch.tensor([[0.0], [1.0], [70.0]])
    for seed in range(5):
        found = kmeans(points, 3, seed=seed, init=starts)
        assert found.centroids.tolist() == [[0.0], [1.0], [70.5]]
        assert found.inertia == pytest.approx(2 * 20.5**2 + 2 * 19.5**2)


@both
def test_one_iteration_from_given_starts(kmeans: Way) -> None:
    points = torch.tensor([[0.0], [4.0], [5.0], [20.0]])
    found = kmeans(points, 2, seed=0, iterations=1, init=torch.tensor([[0.0], [5.0]]))
    assert found.centroids.tolist() == [[0.0], [pytest.approx(29 / 3)]]


@both
@given(st.integers(1, 6), st.integers(0, 4))
def test_no_more_points_than_clusters(kmeans: Way, count: int, more: int) -> None:
    points = normal(count, count, 3)
    found = kmeans(points, count + more, seed=0)
    assert torch.equal(found.centroids, points)
    assert found.sizes.tolist() == [1] * count
    assert found.inertia == 0


@both
def test_clusters_that_nobody_belongs_to_are_left_out(kmeans: Way) -> None:
    points = torch.cat([torch.zeros(10, 2), torch.ones(10, 2)])
    found = kmeans(points, 5, seed=0)
    assert 2 <= len(found.centroids) <= 5
    assert (found.sizes > 0).all()
    assert found.sizes.sum() == 20
    assert found.inertia == pytest.approx(0, abs=1e-4)


@both
def test_equal_seeds_give_equal_bits(kmeans: Way) -> None:
    points = normal(0, 3000, 16)
    first, second = kmeans(points, 10, seed=5), kmeans(points, 10, seed=5)
    assert torch.equal(first.centroids, second.centroids)
    assert first.inertia == second.inertia


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        server.kmeans(torch.empty(0, 2), 3, seed=0)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 99))
def test_nearest_and_most_similar_by_the_book(samples: int, clusters: int, seed: int) -> None:
    points, centroids = normal(seed, samples, 4), normal(seed + 1000, clusters, 4)
    distances = torch.cdist(points.double(), centroids.double())
    chosen = distances.gather(1, nearest(points, centroids).unsqueeze(1))
    torch.testing.assert_close(chosen.squeeze(1), distances.min(dim=1).values, rtol=1e-5, atol=0)
    cosines = torch.cosine_similarity(points.unsqueeze(1), centroids.unsqueeze(0), dim=2)
    similar = cosines.gather(1, most_similar(points, centroids).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(similar, cosines.max(dim=1).values)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(2, 5), st.integers(0, 99))
def test_sets_side_by_side_are_clustered_as_each_alone(sizes: list[int], k: int, seed: int) -> None:
    sets = [normal(seed + place, size, 3) for place, size in enumerate(sizes)]
    weights = [torch.rand(size, dtype=torch.float64) + 0.1 for size in sizes]
    seeds = list(range(len(sets)))
    together = server._kmeans_on_device(sets, weights, k, seeds, 2, 50)
    for own, weight, number, found in zip(sets, weights, seeds, together, strict=True):
        (alone,) = server._kmeans_on_device([own], [weight], k, [number], 2, 50)
        torch.testing.assert_close(found.centroids, alone.centroids, atol=1e-5, rtol=1e-5)
        assert found.sizes.sum() == pytest.approx(float(weight.sum()))
        assert found.inertia == pytest.approx(alone.inertia, abs=1e-5)


@pytest.mark.cuda
def test_on_a_gpu_k_means_is_as_good_as_on_a_processor() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    pixels = torch.from_numpy(load_digits().data.astype(np.float32))
    found = [server.kmeans(pixels.cuda(), 10, seed=seed) for seed in (0, 0, 1)]
    expected = server.kmeans(pixels, 10, seed=0).inertia
    assert torch.equal(found[0].centroids, found[1].centroids)
    assert all(own.inertia == pytest.approx(expected, rel=0.01) for own in found)
