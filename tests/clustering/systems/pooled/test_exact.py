"""Steps over clients are those of scikit-learn on all vectors in one place, from the same start."""

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
from sklearn.mixture import GaussianMixture

from ccfcpp.clustering.client_data import make_client
from ccfcpp.clustering.kmeans.fuzzy import fuzzy_c_means
from ccfcpp.clustering.systems.pooled.mixture import Mixture, log_probabilities
from ccfcpp.clustering.systems.shallow.pixels import CentroidState
from ccfcpp.core.config import Tree
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AbsentClientError, Task
from ccfcpp.engine.stages import Deliver, ExchangeRequest
from ccfcpp.engine.transport import Reply
from tests.support.vectors import ROUNDING, SECURE, Points, after, blobs, experiment, there

K = 3
STEPS = 4
CLIENTS = 4
ABSENT: Tree = {"availability": {"disconnection_rate": 0.25}}
TRIED: Tree = {"means": {"starts": 4}}
SETTINGS: tuple[Tree, ...] = ({}, ABSENT, SECURE, SECURE | ABSENT)
seeds = st.integers(0, 10**6)
some = settings(max_examples=12, deadline=None)


def owners_of(samples: int, seed: int) -> np.ndarray:
    """A random partition, in which each client holds something."""
    drawn = np.random.default_rng(seed).integers(CLIENTS, size=samples)
    drawn[:CLIENTS] = np.arange(CLIENTS)
    return drawn


def bound(tree: Tree) -> float:
    return ROUNDING if "privacy" in tree else 1e-6


def starts(points: Points, seed: int) -> Points:
    return points[np.random.default_rng(seed).permutation(len(points))[:K]]


@pytest.mark.parametrize("tree", SETTINGS)
@given(seed=seeds)
@some
def test_fed_km_is_lloyds_algorithm(tree: Tree, seed: int) -> None:
    points, owners = blobs(80, 3, K, seed), owners_of(80, seed)
    run = experiment("fed-km", points, owners, K, tree)
    pooled = points[there(run)]
    start = starts(pooled, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(K, init=start, n_init=1, max_iter=STEPS, tol=0, algorithm="lloyd")
        wanted = model.fit(pooled)
    found = after(run, CentroidState(torch.from_numpy(start)), STEPS)
    np.testing.assert_allclose(found.centroids, wanted.cluster_centers_, atol=bound(tree))
    inside = make_client(run.evaluator.data, -1, "all", torch.from_numpy(there(run)))
    labels = run.algorithm.assign(found, inside)
    assert np.array_equal(labels, wanted.predict(pooled)) or "privacy" in tree


@pytest.mark.parametrize(("least", "told"), [(0, [15, 5]), (1, [15, 5]), (2, [15, 0])])
def test_fed_em_sends_no_products_of_fewer_points_than_dimensions(
    least: int, told: list[float]
) -> None:
    near = torch.from_numpy(blobs(20, 6, 1, 0))
    points = near - near.mean(dim=0) + 1000.0 * (torch.arange(20) >= 15).unsqueeze(1)
    plain: Tree = {"vectors": {"scale": "none"}}
    run = experiment("fed-em", points.numpy(), owners_of(20, 0), 2, plain)
    work = run.algorithm.client_side(ClientContext(20, 1, least=least)).works["expectation"]
    means = Mixture(torch.tensor([[0.0], [1000.0]]).double().expand(2, 6))
    client = Client(0, "", points)
    found: Any = work.local_sum(Task("", "", 0, 0), means, [client], Randomness(0))
    assert found.counts.tolist() == told
    assert found.scatters.flatten(1).any(dim=1).tolist() == [count > 0 for count in told]


@pytest.mark.parametrize("tree", [{}, SECURE])
@given(seed=seeds, m=st.sampled_from([1.1, 1.5, 2.0, 4.0]))
@some
def test_fed_fcm_is_fuzzy_c_means(tree: Tree, seed: int, m: float) -> None:
    points, owners = blobs(60, 3, K, seed), owners_of(60, seed)
    run = experiment("fed-fcm", points, owners, K, {"fuzzy": {"m": m}}, tree)
    start = torch.from_numpy(starts(points, seed))
    wanted = fuzzy_c_means(torch.from_numpy(points), start, m=m, tolerance=0, iterations=STEPS)
    found = after(run, CentroidState(start), STEPS)
    np.testing.assert_allclose(found.centroids, wanted.centroids, atol=50 * bound(tree))
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(len(points)))
    degrees = run.algorithm.probabilities(found, everyone)
    assert degrees is not None
    np.testing.assert_allclose(degrees.sum(dim=1), 1, atol=1e-9)


