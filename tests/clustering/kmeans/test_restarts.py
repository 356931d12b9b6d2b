"""Several starts of k-means side by side, against k-means of all points from each start."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ccfcpp.clustering.kmeans.centroids import ClusterSums
from ccfcpp.clustering.kmeans.restarts import (
    STEPS,
    MoveTrials,
    Trials,
    between_cluster_variance,
)
from ccfcpp.clustering.systems.pooled.means import ExactMeans
from ccfcpp.clustering.systems.shallow.pixels import CentroidState
from ccfcpp.core.config import Tree
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AbsentClientError, RefusedUpdateError
from ccfcpp.engine.stages import Deliver, ExchangeRequest
from ccfcpp.engine.transport import Reply
from tests.support.vectors import SECURE, Points, blobs, experiment

K, STARTS, CLIENTS = 4, 5, 3
TRIED: Tree = {"means": {"starts": STARTS}}
seeds = st.integers(0, 10**6)


def drawn(points: Points, seed: int) -> torch.Tensor:
    """Points as centroids, for each start: (starts, k, d)."""
    source = np.random.default_rng(seed)
    each = [points[source.permutation(len(points))[:K]] for _ in range(STARTS)]
    return torch.from_numpy(np.stack(each))


@pytest.mark.parametrize("tree", [{}, SECURE])
@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_the_start_of_the_least_squared_error_goes_on(tree: Tree, seed: int) -> None:
    points = blobs(90, 3, K, seed)
    owners = np.random.default_rng(seed).permutation(np.arange(90) % CLIENTS)
    run = experiment("fed-km", points, owners, K, tree, TRIED)
    starts, models = drawn(points, seed), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for start in starts.numpy():
            model = KMeans(K, init=start, n_init=1, max_iter=STEPS, tol=0, algorithm="lloyd")
            models.append(model.fit(points))
    federation = run.federation()
    trials = [MoveTrials[Any](step == STEPS) for step in range(1, STEPS + 1)]
    run.algorithm.exchanges = lambda number, state: trials  # type: ignore[method-assign]
    state, report = federation.run_round(CentroidState(trials=starts), 1)
    assert report.refused == {}
    assert state.trials is None
    found = ((points[:, None] - state.centroids.numpy()[None]) ** 2).sum(axis=2).min(axis=1).sum()
    assert found <= min(model.inertia_ for model in models) * (1 + 1e-5)


@given(seed=seeds)
@settings(max_examples=25)
def test_scatter_between_and_squared_error_add_up(seed: int) -> None:
    points = blobs(40, 3, K, seed)
    source = np.random.default_rng(seed)
    sums, counts, errors = [], [], []
    for _ in range(STARTS):
        labels, error = source.integers(K, size=len(points)), 0.0
        for j in range(K):
            own = points[labels == j]
            sums.append(own.sum(axis=0))
            counts.append(float(len(own)))
            error += float(((own - own.mean(axis=0)) ** 2).sum()) if len(own) else 0.0
        errors.append(error)
    total = ClusterSums(torch.from_numpy(np.stack(sums)), torch.tensor(counts).double())
    whole = float(((points - points.mean(axis=0)) ** 2).sum())
    found = len(points) * between_cluster_variance(total, STARTS).numpy()
    np.testing.assert_allclose(found + errors, whole, rtol=1e-9)


def test_the_first_of_equal_starts_is_taken() -> None:
    sums = torch.tensor([[0.0], [10.0], [10 + 1e-11], [0.0]], dtype=torch.float64)
    total = ClusterSums(sums, torch.full((4,), 5.0, dtype=torch.float64))
    first = torch.tensor([[[0.5], [1.5]], [[1.5], [0.5]]], dtype=torch.float64)
    state, _ = MoveTrials[CentroidState](True).aggregate(
        CentroidState(trials=first), [total], Randomness(0)
    )
    assert state.centroids is not None
    assert state.centroids.flatten().tolist() == [0.0, 2.0]


def test_a_start_does_not_win_by_points_that_others_keep_back() -> None:
    """Five points of the second cluster of the first start are kept back, and it is better."""
    means = torch.tensor([[0.0], [10.0], [0.6], [9.4]], dtype=torch.float64)
    counts = torch.tensor([10.0, 5.0, 10.0, 10.0], dtype=torch.float64)
    better, other = between_cluster_variance(ClusterSums(means * counts[:, None], counts), 2)
    assert better > other
    assert 15 * better < 20 * other


@pytest.mark.parametrize("lost", [1, 2, STEPS])
def test_a_lost_step_of_the_trials_is_lost_alone(lost: int) -> None:
    points = blobs(90, 3, K, 0)
    run = experiment("fed-km", points, np.arange(90) % CLIENTS, K, TRIED)
    federation = run.federation()
    federation.stages = [SilentOnce(lost)]
    state, _ = federation.run_round(run.algorithm.initial_state(run.randomness), 0)
    assert run.algorithm.knows_clusters(state)
    best = KMeans(K, n_init=10, random_state=0).fit(points).inertia_
    found = ((points[:, None] - state.centroids.numpy()[None]) ** 2).sum(axis=2).min(axis=1).sum()
    assert found <= 1.05 * best


@dataclass
class SilentOnce:
    """A stage at which all answers of one step of the trials are lost."""

    step: int
    steps: int = 0

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        self.steps += request.exchange.name == "trials"
        for reply in inner(request):
            silent = request.exchange.name == "trials" and self.steps == self.step
            yield replace(reply, update=AbsentClientError("lost")) if silent else reply


def test_each_start_counts_no_more_samples_than_there_are() -> None:
    work = MoveTrials[CentroidState](False)
    message = Trials(torch.zeros(2, 2, 1, dtype=torch.float64))
    sums = torch.zeros(4, 1, dtype=torch.float64)
    member = Member(0, "a", 6)

    def update(*counts: float) -> ClusterSums:
        return ClusterSums(sums, torch.tensor(counts, dtype=torch.float64))

    work.check(message, update(4, 2, 3, 3), [member])
    for counts in ((4, 3, 3, 3), (3, 3, 4, 3), (-1, 3, 3, 3)):
        with pytest.raises(RefusedUpdateError, match="it counts"):
            work.check(message, update(*counts), [member])


@pytest.mark.parametrize("level", ["client", "image"])
def test_with_noise_there_is_one_start(level: str) -> None:
    points, owners = blobs(90, 3, K, 0), np.arange(90) % CLIENTS
    noise: Tree = {"privacy": {"level": level, "epsilon": 5.0}}
    for tree, tried in (({}, 0), (TRIED, STEPS), (TRIED | SECURE, STEPS), (noise, 0)):
        run = experiment("fed-km", points, owners, K, tree)
        first = run.algorithm.plan(run.algorithm.initial_state(run.randomness))[0]
        assert sum(work.exchange.name == "trials" for work in first) == tried
    assert ExactMeans(run.evaluator.problem, 10).starts == 1
    assert ExactMeans(replace(run.evaluator.problem, noisy=False), 10).starts == 10
