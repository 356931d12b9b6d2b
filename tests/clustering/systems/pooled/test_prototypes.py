"""k-prototypes: Fed-KM whose centroids have the most frequent category of each column."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.clustering.client_data import make_client
from ccfcpp.clustering.run import ClusteringRun
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.data.categories import code
from tests.support.vectors import SECURE, Points, experiment, plan

KINDS, MOST = 3, 4
GAMMA = 0.7
VECTORS: Tree = {
    "categories": ["a", "b"],
    "most_categories": MOST,
    "category_weight": (GAMMA / 2) ** 0.5,
    "rare": 1,
}
MODES: Tree = {"vectors": VECTORS, "means": {"modes": True}}


def table(seed: int, samples: int, spread: float) -> tuple[Points, list[list[int]]]:
    """Two columns of numbers and two of categories, which depend on hidden groups."""
    source = np.random.default_rng(seed)
    group = source.integers(KINDS, size=samples)
    numbers = np.eye(KINDS)[group][:, :2] * 6 + source.normal(0, spread, (samples, 2))
    noise = source.random((samples, 2)) < 0.2
    kinds = np.where(noise, source.integers(KINDS, size=(samples, 2)), group[:, None])
    return numbers, kinds.tolist()


def run_on(numbers: Points, kinds: list[list[int]], seed: int, *trees: Tree) -> ClusteringRun:
    codes = np.array([[code(f"kind {kind}") for kind in row] for row in kinds])
    owners = np.random.default_rng(seed).integers(4, size=len(numbers))
    owners[:4] = np.arange(4)
    return experiment("fed-km", np.column_stack([numbers, codes]), owners, KINDS, MODES, *trees)


def cost(numbers: Points, kinds: Any, means: Points, modes: Any) -> Points:
    """Huang's dissimilarity of each row to each prototype, (rows, k)."""
    squares = ((numbers[:, None] - means) ** 2).sum(axis=2)
    total: Points = squares + GAMMA * (np.asarray(kinds)[:, None] != modes).sum(axis=2)
    return total


@pytest.mark.parametrize("tree", [{}, SECURE])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_a_step_is_that_of_all_rows_in_one_place(tree: Tree, seed: int) -> None:
    numbers, kinds = table(seed, 80, 2.0)
    run = run_on(numbers, kinds, seed, tree)
    state, _ = run.federation().run_round(run.algorithm.initial_state(run.randomness), 0)
    after, report = run.federation().run_round(state, 1)
    assert report.refused == {}
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(80))
    rows = run.algorithm.represent(state, everyone)
    assert rows is not None
    labels = run.algorithm.assign(state, everyone).numpy()
    centroids = after.centroids.numpy()
    for cluster in set(labels.tolist()):
        inside = rows.numpy()[labels == cluster]
        np.testing.assert_allclose(centroids[cluster, :2], inside[:, :2].mean(axis=0), atol=1e-5)
        for column in range(2):
            place = slice(2 + column * MOST, 2 + (column + 1) * MOST)
            counts, slots = inside[:, place].sum(axis=0), centroids[cluster, place]
            assert np.count_nonzero(slots) == 1
            assert slots.max() == pytest.approx(VECTORS["category_weight"])
            assert counts[slots.argmax()] >= counts.max() - 1e-3


@given(seed=st.integers(0, 10**6))
@settings(max_examples=6, deadline=None)
def test_it_finds_what_the_package_kmodes_finds(seed: int) -> None:
    """From the same prototypes, on groups that lie apart: kmodes moves one row at a time."""
    prototypes = pytest.importorskip("kmodes.kprototypes")
    numbers, kinds = table(seed, 90, 0.5)
    run = run_on(numbers, kinds, seed)
    state, _ = run.train()
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(90))
    found = run.algorithm.assign(state, everyone).numpy()
    start = [int(np.flatnonzero(found == cluster)[0]) for cluster in range(KINDS)]
    init = [numbers[start], np.array(kinds)[start]]
    model = prototypes.KPrototypes(KINDS, init=init, gamma=GAMMA, n_init=1, random_state=0)
    mixed = np.column_stack([numbers.astype(object), np.array(kinds, object)])
    assert np.array_equal(model.fit_predict(mixed, categorical=[2, 3]), found)


def test_a_run_ends_where_no_row_has_a_nearer_prototype() -> None:
    numbers, kinds = table(3, 120, 2.5)
    run = run_on(numbers, kinds, 3)
    state, _ = run.train()
    everyone = make_client(run.evaluator.data, -1, "all", torch.arange(120))
    labels = run.algorithm.assign(state, everyone).numpy()
    means = np.stack([numbers[labels == k].mean(axis=0) for k in range(KINDS)])
    modes = np.array(
        [
            [np.bincount(np.array(kinds)[labels == k, column]).argmax() for column in range(2)]
            for k in range(KINDS)
        ]
    )
    costs = cost(numbers, kinds, means, modes)
    assert (costs[np.arange(120), labels] <= costs.min(axis=1) + 1e-9).all()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"means": {"modes": True}}, r"means\.modes = true needs columns of categories with"),
        ({**MODES, "vectors": {**VECTORS, "scale": "unit"}}, "needs categories as they are"),
        ({**MODES, "vectors": {**VECTORS, "components": 2}}, "needs categories as they are"),
    ],
)
def test_what_has_no_modes_is_refused(tree: Tree, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan("fed-km", 2, tree)
