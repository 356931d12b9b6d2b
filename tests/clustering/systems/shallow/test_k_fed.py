"""k-FED: each step against an obvious version, and complete runs on clusters that it must find."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.systems.shallow import k_fed
from ccfcpp.clustering.systems.shallow.k_fed import (
    KFed,
    LocalCentroids,
    farthest_first,
    separated_kmeans,
)
from ccfcpp.clustering.systems.shallow.pixels import CentroidState
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.transport import InProcess
from tests.support.federation import CPU, federated, refusal

Points = NDArray[np.float64]

SEEDS = st.integers(0, 10**6)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Randomness(seed).generator("points"))


def ordered(centroids: Tensor | Points) -> Points:
    """The numbers of clusters have no meaning."""
    rows = np.asarray(centroids, dtype=np.float64)
    return rows[np.argsort(rows[:, 0])]


# --- the clients' k-means ----------------------------------------------------------------------


def book_projection(points: Points, k: int) -> Points:
    """Projections on the span of the top k right singular vectors, in the original dimensions."""
    _, _, vectors = np.linalg.svd(points, full_matrices=False)
    top = vectors[:k]
    projected: Points = points @ top.T @ top
    return projected


def book_starts(points: Points, projected: Points, seeds: list[int]) -> Points:
    """θ_r, the mean of S_r = {i: ‖Âᵢ − ν_r‖ ≤ ⅓ ‖Âᵢ − ν_s‖ for every s ≠ r}."""
    starts = []
    for r in seeds:
        kept = [
            points[i]
            for i in range(len(points))
            if all(
                math.dist(projected[i], projected[r]) <= math.dist(projected[i], projected[s]) / 3
                for s in seeds
                if s != r
            )
        ]
        starts.append(np.mean(kept, axis=0))
    return np.stack(starts)


def book_lloyd(points: Points, centroids: Points, iterations: int) -> Points:
    for _ in range(iterations):
        labels = cdist(points, centroids).argmin(axis=1)
        # faiss splits another cluster where one has lost its last member.
        assume(len(set(labels)) == len(centroids))
        centroids = np.stack([points[labels == c].mean(axis=0) for c in range(len(centroids))])
    assume(len(set(cdist(points, centroids).argmin(axis=1))) == len(centroids))
    return centroids


@given(st.integers(2, 12), st.integers(1, 12), st.integers(1, 5), SEEDS)
def test_the_projection_is_on_the_top_singular_vectors(
    samples: int, dimensions: int, k: int, seed: int
) -> None:
    """The points are not centred, and either Gram matrix gives the same projection."""
    points = normal(seed, samples, dimensions) + 2 * normal(seed + 1, dimensions)
    values = np.linalg.svd(points.double().numpy(), compute_uv=False)
    # Else the subspace itself is a matter of rounding.
    assume(k >= len(values) or values[k] < 0.99 * values[k - 1])
    found = k_fed._project_on_singular_vectors(points, k).numpy()
    assert found.shape[1] <= k
    projected = book_projection(points.double().numpy(), k)
    # A square root of what eigenvalues of 0 are rounded to may remain.
    np.testing.assert_allclose(cdist(found, found), cdist(projected, projected), atol=1e-6)


def test_points_three_times_closer_to_a_seed_than_to_any_other_give_its_mean() -> None:
    points = torch.tensor([[0.0], [1.0], [1.5], [2.5], [4.0], [4.5], [12.0], [20.0]])
    seeds = torch.tensor([0, 4, 7])
    starts = k_fed._separated_means(points, torch.cdist(points, points[seeds]), seeds)
    # 1 is as far as allowed: 3 · 1 ≤ 3; 1.5 and 2.5 are between 0 and 4, and 12 between 4 and 20.
    assert starts.tolist() == [[0.5], [4.25], [20.0]]


def test_of_two_seeds_that_coincide_each_has_a_start() -> None:
    points = torch.tensor([[1.0], [1.0], [9.0], [8.5]])
    seeds = torch.tensor([0, 1, 2])
    starts = k_fed._separated_means(points, torch.cdist(points, points[seeds]), seeds)
    assert starts.tolist() == [[1.0], [1.0], [8.75]]


@pytest.mark.parametrize("iterations", [1, 60])
@given(st.integers(6, 30), st.integers(1, 40), st.integers(1, 4), SEEDS, st.integers(0, 2**63 - 1))
def test_the_clients_k_means_is_the_algorithm_as_printed(
    iterations: int, samples: int, dimensions: int, k: int, seed: int, draw: int
) -> None:
    centres = 3 * normal(seed, 3, dimensions)
    own = torch.arange(samples) % 3
    points = (centres[own] + normal(seed + 1, samples, dimensions)).double().numpy()
    projected = book_projection(points, k)
    _, seeds = kmeans_plusplus(projected, k, random_state=draw % 2**32, n_local_trials=1)
    starts = book_starts(points, projected, seeds.tolist())
    expected = book_lloyd(points, starts, iterations)
    found = separated_kmeans(torch.from_numpy(points), k, seed=draw, iterations=iterations)
    assert found.centroids.dtype == torch.float64
    np.testing.assert_allclose(found.centroids.numpy(), expected, atol=1e-4)
    labels = cdist(points, expected).argmin(axis=1)
    assert found.sizes.tolist() == np.bincount(labels, minlength=k).tolist()


@given(st.integers(1, 5), st.integers(0, 3))
def test_no_more_points_than_clusters_are_clusters_of_their_own(count: int, more: int) -> None:
    points = normal(count, count, 3)
    found = separated_kmeans(points, count + more, seed=0, iterations=10)
    assert torch.equal(found.centroids, points)
    assert found.sizes.tolist() == [1] * count


@pytest.mark.parametrize("distinct", [1, 2])
@pytest.mark.parametrize("dimensions", [2, 20])
def test_duplicates_give_fewer_clusters(distinct: int, dimensions: int) -> None:
    values = normal(0, distinct, dimensions)
    points = values.repeat(6, 1)
    found = separated_kmeans(points, 4, seed=0, iterations=10)
    assert len(found.centroids) == distinct
    assert found.sizes.tolist() == [6] * distinct
    # faiss moves a centroid by a thousandth to split a cluster.
    distances = torch.cdist(found.centroids, values).amin(dim=1)
    assert float(distances.max()) < 0.01 * float(values.norm(dim=1).max())


def test_points_that_are_all_zero_are_one_cluster() -> None:
    found = separated_kmeans(torch.zeros(9, 4), 3, seed=0, iterations=10)
    assert found.centroids.tolist() == [[0, 0, 0, 0]]
    assert found.sizes.tolist() == [9]


def test_equal_seeds_give_equal_clusters_and_the_seed_matters() -> None:
    points = normal(0, 200, 5)
    first, again, *others = [
        separated_kmeans(points, 4, seed=seed, iterations=3).centroids for seed in (0, 0, 1, 2, 3)
    ]
    assert torch.equal(first, again)
    assert any(first.shape != other.shape or not torch.equal(first, other) for other in others)


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        separated_kmeans(torch.empty(0, 2), 3, seed=0, iterations=1)


# --- the server --------------------------------------------------------------------------------


def book_farthest_first(points: Points, first: Points, k: int) -> Points:
    chosen = list(first)
    while len(chosen) < k:
        distances = [min(math.dist(x, c) for c in chosen) for x in points]
        if max(distances) == 0:
            break
        chosen.append(points[distances.index(max(distances))])
    return np.stack(chosen)


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 6), SEEDS)
def test_each_next_start_is_the_farthest_point(
    count: int, first: int, more: int, seed: int
) -> None:
    points = normal(seed, max(count, first), 3).double()
    found = farthest_first(points, points[:first], first + more)
    expected = book_farthest_first(points.numpy(), points[:first].numpy(), first + more)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_duplicates_are_no_starts() -> None:
    points = torch.tensor([[0.1, 0.7], [0.1, 0.7], [2.3, 0.0], [2.3, 0.0], [1e-7, 0.7]])
    found = farthest_first(points, points[:1], 5)
    assert found.tolist() == points[[0, 2, 4]].tolist()


@given(st.integers(1, 6), st.integers(1, 3), st.integers(3, 5), SEEDS)
def test_the_server_clusters_all_centroids_from_the_farthest_ones(
    clients: int, local: int, k: int, seed: int
) -> None:
    updates = [LocalCentroids(normal(seed + client, local, 4)) for client in range(clients)]
    points = torch.cat([update.centroids for update in updates]).double().numpy()
    expected = book_lloyd(points, book_farthest_first(points, points[:local], k), 30)
    algorithm = k_fed_of(4, k, local, iterations=30)
    state, _ = algorithm.aggregate(CentroidState(), iter(updates), Randomness(0))
    assert state.centroids is not None
    np.testing.assert_allclose(ordered(state.centroids), ordered(expected), atol=1e-5)


# --- the whole ---------------------------------------------------------------------------------

CLASSES = 8
DIMENSIONS = 16


def k_fed_of(dimensions: int, clusters: int, local: int, iterations: int = 100) -> KFed:
    """Configuration for images of one row, without normalisation."""
    settings: Tree = {
        "method": "k-fed",
        "pixels": {"normalise": False},
        "kfed": {"local_clusters": local},
        "centroids": {"iterations": iterations},
    }
    config = validate(ClusterConfig, settings)
    return KFed(Problem(config, (1, 1, dimensions), clusters, CPU))


def images_of(label: int, count: int, seed: int) -> Tensor:
    """Images of one row that form a Gaussian cluster."""
    centre = torch.rand(DIMENSIONS, generator=Randomness(label).generator("centre")) * 175 + 40
    pixels = centre + 3 * normal(seed, count, DIMENSIONS)
    return pixels.round().clamp(0, 255).to(torch.uint8).reshape(count, 1, 1, DIMENSIONS)


def labels_of(client: int) -> tuple[int, int]:
    """Each class is at three clients, which have no other class in common."""
    return client % CLASSES, (client + 1 + client // CLASSES) % CLASSES


def clients_of_two_clusters(count: int = 12) -> list[Client]:
    clients = []
    for client in range(count):
        parts = [images_of(own, 20 + client, 100 * client + own) for own in labels_of(client)]
        clients.append(Client(client, f"client {client}", torch.cat(parts)))
    return clients


def federation(
    clients: list[Client], seed: int = 0, local: int = 2
) -> Federation[CentroidState, InProcess]:
    return federated("k-fed", k_fed_of(DIMENSIONS, CLASSES, local), clients, seed)


def run(whole: Federation[CentroidState, InProcess]) -> tuple[CentroidState, RoundReport]:
    ((state, report),) = whole.run(whole.algorithm.initial_state(whole.randomness))
    return state, report


def accuracy(whole: Federation[CentroidState, InProcess], state: CentroidState) -> float:
    """Scores on images that no client holds."""
    assert isinstance(whole.algorithm, KFed)
    images = torch.cat([images_of(label, 25, 10**6 + label) for label in range(CLASSES)])
    found = whole.algorithm.assign(state, Client(-1, "all", images))
    classes = np.arange(CLASSES).repeat(25)
    return clustering_scores(classes, found.numpy())["accuracy"]


@pytest.mark.parametrize("seed", range(4))
def test_separated_clusters_are_found_from_clients_that_hold_two_of_them(seed: int) -> None:
    whole = federation(clients_of_two_clusters(), seed)
    state, report = run(whole)
    assert accuracy(whole, state) == 1
    assert not report.refused
    assert report.bytes_down == 0
    assert report.bytes_up == 12 * 2 * DIMENSIONS * 4


def test_without_some_clients_the_others_are_enough() -> None:
    clients = clients_of_two_clusters()
    whole = federation([client for client in clients if client.id not in (0, 5, 11)])
    state, _ = run(whole)
    assert accuracy(whole, state) == 1


def test_a_client_of_one_image_sends_it() -> None:
    lonely = Client(12, "lonely", images_of(3, 1, 7))
    whole = federation([*clients_of_two_clusters(), lonely])
    state, report = run(whole)
    assert accuracy(whole, state) == 1
    assert report.bytes_up == (12 * 2 + 1) * DIMENSIONS * 4


def test_fewer_centroids_than_clusters_are_global_ones_as_they_are() -> None:
    whole = federation(clients_of_two_clusters(1))
    state, _ = run(whole)
    assert state.centroids is not None
    both = [images_of(own, 20, own).flatten(1).double() / 255 for own in labels_of(0)]
    means = torch.stack([images.mean(dim=0) for images in both])
    np.testing.assert_allclose(ordered(state.centroids), ordered(means), atol=1e-6)


def test_a_client_has_no_more_clusters_than_there_are() -> None:
    with pytest.raises(UsageError, match="more than the 8 clusters"):
        federation(clients_of_two_clusters(1), local=9)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((4, 5), id="too many"),
        pytest.param((0, 5), id="none"),
        pytest.param((2, 4), id="dimensions"),
        pytest.param((2, 5, 1), id="an axis too many"),
    ],
)
def test_an_update_that_cannot_be_used_is_refused(shape: tuple[int, ...]) -> None:
    algorithm = k_fed_of(5, clusters=8, local=3)
    for good in (1, 2, 3):
        assert refusal(algorithm, CentroidState(), LocalCentroids(torch.zeros(good, 5))) is None
    assert refusal(algorithm, CentroidState(), LocalCentroids(torch.zeros(shape))) is not None
