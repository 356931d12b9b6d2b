"""Federated fuzzy c-means: both rules of the server, and complete runs."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.config import FuzzyConfig
from ccfcpp.clustering.kmeans.fuzzy import FuzzyClustering, fuzzy_c_means
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.ffcm import (
    FFCM,
    FuzzyUpdate,
    clustered_centroids,
    support_weighted_mean,
)
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, PixelRule
from ccfcpp.core.config_layers import validate
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.engine.transport import InProcess
from tests.support.clustering import clients_of_sizes, made
from tests.support.federation import federated, refusal

CLUSTERS = 4
SHAPE = (1, 8, 8)
PIXELS = 64
SEEDS = st.integers(0, 10**6)
BOTH = pytest.mark.parametrize("method", ["ffcm-avg", "ffcm-km"])

Rounds = list[tuple[CentroidState, RoundReport]]


def config_of(method: str, rounds: int = 30, dropout: float = 0, seed: int = 0) -> ClusterConfig:
    return validate(
        ClusterConfig,
        {
            "method": method,
            "seed": seed,
            "ffcm": {"rounds": rounds},
            "availability": {"dropout_rate": dropout},
        },
    )


def federation(
    config: ClusterConfig, clients: list[Client]
) -> Federation[CentroidState, InProcess]:
    availability = Availability(**config.availability.model_dump())
    algorithm = made(config, CLUSTERS)
    return federated(config.method, algorithm, clients, config.seed, availability)


def run(config: ClusterConfig, clients: list[Client]) -> Rounds:
    whole = federation(config, clients)
    return list(whole.run(whole.algorithm.initial_state(whole.randomness)))


def centroids_of(state: CentroidState) -> Tensor:
    assert state.centroids is not None
    return state.centroids


def start_of(config: ClusterConfig) -> Tensor:
    whole = federation(config, clients_of_sizes(5))
    return centroids_of(whole.algorithm.initial_state(whole.randomness))


def ordered(centroids: Tensor) -> NDArray[np.float32]:
    """The numbers of clusters have no meaning."""
    order = (centroids.double() @ torch.arange(centroids.shape[1]).double()).argsort()
    return centroids[order].numpy()


def fuzzy(config: ClusterConfig, client: Client, starts: Tensor) -> FuzzyClustering:
    points = PixelRule(config.section(PixelsConfig), SHAPE).points(client.images)
    m = config.section(FuzzyConfig).m
    return fuzzy_c_means(points, starts, m=m, tolerance=1e-4, iterations=200)


# --- the server's rules ------------------------------------------------------------------------


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Randomness(seed).generator("numbers"))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), SEEDS)
def test_the_mean_weighs_each_client_by_its_support(
    clients: int, k: int, pixels: int, seed: int
) -> None:
    local, before = normal(seed, clients, k, pixels), normal(seed + 1, k, pixels)
    # Some are 0, now and then those of all clients.
    supports = normal(seed + 2, clients, k).double().clamp(min=0)
    found = support_weighted_mean(local, supports, before, 0)
    assert found.dtype == torch.float32
    for j in range(k):
        total = sum(supports[i, j].item() for i in range(clients))
        for axis in range(pixels):
            weighted = sum(supports[i, j].item() * local[i, j, axis].item() for i in range(clients))
            expected = weighted / total if total else before[j, axis].item()
            assert found[j, axis].item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


@given(st.permutations(range(4)), st.permutations(range(4)), SEEDS)
def test_clusters_of_centroids_keep_their_places(
    first: list[int], second: list[int], seed: int
) -> None:
    """The result does not depend on the order of a client's centroids or on its size."""
    before = 10 * torch.eye(4)
    near = before + 0.5 * normal(seed, 2, 4, 4)
    local = torch.stack([near[0][first], near[1][second]])
    supports = torch.tensor([[1.0] * 4, [50.0] * 4], dtype=torch.float64)
    found = clustered_centroids(local, supports, before, seed)
    torch.testing.assert_close(found, near.mean(dim=0), atol=1e-5, rtol=0)


