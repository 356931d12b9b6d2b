"""What clients prepare together is what scikit-learn prepares in one place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.client_data import make_client
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.preprocessing.parameters import PreprocessingParams
from ccfcpp.clustering.preprocessing.phases import PhasedClustering
from ccfcpp.clustering.preprocessing.vectors import VectorPhase
from ccfcpp.clustering.run import ClusteringRun
from ccfcpp.core.config import Tree, VectorsConfig
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.payload import pack, unpack
from tests.support.federation import CPU, federated, over_a_wire
from tests.support.vectors import ROUNDING, SECURE, Points, blobs, experiment, plan, there

ABSENT: Tree = {"availability": {"disconnection_rate": 0.25}}
SETTINGS: tuple[Tree, ...] = ({}, ABSENT, SECURE, SECURE | ABSENT)
CASES: dict[str, tuple[Tree, list[Any]]] = {
    "standard": ({"scale": "standard"}, [StandardScaler()]),
    "unit": ({"scale": "unit"}, [Normalizer()]),
    "components": ({"components": 2}, [PCA(2)]),
    "whitened": (
        {"scale": "standard", "components": 2, "whiten": True},
        [StandardScaler(), PCA(2, whiten=True)],
    ),
    "of unit length": ({"scale": "unit", "components": 3}, [Normalizer(), PCA(3)]),
    "filled": (
        {"missing": "mean", "scale": "standard"},
        [SimpleImputer(), StandardScaler()],
    ),
    "filled, of unit length": (
        {"missing": "mean", "scale": "unit", "components": 2},
        [SimpleImputer(), Normalizer(), PCA(2)],
    ),
}


def owners_of(samples: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(4, size=samples)
    drawn[:4] = np.arange(4)
    return drawn


def with_gaps(points: Points, seed: int) -> Points:
    gaps = np.random.default_rng(seed).random(points.shape) < 0.1
    gaps[:4] = False
    return np.where(gaps, np.nan, points)


def prepared_by(run: ClusteringRun) -> Points:
    """All vectors, as the clients prepare them in the first round."""
    state = run.algorithm.initial_state(run.randomness)
    state, report = run.federation().run_round(state, 0)
    assert report.refused == {}
    assert report.bytes_up > 0
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(len(run.data)))
    found = run.algorithm.represent(state, everyone)
    assert found is not None
    return found.numpy()


@pytest.mark.parametrize("tree", SETTINGS)
@pytest.mark.parametrize("case", CASES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_it_is_scikit_learns_on_all_vectors(tree: Tree, case: str, seed: int) -> None:
    prepared, steps = CASES[case]
    points = blobs(60, 4, 3, seed)
    if "missing" in prepared:
        points = with_gaps(points, seed)
    run = experiment("fed-km", points, owners_of(60, seed), 3, {"vectors": prepared}, tree)
    found = prepared_by(run)
    fitted = make_pipeline(*steps).fit(points[there(run)])
    wanted = fitted.transform(points)
    # Two components of almost the same variance are told apart by digits that sums may lose.
    if "components" in prepared:
        variances = fitted[-1].explained_variance_
        if np.min(-np.diff(variances) / variances[:-1]) < 0.05:
            return
    bound = 200 * ROUNDING if "privacy" in tree else 1e-6
    np.testing.assert_allclose(found, wanted, atol=bound)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_large_mean_costs_no_digits(offset: float) -> None:
    points = np.random.default_rng(0).normal(offset, 1, (50, 2))
    run = experiment("fed-km", points, owners_of(50, 0), 2, {"vectors": {"scale": "standard"}})
    wanted = StandardScaler().fit_transform(points)
    np.testing.assert_allclose(prepared_by(run), wanted, atol=1e-6)


@pytest.mark.parametrize("other", [{}, {"components": 2, "whiten": True}])
@pytest.mark.parametrize("value", [0.0, 3.7, 1e8])
def test_a_constant_column_becomes_zero(value: float, other: Tree) -> None:
    points = blobs(40, 2, 2, 0)
    points = np.column_stack([points, np.full(40, value)])
    tree = {"vectors": {"scale": "standard", **other}}
    found = prepared_by(experiment("fed-km", points, owners_of(40, 0), 2, tree))
    assert np.isfinite(found).all()
    if not other:
        np.testing.assert_allclose(found[:, 2], 0, atol=1e-9)


def test_columns_may_be_of_very_different_size() -> None:
    points = blobs(60, 3, 2, 1) * np.array([1e-6, 1.0, 1e6])
    tree = {"vectors": {"scale": "standard", "components": 3}}
    found = prepared_by(experiment("fed-km", points, owners_of(60, 1), 2, tree))
    wanted = make_pipeline(StandardScaler(), PCA(3)).fit_transform(points)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("size", [1e-140, 1e-25, 1e-15, 1e30, 1e140])
@pytest.mark.parametrize("case", ["standard", "unit", "whitened"])
def test_columns_may_be_of_any_size(case: str, size: float) -> None:
    """Beside a constant one, which stays constant."""
    points = np.column_stack([blobs(60, 3, 2, 1) * size, np.full(60, 3 * size)])
    prepared, steps = CASES[case]
    found = prepared_by(experiment("fed-km", points, owners_of(60, 1), 2, {"vectors": prepared}))
    wanted = make_pipeline(*steps).fit_transform(points / size)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("vectors", [{}, {"components": 1}])
def test_vectors_beyond_all_centroids_are_refused_before_the_run(vectors: Tree) -> None:
    points, owners = blobs(20, 2, 2, 0), owners_of(20, 0)
    with pytest.raises(UsageError, match=r"as far as .*e\+\d+, and without scaling 1e\+15 is the"):
        experiment("fed-km", points * 1e17, owners, 2, {"vectors": vectors})
    experiment("fed-km", points * 1e12, owners, 2, {"vectors": vectors})
    experiment("fed-km", points * 1e17, owners, 2, {"vectors": {"scale": "standard"}})


def test_more_components_than_columns_are_refused() -> None:
    with pytest.raises(UsageError, match=r"vectors\.components = 5 is more than the 2 columns"):
        experiment("fed-km", blobs(9, 2, 2, 0), owners_of(9, 0), 2, {"vectors": {"components": 5}})


@pytest.mark.parametrize("method", ["km", "k-fed", "ffcm-km", "fed-em", "fed-scan"])
def test_every_system_sees_prepared_vectors(method: str) -> None:
    points = blobs(80, 3, 3, 5)
    trees: tuple[Tree, ...] = ({"vectors": {"scale": "standard"}},)
    if method == "fed-scan":
        trees += ({"scan": {"steps": 4, "batch": 40, "hidden": 8, "latent": 4}},)
    run = experiment(method, points, owners_of(80, 5), 3, *trees)
    state, _ = run.train()
    assert set(run.evaluator.assignments(state).tolist()) <= {0, 1, 2}
    wanted = StandardScaler().fit_transform(points)
    assert isinstance(run.algorithm, PhasedClustering)
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(80))
    prepared = run.algorithm.preprocess(state, everyone)
    np.testing.assert_allclose(prepared.images, wanted, atol=1e-9)
    again = run.algorithm.assign_by_model(run.algorithm.final_model(state), run.clients[0])
    assert torch.equal(again, run.algorithm.assign(state, run.clients[0]))


@pytest.mark.parametrize("case", CASES)
def test_a_state_that_was_packed_goes_on(case: str) -> None:
    """As after an interruption: before anything is known, and with a preparation."""
    points = with_gaps(blobs(60, 5, 3, 0), 0) if "filled" in case else blobs(60, 5, 3, 0)
    tree: Tree = {"vectors": CASES[case][0], "means": {"rounds": 3}}
    run = experiment("fed-km", points, owners_of(60, 0), 3, tree)
    state, kind = run.algorithm.initial_state(run.randomness), run.algorithm.state_type
    for number in range(2):
        whole, _ = run.federation().run_round(state, number)
        state, report = run.federation().run_round(unpack(kind, pack(state)), number)
        assert report.refused == {}
        assert torch.equal(state.centroids, whole.centroids)
    final_model = unpack(run.algorithm.final_model_type, pack(run.algorithm.final_model(state)))
    new = Client(9, "new", torch.from_numpy(points))
    assigned = run.algorithm.assign_by_model(final_model, new)
    assert torch.equal(assigned, run.algorithm.assign(state, Client(9, "new", new.images)))


@pytest.mark.parametrize("vectors", [{"scale": "standard", "components": 2}, {"scale": "unit"}])
@pytest.mark.parametrize("method", ["fed-km", "ffcm-avg", "k-fed", "fed-em", "fed-scan"])
def test_over_a_wire_every_bit_is_that_of_one_process(method: str, vectors: Tree) -> None:
    tree: Tree = {
        "vectors": vectors,
        "means": {"rounds": 2},
        "mixture": {"rounds": 2},
        "ffcm": {"rounds": 2},
        "scan": {"steps": 4, "steps_per_round": 2, "batch": 30, "hidden": 8, "latent": 4},
    }
    config = plan(method, 3, {key: own for key, own in tree.items() if key in HEEDED[method]})
    parts = torch.split(torch.from_numpy(blobs(63, 3, 3, 2)), [30, 21, 12])

    def clients() -> list[Client]:
        return [Client(number, f"client {number}", part) for number, part in enumerate(parts)]

    def algorithm() -> ClusteringAlgorithm[Any]:
        return make_algorithm(Problem(config, (3,), 3, CPU, 63))

    whole = federated(method, algorithm(), clients())
    wired = over_a_wire(method, algorithm(), algorithm(), clients())
    state = whole.algorithm.initial_state(Randomness(0))
    expected, found = list(whole.run(state)), list(wired.run(state))
    assert len(found) == len(expected)
    for (one, first), (other, second) in zip(expected, found, strict=True):
        assert second.refused == {}
        assert (first.bytes_up, first.bytes_down) == (second.bytes_up, second.bytes_down)
        packed = pack(one), pack(other)
        assert packed[0].keys() == packed[1].keys()
        assert all(torch.equal(packed[0][name], packed[1][name]) for name in packed[0])


HEEDED = {
    "fed-km": {"vectors", "means"},
    "fed-em": {"vectors", "mixture"},
    "ffcm-avg": {"vectors", "ffcm"},
    "k-fed": {"vectors"},
    "fed-scan": {"vectors", "scan"},
}


def test_a_column_of_few_values_is_not_told() -> None:
    """The sum of a column in which one row alone has a value is this value."""
    values = torch.arange(24.0).view(6, 4)
    values[1:, 0] = torch.nan
    values[4:, 2] = torch.nan
    client = Client(0, "a", values)
    (work,) = VectorPhase(VectorsConfig(missing="mean"), 4).client_works(
        ClientContext(6, 1, least=5)
    )
    told: Any = work.local_sum(Task("", "", 0, 0), PreprocessingParams(), [client], Randomness(0))
    assert told.counts.tolist() == [0, 6, 0, 6]
    assert told.sums.tolist() == [0, float(values[:, 1].sum()), 0, float(values[:, 3].sum())]


@pytest.mark.parametrize(("least", "told"), [(0, 5), (1, 5), (2, 0)])
def test_no_products_of_fewer_rows_than_columns_are_sent(least: int, told: int) -> None:
    phase, known = VectorPhase(VectorsConfig(components=2), 6), PreprocessingParams()
    client, task = Client(0, "a", torch.rand(5, 6)), Task("", "", 0, 0)
    known = replace(known, mean=torch.zeros(6).double())
    work: Any = phase.client_works(ClientContext(5, 1, least=least))[-1]
    found = work.local_sum(task, known, [client], Randomness(0))
    assert (found.counts.tolist(), bool(found.sums.any())) == ([told], told > 0)
    server = phase.last_exchanges()[-1]
    if told:
        server.aggregate(known, [found], Randomness(0))
    else:
        with pytest.raises(FederationError, match="as many rows as there are columns, 6"):
            server.aggregate(known, [found], Randomness(0))
