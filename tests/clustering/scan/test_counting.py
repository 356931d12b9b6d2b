"""The number of clusters against its definition, over data of which the number is known."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.algorithm import most_to_least
from ccfcpp.clustering.scan.merging import (
    FOLDS,
    agglomerated,
    evidence,
    joint_distribution,
    worths,
)
from tests.clustering.scan.test_merging import information, random_joints


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 10**6))
def test_each_merge_of_two_costs_least_of_all_pairs(size: int, kinds: int, seed: int) -> None:
    joint = random_joints(size, seed, kinds)
    path = agglomerated(joint)
    assert [int(groups.max()) + 1 for groups in path] == list(range(1, size + 1))
    for fewer, more in itertools.pairwise(path):
        count = int(more.max()) + 1
        pairs = itertools.combinations(range(count), 2)
        merges = [[a if group == b else group for group in more.tolist()] for a, b in pairs]
        best = max(information(joint, merge) for merge in merges)
        assert information(joint, fewer.tolist()) == pytest.approx(best, abs=1e-9)
        # Nothing is torn apart, and numbers follow from the first members.
        assert len(set(zip(more.tolist(), fewer.tolist(), strict=True))) == count
        assert list(dict.fromkeys(fewer.tolist())) == list(range(count - 1))


def slow_evidence(folds: Tensor, fewest: int, most: int) -> list[float]:
    """By its definition, one term after another."""
    halves = list(itertools.combinations(range(len(folds)), len(folds) // 2))
    worth = {}
    for k in range(2, most + 4):
        gains = []
        for half in halves:
            others = [fold for fold in range(len(folds)) if fold not in half]
            first, second = (
                (t + t.T) / (2 * t.sum()) for t in (folds[list(half)].sum(0), folds[others].sum(0))
            )
            path = agglomerated(first[None])
            gains.append(
                information(second[None], path[k - 1].tolist())
                - information(second[None], path[k - 2].tolist())
            )
        worth[k] = k * float(np.mean(gains))
    found = []
    for k in range(fewest, most + 1):
        up_to = [worth[i] for i in (k - 2, k - 1, k) if i >= 2]
        after = [worth[i] for i in (k + 1, k + 2, k + 3)]
        found.append(float(np.mean(up_to) - np.mean(after)))
    return found


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 3), st.sampled_from([2, 4]), st.integers(0, 10**6))
def test_evidence_is_that_of_the_definition(fewest: int, folds: int, seed: int) -> None:
    sums = torch.rand(folds, 8, 8, generator=torch.Generator().manual_seed(seed)).double() ** 4
    found = evidence(sums, fewest, 5)
    assert found.tolist() == pytest.approx(slow_evidence(sums, fewest, 5), abs=1e-9)


def kinds(classes: int, each: int, seed: int) -> Tensor:
    """Counts of neighbours in classes of unequal size, each of so many kinds, in folds."""
    source = np.random.default_rng(seed)
    of_class = np.repeat(np.arange(classes), each)
    sizes = source.uniform(0.6, 1.6, len(of_class))
    same = of_class[:, None] == of_class[None, :]
    rates = np.outer(sizes, sizes) * (0.5 * same + 0.01) + np.diag(4 * sizes)
    return torch.from_numpy(source.poisson(40 * rates, (FOLDS, *rates.shape)).astype(np.float64))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("classes", [2, 3, 5, 8, 12])
def test_it_finds_how_many_classes_there_are(classes: int, seed: int) -> None:
    folds = kinds(classes, 36 // classes, seed)
    found = most_to_least(evidence(folds, 2, 15), 2)
    assert found[0] == classes
    assert sorted(found) == list(range(2, 16))


def test_neither_order_nor_number_of_images_decides() -> None:
    folds = kinds(6, 6, 3)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    scores = evidence(folds, 3, 12)
    torch.testing.assert_close(evidence(folds[:, order][:, :, order], 3, 12), scores)
    torch.testing.assert_close(evidence(7 * folds, 3, 12), scores)
    assert len(scores) == 10
    nothing = evidence(torch.zeros(FOLDS, 20, 20), 3, 10)
    torch.testing.assert_close(nothing, torch.zeros(8).double())


def test_equal_clusters_without_common_neighbours_are_all_worth_the_same() -> None:
    folds = torch.eye(8).double().expand(2, 8, 8)
    found = worths(folds, 8)
    assert found[[2, 6]].tolist() == pytest.approx([2 * math.log(2)] * 2)  # 4 and 8 equal ones
    assert joint_distribution(folds).sum(dim=(1, 2)).tolist() == pytest.approx([1, 1])