def test_places_are_given_for_the_least_distance_in_total() -> None:
    """Both previous centroids are closer to 6."""
    before, local = torch.tensor([[0.0], [10.0]]), torch.tensor([[[100.0], [6.0]]])
    found = clustered_centroids(local, torch.ones(1, 2, dtype=torch.float64), before, 0)
    assert found.tolist() == [[6.0], [100.0]]


def test_centroids_without_support_are_not_clustered() -> None:
    before = torch.tensor([[0.0], [10.0]])
    local = torch.tensor([[[1.0], [900.0]], [[2.0], [11.0]], [[3.0], [13.0]]])
    supports = torch.ones(3, 2, dtype=torch.float64)
    supports[0, 1] = 0
    assert clustered_centroids(local, supports, before, 0).tolist() == [[2.0], [12.0]]


def test_old_centroids_stay_where_there_are_fewer_new_ones() -> None:
    before = torch.tensor([[0.0], [10.0], [20.0]])
    local = torch.tensor([[[19.0], [1.0], [5.0]]])
    supports = torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64)
    assert clustered_centroids(local, supports, before, 0).tolist() == [[1.0], [10.0], [19.0]]
    assert before.tolist() == [[0.0], [10.0], [20.0]]


# --- whole runs --------------------------------------------------------------------------------


@BOTH
def test_a_round_combines_what_each_client_finds(method: str) -> None:
    config = config_of(method, rounds=2)
    clients = clients_of_sizes(60, 25, 40)
    before = start_of(config)
    for number, (state, report) in enumerate(run(config, clients)):
        found = [fuzzy(config, clients[i], before) for i in (0, 2, 1)]
        local = torch.stack([own.centroids for own in found])
        supports = torch.stack([own.supports for own in found])
        seed = Randomness(0, number).integer("k-means")
        combine = support_weighted_mean if method == "ffcm-avg" else clustered_centroids
        expected = combine(local, supports, before, seed)
        assert torch.equal(centroids_of(state), expected)
        assert report.figures == {"moved": float((expected - before).abs().max())}
        before = expected


@BOTH
def test_one_client_with_everything_is_plain_fuzzy_c_means(method: str) -> None:
    config, clients = config_of(method), clients_of_sizes(150)
    found = fuzzy(config, clients[0], start_of(config))
    assert found.supports.min() > 1
    assert found.iterations < 200
    rounds = run(config, clients)
    np.testing.assert_array_equal(ordered(centroids_of(rounds[0][0])), ordered(found.centroids))
    # Where it has converged the second round finds nothing new, and there is no third.
    assert len(rounds) == 2
    assert rounds[1][1].figures["moved"] <= 1e-4 < rounds[0][1].figures["moved"]


@BOTH
def test_the_run_ends_where_the_centroids_have_not_moved(method: str) -> None:
    algorithm = federation(config_of(method), clients_of_sizes(5)).algorithm
    centroids = torch.zeros(CLUSTERS, PIXELS)
    assert not algorithm.has_converged(CentroidState(centroids))
    assert not algorithm.has_converged(CentroidState(centroids, moved=1.1e-4))
    assert algorithm.has_converged(CentroidState(centroids, moved=1e-4))
    assert algorithm.has_converged(CentroidState(centroids, moved=0.0))


@BOTH
def test_clients_that_hold_the_same_are_as_one(method: str) -> None:
    (one,) = clients_of_sizes(80)
    same = [replace(one, id=number) for number in range(3)]
    alone = run(config_of("ffcm-avg", rounds=3), [one])
    together = run(config_of(method, rounds=3), same)
    assert len(alone) == len(together)
    for (first, _), (second, _) in zip(alone, together, strict=True):
        expected = ordered(centroids_of(first))
        np.testing.assert_allclose(ordered(centroids_of(second)), expected, atol=1e-5)


