"""Where k-means begins: codebooks, their number of clusters, and sums that cannot be."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris, load_wine, make_blobs
from sklearn.preprocessing import StandardScaler

from ccfcpp.clustering.evaluation.server import CellsServerWork, EvaluationMessage
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, sum_by_group
from ccfcpp.clustering.kmeans.codebook import Codebook, codebook_kmeans, split_cells
from ccfcpp.core.config import Tree
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError
from ccfcpp.engine.stages import Deliver, ExchangeRequest
from tests.support.vectors import Points, blobs, experiment

SOURCE = np.random.default_rng(0)
FEW: dict[str, Points] = {
    "5 rows": SOURCE.normal(0, 10, (5, 3)),
    "6 rows": SOURCE.normal(0, 10, (6, 3)),
    "30 rows": SOURCE.normal(0, 10, (30, 3)),
    "powers of ten": np.concatenate([10.0 ** np.arange(12)[:, None]] * 2, axis=1),
    "far from 0": SOURCE.normal(0, 1, (8, 2)) + 1e9,
    "four times each": np.repeat(SOURCE.normal(0, 1, (7, 3)), 4, axis=0),
}


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("method", ["fed-km", "fed-fcm", "fed-em", "ffcm-km"])
@pytest.mark.parametrize("name", FEW)
def test_there_are_k_clusters_where_there_are_k_points(
    name: str, method: str, clients: int
) -> None:
    points = FEW[name]
    distinct = len(np.unique(points, axis=0))
    run = experiment(method, points, np.arange(len(points)) % clients, max(2, distinct * 2 // 3))
    state, _ = run.train()
    assert len(state.centroids) == run.evaluator.clusters
    if (method, clients) != ("ffcm-km", 3):  # whose server sees the clients' centroids alone
        assert len(set(run.evaluator.assignments(state).tolist())) == run.evaluator.clusters


@pytest.mark.parametrize("method", ["fed-km", "fed-em"])
def test_duplicates_give_no_cluster_of_their_own(method: str) -> None:
    points = np.repeat(SOURCE.normal(0, 1, (4, 3)), 5, axis=0)
    state, _ = experiment(method, points, np.arange(20) % 2, 6).train()
    assert len(state.centroids) == 4


@pytest.mark.parametrize(("samples", "clients"), [(24, 1), (40, 2)])
def test_cells_that_clients_keep_to_themselves_leave_a_start(samples: int, clients: int) -> None:
    floor: Tree = {"privacy": {"smallest_count": 5}}
    points = SOURCE.normal(0, 10, (samples, 3))
    run = experiment("fed-km", points, np.arange(samples) % clients, 3, floor)
    assert len(run.train()[0].centroids) == 3


@pytest.mark.parametrize(("samples", "more"), [(300, False), (7, True)])
def test_cells_are_split_again_where_they_are_too_few_alone(samples: int, more: bool) -> None:
    asked: list[str] = []

    class Noting:
        def deliver(self, request: ExchangeRequest, inner: Deliver):  # type: ignore[no-untyped-def]
            asked.append(request.exchange.name)
            return inner(request)

    run = experiment("fed-km", blobs(samples, 3, 3, 0), np.arange(samples) % 2, 5)
    federation, first = run.federation(), run.algorithm.initial_state(run.randomness)
    federation.stages = [Noting()]
    state, _ = federation.run_round(first, 0)
    assert (len(asked) > len(run.algorithm.plan(first)[0])) == more
    assert len(state.centroids) == 5
    assert torch.isfinite(state.centroids).all()


seeds = st.integers(0, 10**6)
some = settings(max_examples=25)


@given(seed=seeds, most=st.integers(1, 30))
@some
def test_a_split_keeps_the_mean_and_the_number_of_cells(seed: int, most: int) -> None:
    source = torch.Generator().manual_seed(seed)
    cells = torch.randn(8, 3, generator=source, dtype=torch.float64)
    counts = torch.arange(8, dtype=torch.float64)
    scatter = torch.rand(8, generator=source, dtype=torch.float64)
    found = split_cells(Codebook(cells, counts, scatter), most, source)
    splittable = int((counts >= 4).sum())
    assert len(found) == 8 + min(splittable, max(0, most - 8))
    whole = found[: 8 - (len(found) - 8)]
    halves = found[len(whole) :]
    centres = torch.cat([whole, halves.view(2, -1, 3).mean(dim=0)])
    assert torch.allclose(centres.sum(dim=0), cells.sum(dim=0))


def test_a_codebook_with_few_cells_is_the_start() -> None:
    cells = torch.eye(3, dtype=torch.float64)
    assert torch.equal(codebook_kmeans(cells, torch.ones(3), 5, 0), cells)
    weights = torch.tensor([1.0, 1.0, 98.0], dtype=torch.float64)
    (one,) = codebook_kmeans(cells, weights, 1, 0)
    assert torch.allclose(one, torch.tensor([0.01, 0.01, 0.98], dtype=torch.float64))


@given(seed=seeds, clusters=st.integers(2, 5))
@some
def test_the_evidence_is_the_simplified_silhouette_of_all_points(seed: int, clusters: int) -> None:
    source = torch.Generator().manual_seed(seed)
    cells = torch.randn(9, 3, generator=source, dtype=torch.float64)
    counts = torch.randint(1, 9, (9,), generator=source).double()
    scatter = torch.rand(9, generator=source, dtype=torch.float64)
    book = Codebook(cells, counts, scatter)
    found = book.evidence(2, 12, seed)
    assert found.shape == (11,)
    assert not bool(found[8:].any())  # There are nine cells.
    centroids, total = book.kmeans(clusters, seed).tolist(), 0.0
    sizes = [0.0] * clusters
    nearest = [[float(np.sum((np.array(c) - m) ** 2)) for m in centroids] for c in cells.tolist()]
    for own, count in zip(nearest, counts.tolist(), strict=True):
        sizes[own.index(min(own))] += count
    for own, count, around in zip(nearest, counts.tolist(), scatter.tolist(), strict=True):
        a, b, *_ = sorted((square + around / count) ** 0.5 for square in own)
        alone = sizes[own.index(min(own))] == 1
        total += 0.0 if alone else count * (b - a) / b
    assert float(found[clusters - 2]) == pytest.approx(total / float(counts.sum()))


SETS = {
    "iris": (StandardScaler().fit_transform(load_iris().data), {2, 3}),
    "wine": (StandardScaler().fit_transform(load_wine().data), {3}),
    "seven blobs": (make_blobs(2000, 5, centers=7, cluster_std=1.5, random_state=3)[0], {7}),
    "twenty blobs": (make_blobs(3000, 10, centers=20, random_state=4)[0], {20}),
}


@pytest.mark.parametrize("method", ["fed-km", "fed-em"])
@pytest.mark.parametrize("name", SETS)
def test_a_number_that_nobody_knows_is_found(method: str, name: str) -> None:
    points, right = SETS[name]
    owners = np.arange(len(points)) % 3
    run = experiment(method, points, owners, 0, {"clusters": "auto", "seed": 5})
    state, _ = run.train()
    found = run.algorithm.summarize(state)
    assert found["clusters"] in right
    assert found["clusters"] == len(state.centroids)
    evidence = found["clusters_evidence"]
    assert isinstance(evidence, dict)
    assert evidence[str(found["clusters"])] == max(evidence.values())


def test_far_from_the_origin_it_is_the_same() -> None:
    points = SETS["seven blobs"][0]
    owners = np.arange(len(points)) % 3
    told = []
    for offset in (0.0, 1e8):
        run = experiment("fed-km", points + offset, owners, 0, {"clusters": "auto", "seed": 5})
        state, _ = run.train()
        judging = run.epilogue
        assert judging is not None
        known = judging.begin(state)
        assert known is not None
        federation, after = run.federation(), run.algorithm.rounds
        known, _ = federation.run_works(judging.works(known), known, after)
        told.append(
            (run.algorithm.summarize(state)["clusters"], judging.describe(known)["silhouette"])
        )
    assert told[0] == pytest.approx(told[1], abs=1e-5)
    assert told[0][0] == 7


def test_points_that_are_all_alike_are_one_cluster() -> None:
    run = experiment("fed-km", np.ones((120, 3)), np.arange(120) % 2, 0, {"clusters": "auto"})
    assert run.algorithm.summarize(run.train()[0]) == {"clusters": 1}


@given(seed=seeds)
@some
def test_sums_by_label_are_those_of_the_obvious_loop(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(20, 3, generator=source)
    labels = torch.randint(0, 4, (20,), generator=source)
    slow = torch.zeros(5, 3, dtype=torch.float64)
    for label, row in zip(labels.tolist(), rows, strict=True):
        slow[label] += row.double()
    assert torch.allclose(sum_by_group(labels, rows, 5), slow, rtol=0, atol=1e-14)


SENDERS = [Member(0, "a", 5), Member(1, "b", 3)]
WORK = CellsServerWork(Exchange[Any, Any]("cells", EvaluationMessage, ClusterSums, PARTS))
QUESTION = EvaluationMessage(None)


def sums(first: float, *counts: float) -> ClusterSums:
    given = torch.zeros(len(counts), 2, dtype=torch.float64)
    given[0, 0] = first
    return ClusterSums(given, torch.tensor(counts, dtype=torch.float64))


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (sums(1, -1, 2), "it counts fewer than no samples"),
        (sums(1, 5, 4), "it counts 9 samples, and the client holds 8"),
        (sums(1e300, 1, 2), r"means lie beyond 1e\+15"),
    ],
)
def test_what_no_images_have(update: ClusterSums, reason: str) -> None:
    with pytest.raises(RefusedUpdateError, match=reason):
        WORK.check(QUESTION, update, SENDERS)


@pytest.mark.parametrize("counts", [(5, 3), (0, 8), (0, 0), (2.5, 0.25)])
def test_what_images_may_have(counts: tuple[float, ...]) -> None:
    WORK.check(QUESTION, sums(min(counts[0], 1.0), *counts), SENDERS)