@pytest.mark.parametrize("tree", SETTINGS)
@pytest.mark.parametrize("kind", ["full", "diag"])
@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_fed_em_is_expectation_maximisation(tree: Tree, kind: str, seed: int) -> None:
    points, owners = blobs(120, 2, K, seed), owners_of(120, seed)
    run = experiment("fed-em", points, owners, K, {"mixture": {"covariance": kind}}, tree)
    pooled = points[there(run)]
    d, spread = points.shape[1], np.var(pooled, axis=0)
    matrix = np.diag(spread) if kind == "full" else spread
    begin = Mixture(
        torch.from_numpy(starts(pooled, seed)),
        weights=torch.full((K,), 1 / K, dtype=torch.float64),
        covariances=torch.from_numpy(np.stack([matrix] * K)),
    )
    precisions = np.stack([np.linalg.inv(matrix) if kind == "full" else 1 / spread] * K)
    model = GaussianMixture(
        K,
        covariance_type=kind,
        max_iter=STEPS,
        tol=0,
        weights_init=begin.weights,
        means_init=begin.centroids,
        precisions_init=precisions,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(pooled)
    found = after(run, begin, STEPS)
    # Secure sums round what an all but empty component is made of.
    if "privacy" in tree and model.weights_.min() < 0.05:
        return
    scale = 100 if "privacy" in tree else 1
    np.testing.assert_allclose(found.centroids, model.means_, atol=scale * bound(tree))
    np.testing.assert_allclose(found.weights, model.weights_, atol=scale * bound(tree))
    np.testing.assert_allclose(found.covariances, model.covariances_, atol=scale * bound(tree) * d)
    everyone = make_client(run.evaluator.data, -1, "all", torch.from_numpy(there(run)))
    degrees = run.algorithm.probabilities(found, everyone)
    assert degrees is not None
    np.testing.assert_allclose(degrees, model.predict_proba(pooled), atol=scale * bound(tree) * 10)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_a_constant_column_changes_nothing(kind: str) -> None:
    points, owners = blobs(80, 2, K, seed=1), owners_of(80, seed=1)
    tree: Tree = {
        "mixture": {"covariance": kind, "regularisation": 0.0, "tolerance": 1e-9, "rounds": 500}
    }
    wider = np.column_stack([points, np.full(80, 4.0)])
    states = [experiment("fed-em", each, owners, K, tree).train()[0] for each in (points, wider)]
    narrow, wide = (np.sort(state.weights) for state in states)
    np.testing.assert_allclose(wide, narrow, atol=1e-3)  # each has converged


@given(seed=seeds, diagonal=st.booleans())
@some
def test_densities_are_those_of_scipy(seed: int, diagonal: bool) -> None:
    from scipy.stats import multivariate_normal

    source = np.random.default_rng(seed)
    points, means = source.normal(size=(9, 3)), source.normal(size=(2, 3))
    roots = source.normal(size=(2, 3, 3))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(3)
    if diagonal:
        matrices = matrices * np.eye(3)
    weights = np.array([0.3, 0.7])
    known = np.diagonal(matrices, axis1=1, axis2=2) if diagonal else matrices
    first, second, third = (
        torch.from_numpy(np.ascontiguousarray(x)) for x in (means, weights, known)
    )
    mixture = Mixture(first, weights=second, covariances=third)
    found = log_probabilities(torch.from_numpy(points), mixture)
    for j in range(2):
        wanted = multivariate_normal(means[j], matrices[j]).logpdf(points) + np.log(weights[j])
        np.testing.assert_allclose(found[:, j], wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "tree"),
    [("fed-km", {}), ("fed-km", TRIED), ("fed-fcm", {}), ("fed-fcm", TRIED), ("fed-em", {})],
)
@given(seed=seeds)
@settings(max_examples=4, deadline=None)
def test_whole_runs_do_not_depend_on_the_partition(method: str, tree: Tree, seed: int) -> None:
    points = blobs(150, 3, K, seed)
    first, second = (
        experiment(method, points, owners, K, tree)
        for owners in (owners_of(150, seed), np.zeros(150, np.int64))
    )
    ends = [run.train()[0] for run in (first, second)]
    # A sum in another order may end a run a round earlier or later, at the tolerance.
    atol = {"fed-km": 1e-6, "fed-fcm": 1e-4, "fed-em": 1e-1}[method]
    np.testing.assert_allclose(ends[0].centroids, ends[1].centroids, atol=atol)