@BOTH
def test_while_others_are_absent_a_client_alone_does_not_end_the_run(method: str) -> None:
    """Two consecutive rounds with the same client move nothing, but other clients would."""
    config = config_of(method, rounds=8, dropout=0.6)
    whole = federation(config, clients_of_sizes(30, 40, 35))
    present = [
        whole.availability.taking_part([0, 1, 2], whole.randomness.at_round(number))
        for number in range(8)
    ]
    assert any(len(now) == 1 and now == before for before, now in pairwise(present))
    rounds = whole.run(whole.algorithm.initial_state(whole.randomness))
    assert sum(1 for _ in rounds) == 8


@BOTH
def test_centroids_go_down_and_centroids_with_supports_come_up(method: str) -> None:
    for _, report in run(config_of(method, rounds=2), clients_of_sizes(30, 40, 2)):
        assert report.bytes_down == 3 * CLUSTERS * PIXELS * 4
        assert report.bytes_up == 3 * CLUSTERS * (PIXELS * 4 + 8)


@BOTH
def test_awkward_clients_do_not_stop_a_run(method: str) -> None:
    black = Client(9, "black", torch.zeros(3, *SHAPE, dtype=torch.uint8))
    for state, report in run(config_of(method, rounds=3), [*clients_of_sizes(40, 1, 2), black]):
        assert not report.refused
        assert torch.isfinite(centroids_of(state)).all()
        assert centroids_of(state).shape == (CLUSTERS, PIXELS)


def test_centroids_start_anywhere_in_the_unit_cube() -> None:
    start = start_of(config_of("ffcm-avg"))
    assert start.shape == (CLUSTERS, PIXELS)
    assert 0 <= float(start.min()) < 0.05
    assert 0.95 < float(start.max()) <= 1
    assert torch.equal(start, start_of(config_of("ffcm-avg")))
    assert not torch.equal(start, start_of(config_of("ffcm-avg", seed=1)))


# --- updates that must be refused --------------------------------------------------------------

CENTROIDS = torch.zeros(CLUSTERS, PIXELS)
SUPPORTS = torch.tensor([1.0, 0.0, 2.0, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (FuzzyUpdate(torch.zeros(2, PIXELS), SUPPORTS), "'centroids' is"),
        (FuzzyUpdate(torch.zeros(CLUSTERS, 4), SUPPORTS), "'centroids' is"),
        (FuzzyUpdate(CENTROIDS.double(), SUPPORTS), "'centroids' is"),
        (FuzzyUpdate(CENTROIDS, SUPPORTS[:2]), "'supports' is"),
        (FuzzyUpdate(CENTROIDS, SUPPORTS.float()), "'supports' is"),
        (FuzzyUpdate(CENTROIDS, SUPPORTS - 0.5), "must not be negative"),
        (FuzzyUpdate(CENTROIDS, 0 * SUPPORTS), "nor all of them 0"),
        (FuzzyUpdate(CENTROIDS, SUPPORTS * torch.nan), "supports holds NaN"),
        (FuzzyUpdate(CENTROIDS + torch.inf, SUPPORTS), "centroids holds NaN or Inf"),
    ],
)
def test_an_update_that_cannot_be_used_is_refused(update: FuzzyUpdate, message: str) -> None:
    algorithm = made(config_of("ffcm-avg"), CLUSTERS)
    assert isinstance(algorithm, FFCM)
    state = CentroidState(CENTROIDS, moved=0.5)
    assert count_bytes(pack(algorithm.broadcast(state))) == CLUSTERS * PIXELS * 4
    good = FuzzyUpdate(CENTROIDS + 7, SUPPORTS)
    assert refusal(algorithm, state, good, samples=4) is None
    assert "counts 4 samples, and the client holds 3" in (
        refusal(algorithm, state, good, samples=3) or ""
    )
    assert message in (refusal(algorithm, state, update, samples=4) or "")
