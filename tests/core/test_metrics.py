import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from ccfcpp.core.metrics import (
    Integers,
    clustering_scores,
    effective_rank,
    match_clusters,
    spectral_gap,
    spectrum,
    tail_share,
)
from ccfcpp.core.randomness import Randomness

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 6)), min_size=1, max_size=40)


def by_hand(classes: Integers, clusters: Integers) -> tuple[float, float, float, float]:
    """NMI (arithmetic, geometric), accuracy and kappa from their definitions."""
    names, groups = np.unique(classes), np.unique(clusters)
    joint = np.array([[np.mean((classes == a) & (clusters == b)) for b in groups] for a in names])
    row, column = joint.sum(axis=1), joint.sum(axis=0)
    seen = joint > 0
    information = (joint[seen] * np.log((joint / np.outer(row, column))[seen])).sum()
    h_row, h_column = -(row * np.log(row)).sum(), -(column * np.log(column)).sum()
    best = linear_sum_assignment(-joint)
    agreement = joint[best].sum()
    chance = (row[best[0]] * column[best[1]]).sum()
    both_trivial = h_row == h_column == 0
    arithmetic = 1.0 if both_trivial else information / ((h_row + h_column) / 2)
    product = h_row * h_column
    geometric = 1.0 if both_trivial else information / np.sqrt(product) if product else 0.0
    kappa = 1.0 if agreement == 1 else (agreement - chance) / (1 - chance)
    return arithmetic, geometric, agreement, kappa


@given(LABELS)
def test_scores_follow_their_definitions(pairs: list[tuple[int, int]]) -> None:
    classes, clusters = np.array(pairs, dtype=np.int64).T
    scores = clustering_scores(classes, clusters)
    nmi, geometric, accuracy, _ = by_hand(classes, clusters)
    assert scores["nmi"] == pytest.approx(max(nmi, 0), abs=1e-9)
    assert scores["nmi_geometric"] == pytest.approx(max(geometric, 0), abs=1e-9)
    assert scores["accuracy"] == pytest.approx(accuracy)


def test_kappa_by_hand() -> None:
    classes = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    clusters = np.array([5, 5, 7, 7, 7, 7, 9, 5])
    # Matched: 5→0, 7→1, 9→2; agreement 6/8; chance (3·3 + 3·4 + 2·1)/64.
    expected = (6 / 8 - 23 / 64) / (1 - 23 / 64)
    assert clustering_scores(classes, clusters)["kappa"] == pytest.approx(expected)
    assert clustering_scores(classes, clusters)["kappa"] == pytest.approx(
        by_hand(classes, clusters)[3]
    )


@given(LABELS)
def test_names_of_clusters_do_not_matter(pairs: list[tuple[int, int]]) -> None:
    classes, clusters = np.array(pairs, dtype=np.int64).T
    first, second = clustering_scores(classes, clusters), clustering_scores(classes, 100 - clusters)
    for name in ("nmi", "nmi_geometric", "accuracy", "ari"):
        assert first[name] == pytest.approx(second[name], abs=1e-9)


def test_a_perfect_clustering_scores_one_whatever_the_names() -> None:
    classes = np.array([0, 0, 1, 1, 2, 2])
    scores = clustering_scores(classes, np.array([7, 7, 3, 3, 5, 5]))
    assert scores == pytest.approx(dict.fromkeys(scores, 1.0))


def test_fewer_clusters_than_classes() -> None:
    classes = np.array([0, 0, 1, 1, 2, 2])
    scores = clustering_scores(classes, np.zeros(6, dtype=np.int64))
    assert scores["nmi"] == scores["kappa"] == scores["ari"] == 0
    assert scores["accuracy"] == pytest.approx(1 / 3)


def test_more_clusters_than_classes_count_as_errors() -> None:
    classes = np.array([0, 0, 0, 1, 1, 1])
    clusters = np.array([0, 0, 1, 2, 2, 3])
    assert match_clusters(classes, clusters).tolist() == [0, 0, -1, 1, 1, -1]
    assert clustering_scores(classes, clusters)["accuracy"] == pytest.approx(4 / 6)


def test_one_class_found_as_one_cluster_is_perfect() -> None:
    scores = clustering_scores(np.zeros(5, dtype=np.int64), np.full(5, 3, dtype=np.int64))
    assert scores == pytest.approx(dict.fromkeys(scores, 1.0))


@given(st.integers(2, 30), st.integers(1, 12), st.integers(0, 100))
def test_the_spectrum_is_that_of_the_covariance(samples: int, dimensions: int, seed: int) -> None:
    z = torch.randn(samples, dimensions, generator=Randomness(seed).generator("z")) * 3 + 1
    covariance = np.cov(z.double().numpy(), rowvar=False, ddof=0).reshape(dimensions, dimensions)
    expected = np.linalg.svd(covariance, compute_uv=False)
    found = spectrum(z)
    assert found.dtype == torch.float64
    assert (found >= 0).all()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "rank"),
    [([1.0, 1, 1, 1], 4), ([5.0, 0, 0], 1), ([2.0, 2, 0, 0], 2), ([0.0, 0], 0)],
)
def test_effective_rank_counts_equal_values(values: list[float], rank: float) -> None:
    assert effective_rank(torch.tensor(values)) == pytest.approx(rank)


def test_the_spectrum_of_what_is_not_finite_is_unknown() -> None:
    assert spectrum(torch.tensor([[1.0, torch.inf], [0.0, 2.0]])).isnan().all()


@pytest.mark.parametrize(
    ("values", "share"),
    [
        *(([4.0, 3, 2, 1], 0.3), ([4.0, 3, 2, 1, 0], 0.1), ([5.0, 3, 2], 0.2), ([1.0] * 4, 0.5)),
        *(([1.0, 0], 0), ([1.0], 0), ([0.0, 0], 0), ([0.0] * 3, 0)),
    ],
)
def test_tail_share_is_that_of_the_smaller_half(values: list[float], share: float) -> None:
    assert tail_share(torch.tensor(values)) == pytest.approx(share)


def test_effective_rank_lies_between() -> None:
    shares = np.array([0.7, 0.2, 0.1])
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert effective_rank(torch.tensor(shares) * 8) == pytest.approx(expected)


VALUES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8)


@given(VALUES, st.data())
def test_the_gap_is_the_mean_logarithm_of_the_quotients(
    local: list[float], data: st.DataObject
) -> None:
    size = len(local)
    of_all = data.draw(st.lists(st.floats(1e-6, 1e3), min_size=size, max_size=size))
    expected = sum(math.log(a) - math.log(b) for a, b in zip(local, of_all, strict=True)) / size
    assert spectral_gap(torch.tensor(local), torch.tensor(of_all)) == pytest.approx(
        expected, rel=1e-4, abs=1e-5
    )


def test_values_that_are_rounding_errors_count_as_one_small_value() -> None:
    some = torch.tensor([1.0, 1e-20, 0.0], dtype=torch.float64)
    none = torch.tensor([1.0, 0.0, -0.0], dtype=torch.float64)
    assert spectral_gap(some, none) == 0
    full = torch.ones(3, dtype=torch.float64)
    assert spectral_gap(full, none) == pytest.approx(2 * math.log(1e12) / 3)
    assert spectral_gap(torch.zeros(2), torch.zeros(2)) == 0
    assert math.isnan(spectral_gap(torch.full((2,), math.nan), full[:2]))
