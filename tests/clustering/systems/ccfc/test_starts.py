"""Several starts of the first centroids, against spherical k-means of all images from each."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.starts import (
    FINER,
    STARTS,
    STEPS,
    TEMPERATURE,
    MoveStarts,
    StartSums,
    information_by_start,
)
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.payload import pack, sum_updates
from tests.clustering.systems.ccfc.test_algorithm import assert_equal_states, exchange_names
from tests.support.clustering import (
    answers,
    clients_of_sizes,
    run_small,
    small_algorithm,
    small_config,
)

GLOBAL = "centroids.encoder=global"
LLOYD = ("centroids.search=lloyd", "centroids.refine_steps=2", "centroids.starts=5")
ALGORITHM = small_algorithm(small_config(GLOBAL, "centroids.starts=4"))
MODEL = ALGORITHM.initial_state(Randomness(0)).model


def drawn_starts(number: int, seed: int) -> Tensor:
    """Starts at other points of the space than those of the clients: (number, k, d)."""
    return torch.randn(number, 3, 12, generator=torch.Generator().manual_seed(seed))


def sums_of(clients: Sequence[Client], starts: Tensor, least: int = 0) -> StartSums:
    state = EncoderState(MODEL, starts=starts)
    found = answers(ALGORITHM, STARTS, state, clients, Randomness(0), least)
    assert not any(isinstance(update, RefusedUpdateError) for update in found)
    return sum_updates([update for update in found if isinstance(update, StartSums)])


def all_points(*sizes: int) -> NDArray[np.float64]:
    state, (client,) = EncoderState(MODEL), clients_of_sizes(sum(sizes))
    return np.asarray(F.normalize(ALGORITHM.represent(state, client), dim=1), dtype=float)


def information(points: NDArray[np.float64], centroids: NDArray[np.float64]) -> float:
    """I(image; cluster), Σ p(x, c) log (p(x, c) / p(x) p(c)), image by image."""
    units = centroids / np.linalg.norm(centroids, axis=1, keepdims=True)
    weights = np.exp(points @ units.T / TEMPERATURE)
    joint = weights / weights.sum(axis=1, keepdims=True) / len(points)
    of_cluster = joint.sum(axis=0)
    terms = (
        value * math.log(value * len(points) / of_cluster[c])
        for row in joint
        for c, value in enumerate(row)
    )
    return float(sum(terms))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_the_start_with_the_most_information_goes_on(seed: int) -> None:
    sizes, starts = (40, 1, 25), drawn_starts(4, seed)
    points, state = all_points(*sizes), EncoderState(MODEL, starts=starts)
    expected = starts.double().numpy()
    for number in range(1, STEPS + 1):
        known = [information(points, start) for start in expected]
        for start in expected:
            units = start / np.linalg.norm(start, axis=1, keepdims=True)
            labels = (points @ units.T).argmax(axis=1)
            for c in set(labels.tolist()):
                start[c] = points[labels == c].mean(axis=0)
        assert state.starts is not None
        total = sums_of(clients_of_sizes(*sizes), state.starts)
        assert information_by_start(total).numpy() == pytest.approx(known, abs=1e-5)
        work = MoveStarts(ends=number == STEPS)
        state, _ = work.aggregate(state, [total], Randomness(0))
    assert state.starts is None
    assert state.centroids is not None
    # Starts may end with the same clusters in another order.
    best = [own for own, value in zip(expected, known, strict=True) if value > max(known) - 1e-5]
    assert any(np.allclose(state.centroids.numpy(), own, atol=1e-5) for own in best)


def test_a_client_with_too_few_images_sends_nothing_of_them() -> None:
    total = sums_of(clients_of_sizes(4), drawn_starts(2, 0), least=5)
    assert all(not bool(part.any()) for part in pack(total).values())


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("counts", 3.0, "counts 9 samples"),
        ("counts", -1.0, "fewer than no"),
        ("shares", -0.1, "fewer than no"),
        ("shares", 1.0, "counts 3 samples"),
        ("entropies", -0.1, "entropies"),
        ("entropies", 3.0, "entropies"),
    ],
)
def test_sums_that_cannot_be_are_refused(part: str, value: float, reason: str) -> None:
    zeros = torch.zeros(6).double()
    fields = {
        "sums": torch.zeros(6, 12).double(),
        "counts": zeros,
        "shares": zeros,
        "entropies": zeros[:2],
    }
    fields[part] = torch.full_like(fields[part], value)
    message = EncoderState({}, starts=drawn_starts(2, 0))
    with pytest.raises(RefusedUpdateError, match=reason):
        MoveStarts(ends=False).check(message, StartSums(**fields), [Member(0, "a", 2)])


def test_starts_come_before_the_first_centroids_alone() -> None:
    first = ["pre-training", "fine centroids", *["starts"] * STEPS]
    assert exchange_names(GLOBAL, "centroids.starts=5") == [
        ["pre-training"],
        first,
        ["cluster contrast", "centroids"],
        ["cluster contrast", "centroids"],
    ]
    assert exchange_names(*LLOYD) == [
        ["pre-training"],
        [*first, "refinement", "refinement"],
        ["cluster contrast", "refinement", "refinement"],
        ["cluster contrast", "refinement", "refinement"],
    ]


def test_whole_runs_by_several_starts_are_the_same_in_any_order() -> None:
    clients = clients_of_sizes(40, 45, FINER)
    state, reports = run_small(small_config(*LLOYD), clients)
    assert not any(report.refused for report in reports)
    assert state.starts is None
    assert state.centroids is not None
    assert state.centroids.shape == (3, 12)
    again, _ = run_small(small_config(*LLOYD), list(reversed(clients_of_sizes(40, 45, FINER))))
    assert_equal_states(state, again)
    other, _ = run_small(small_config(GLOBAL), clients_of_sizes(40, 45, FINER))
    assert other.centroids is not None
    assert not torch.equal(state.centroids, other.centroids)


def test_lloyd_steps_alone_need_starts() -> None:
    with pytest.raises(UsageError, match=r"centroids\.starts=100"):
        small_config(*LLOYD[:2])
