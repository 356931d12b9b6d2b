import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from ccfcpp.clustering.kmeans import clients as lloyd
from ccfcpp.clustering.kmeans.clients import kmeans_each
from ccfcpp.clustering.kmeans.server import Clustering, nearest
from ccfcpp.core.randomness import Randomness
from tests.support.clustering import digits


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Randomness(seed).generator("points"))


def each(
    points: list[Tensor], k: int, restarts: int = 10, iterations: int = 300
) -> list[Clustering]:
    seeds = list(range(len(points)))
    return kmeans_each(points, k, seeds=seeds, restarts=restarts, iterations=iterations)


def test_inertia_is_scikit_learns() -> None:
    pixels = digits()[0].flatten(1).float()
    (ours,) = each([pixels], 10)
    theirs = KMeans(10, n_init=10, random_state=0).fit(pixels.numpy()).inertia_
    assert ours.inertia == pytest.approx(theirs, rel=0.01)


def test_one_start_descends_as_scikit_learns_from_the_same_start() -> None:
    """Clusters may lose all members on the way; neither result may then have fewer centroids."""
    points = normal(3, 500, 8)
    start = points[:7].clone()
    mask = torch.ones(1, len(points))
    tolerance = torch.tensor([1e-12])
    found, inertia = lloyd._descend(points[None], mask, start[None, None], tolerance, 300)
    theirs = KMeans(7, init=start.numpy(), n_init=1, tol=1e-12, max_iter=300).fit(points.numpy())
    assert inertia.item() == pytest.approx(theirs.inertia_, rel=1e-5)
    expected = torch.from_numpy(theirs.cluster_centers_.astype(np.float32))
    torch.testing.assert_close(found[0, 0], expected, atol=1e-4, rtol=0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 9))
def test_a_client_finds_the_same_whoever_else_is_there(sizes: list[int], k: int, seed: int) -> None:
    points = [normal(seed + 100 * i, size, 3).double() for i, size in enumerate(sizes)]
    together = each(points, k, restarts=3)
    for client, own in enumerate(points):
        (alone,) = kmeans_each([own], k, seeds=[client], restarts=3, iterations=300)
        torch.testing.assert_close(together[client].centroids, alone.centroids, atol=1e-4, rtol=0)
        assert together[client].inertia == pytest.approx(alone.inertia, abs=1e-3)


def test_many_clients_go_in_batches_that_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [normal(i, 20 + i, 4) for i in range(10)]
    whole = each(points, 3)
    monkeypatch.setattr(lloyd, "_HOST_DISTANCES", 2 * 29 * 3 * 10)
    assert [len(b) for b in lloyd._batches([len(p) for p in points], 3, 2 * 29)] == [2] * 5
    for first, second in zip(whole, each(points, 3), strict=True):
        torch.testing.assert_close(first.centroids, second.centroids, atol=1e-4, rtol=0)


def test_every_point_is_nearest_to_the_centroid_that_counts_it() -> None:
    points = normal(0, 300, 5)
    (found,) = each([points], 6)
    labels = nearest(points, found.centroids)
    assert found.sizes.tolist() == torch.bincount(labels, minlength=6).tolist()
    means = torch.stack([points[labels == c].mean(dim=0) for c in range(6)])
    torch.testing.assert_close(found.centroids, means, atol=1e-2, rtol=0)


@given(st.integers(1, 6), st.integers(0, 4))
def test_no_more_points_than_clusters(count: int, more: int) -> None:
    points = normal(count, count, 3)
    (found,) = each([points], count + more)
    assert torch.equal(found.centroids, points)
    assert found.sizes.tolist() == [1] * count
    assert found.inertia == 0


def test_clusters_that_nobody_belongs_to_are_left_out() -> None:
    points = torch.cat([torch.zeros(10, 2), torch.ones(10, 2)])
    (found,) = each([points], 5)
    assert len(found.centroids) == 2
    assert found.sizes.tolist() == [10, 10]
    assert found.inertia == pytest.approx(0, abs=1e-4)


def test_equal_seeds_give_equal_bits() -> None:
    points = [normal(0, 3000, 16), normal(1, 200, 16)]
    for first, second in zip(each(points, 10), each(points, 10), strict=True):
        assert torch.equal(first.centroids, second.centroids)
        assert first.inertia == second.inertia


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        each([normal(0, 5, 2), torch.empty(0, 2)], 3)
