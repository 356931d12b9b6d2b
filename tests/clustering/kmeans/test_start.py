"""Few points have as many clusters as are asked for, and ordinary data no exchange more."""

import numpy as np
import pytest
import torch

from ccfcpp.core.config import Tree
from ccfcpp.engine.stages import Deliver, Request
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
    state, _ = run.trained()
    assert len(state.centroids) == run.evaluator.clusters
    if (method, clients) != ("ffcm-km", 3):  # whose server sees the clients' centroids alone
        assert len(set(run.evaluator.assignments(state).tolist())) == run.evaluator.clusters


@pytest.mark.parametrize("method", ["fed-km", "fed-em"])
def test_duplicates_give_no_cluster_of_their_own(method: str) -> None:
    points = np.repeat(SOURCE.normal(0, 1, (4, 3)), 5, axis=0)
    state, _ = experiment(method, points, np.arange(20) % 2, 6).trained()
    assert len(state.centroids) == 4


@pytest.mark.parametrize(("samples", "clients"), [(24, 1), (40, 2)])
def test_cells_that_clients_keep_to_themselves_leave_a_start(samples: int, clients: int) -> None:
    floor: Tree = {"privacy": {"smallest_count": 5}}
    points = SOURCE.normal(0, 10, (samples, 3))
    run = experiment("fed-km", points, np.arange(samples) % clients, 3, floor)
    assert len(run.trained()[0].centroids) == 3


@pytest.mark.parametrize(("samples", "more"), [(300, False), (7, True)])
def test_cells_are_split_again_where_they_are_too_few_alone(samples: int, more: bool) -> None:
    asked: list[str] = []

    class Noting:
        def deliver(self, request: Request, inner: Deliver):  # type: ignore[no-untyped-def]
            asked.append(request.exchange.name)
            return inner(request)

    run = experiment("fed-km", blobs(samples, 3, 3, 0), np.arange(samples) % 2, 5)
    federation, first = run.federation(), run.algorithm.initial_state(run.randomness)
    federation.stages = [Noting()]
    state, _ = federation.run_round(first, 0)
    assert (len(asked) > len(run.algorithm.plan(first)[0])) == more
    assert len(state.centroids) == 5
    assert torch.isfinite(state.centroids).all()