@pytest.mark.parametrize(
    ("method", "tried"),
    [("fed-km", {}), ("fed-km", TRIED), ("fed-fcm", {}), ("fed-em", {}), ("ffcm-avg", {})],
)
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_a_start_that_nobody_answers_begins_again(method: str, tried: Tree, scale: str) -> None:
    tree: Tree = {"vectors": {"scale": scale}, **tried}
    run = experiment(method, blobs(150, 3, K, 0), owners_of(150, 0), K, tree)
    first = run.algorithm.initial_state(run.randomness)
    silent = run.federation()
    silent.stages = [Silent()]
    state, report = silent.run_round(first, 0)
    assert len(report.absent) == CLIENTS
    assert not run.algorithm.knows_clusters(state)
    answered, whole = run.federation(), run.federation()
    (state, _), (wanted, _) = answered.run_round(state, 1), whole.run_round(first, 1)
    assert torch.equal(state.centroids, wanted.centroids)
    assert run.algorithm.knows_clusters(answered.run_round(state, 2)[0])


@pytest.mark.parametrize("factor", [-1, 3])
@pytest.mark.parametrize("method", ["fed-km", "fed-fcm", "fed-em"])
def test_counts_that_no_client_can_have_are_refused(method: str, factor: float) -> None:
    run = experiment(method, blobs(150, 3, K, 0), owners_of(150, 0), K)
    first = run.algorithm.initial_state(run.randomness)
    lied = run.federation()
    lied.stages = [Lying(factor)]
    for number, state in enumerate((first, run.federation().run_round(first, 0)[0])):
        after_lies, report = lied.run_round(state, number)
        assert after_lies is state
        reasons = [reason for each in report.refused.values() for reason in each]
        assert len(report.refused) == CLIENTS
        assert all("it counts" in reason for reason in reasons)


@dataclass
class Lying:
    """A stage at which clients count other numbers than they have."""

    factor: float

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        for reply in inner(request):
            update: Any = reply.update
            counts = update.counts * self.factor
            yield replace(reply, update=replace(update, counts=counts))


class Silent:
    """A stage at which every answer is lost."""

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        for reply in inner(request):
            yield replace(reply, update=AbsentClientError("it did not answer"))


@pytest.mark.parametrize("tree", [{}, SECURE, TRIED])
def test_fed_km_comes_close_to_the_best_of_ten_starts(tree: Tree) -> None:
    points = blobs(600, 4, 6, 3)
    run = experiment("fed-km", points, owners_of(600, 3), 6, tree)
    state, _ = run.train()
    best = KMeans(6, n_init=10, random_state=0).fit(points)
    squares = ((points[:, None] - np.asarray(state.centroids)[None]) ** 2).sum(axis=2)
    assert squares.min(axis=1).sum() <= 1.001 * best.inertia_
