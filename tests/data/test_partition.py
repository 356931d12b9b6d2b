import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.partition import (
    classes_partition,
    dirichlet_partition,
    iid_partition,
    owner_partition,
    skewed_partition,
)

LEVELS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0, 1)


def draw_labels(samples: int, classes: int, seed: int) -> Tensor:
    return torch.randint(classes, (samples,), generator=Randomness(seed).generator("labels"))


def published_partition(labels: Tensor, p: float, seed: int) -> list[list[int]]:
    """The authors' rule for as many clients as classes, with lists; classes are never short."""
    clients = int(labels.max()) + 1
    members = [[i for i, y in enumerate(labels.tolist()) if y == c] for c in range(clients)]
    if p == 1:
        return members
    n = len(labels) / clients
    own = [members[c][: round(n * p)] for c in range(clients)]
    rest = sorted(set(range(len(labels))) - {i for part in own for i in part})
    order = torch.randperm(len(rest), generator=Randomness(seed).generator("partition")).tolist()
    rest = [rest[i] for i in order]
    take = round(n * (1 - p))
    return [own[c] + rest[c * take : (c + 1) * take] for c in range(clients)]


@pytest.mark.parametrize("p", [i / 100 for i in range(0, 91, 3)] + [0.25, 0.5, 1.0])
def test_the_published_rule_index_by_index_on_digits(p: float) -> None:
    """1,797 samples do not divide by 10, and the classes differ in size."""
    labels = torch.from_numpy(load_digits().target.astype(np.int64))
    parts = skewed_partition(labels, 10, 10, p, Randomness(0))
    assert [part.tolist() for part in parts] == published_partition(labels, p, 0)


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_published_rule_index_by_index(p: float, seed: int) -> None:
    labels = torch.arange(10).repeat(40)[
        torch.randperm(400, generator=Randomness(seed).generator("o"))
    ]
    parts = skewed_partition(labels, 10, 10, p, Randomness(seed))
    assert [part.tolist() for part in parts] == published_partition(labels, p, seed)


def test_p_one_by_hand() -> None:
    parts = skewed_partition(torch.tensor([1, 0, 1, 1, 2]), 3, 3, 1.0, Randomness(0))
    assert [part.tolist() for part in parts] == [[1], [0, 2, 3], [4]]


def test_clients_that_share_a_class_divide_it_in_order() -> None:
    labels = torch.tensor([0, 1] * 6)
    halves = skewed_partition(labels, 2, 4, 0.5, Randomness(0))
    # Each of the four holds 3 samples; round(1.5) = 2 of its own class come first.
    assert [part[:2].tolist() for part in halves] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    whole = skewed_partition(labels, 2, 4, 1.0, Randomness(0))
    assert [part.tolist() for part in whole] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 20), LEVELS, st.integers(0, 99))
def test_laws_of_the_skew(samples: int, classes: int, clients: int, p: float, seed: int) -> None:
    assume(clients <= samples)
    labels = draw_labels(samples, classes, seed)
    parts = skewed_partition(labels, classes, clients, p, Randomness(seed))
    assert len(parts) == clients
    given_out = torch.cat(parts).tolist()
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(range(samples))
    for client, part in enumerate(parts):
        own = int((labels[part] == client % classes).sum())
        # Half a sample is what rounding the published counts can cost.
        assert own >= p * len(part) - 0.5 - 1e-9
        if own < round(samples / clients * p):
            assert own >= p * len(part) - 1e-9
    again = skewed_partition(labels, classes, clients, p, Randomness(seed))
    assert all(torch.equal(x, y) for x, y in zip(parts, again, strict=True))


def test_another_seed_gives_another_split() -> None:
    labels = draw_labels(100, 5, 0)
    first, second = (skewed_partition(labels, 5, 5, 0.5, Randomness(s)) for s in (0, 1))
    assert any(not torch.equal(x, y) for x, y in zip(first, second, strict=True))


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 99))
def test_iid_deals_out_everything_in_equal_shares(samples: int, clients: int, seed: int) -> None:
    assume(clients <= samples)
    parts = iid_partition(samples, clients, Randomness(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(a >= b for a, b in pairwise(sizes))


def test_each_folder_is_a_client() -> None:
    parts = owner_partition(torch.tensor([2, 0, 2, 2]), 3)
    assert [part.tolist() for part in parts] == [[1], [], [0, 2, 3]]


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_degree_of_skew_lies_between_0_and_1(p: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        skewed_partition(torch.tensor([0, 1]), 2, 2, p, Randomness(0))


def test_more_clients_than_images_are_refused() -> None:
    with pytest.raises(UsageError, match="clients = 3 is more than the 2 images"):
        iid_partition(2, 3, Randomness(0))
    with pytest.raises(UsageError, match="at most 2"):
        skewed_partition(torch.tensor([0, 1]), 2, 3, 0.5, Randomness(0))


# --- Dirichlet ------------------------------------------------------------------------------------


def assert_each_sample_once(parts: list[Tensor], samples: int) -> None:
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))


@given(st.integers(2, 12), st.sampled_from([0.05, 0.1, 0.5, 5.0, math.inf]), st.integers(0, 30))
def test_dirichlet_gives_every_sample_to_one_client(clients: int, alpha: float, seed: int) -> None:
    labels = draw_labels(600, 10, seed)
    parts = dirichlet_partition(labels, 10, clients, alpha, Randomness(seed))
    assert len(parts) == clients
    assert_each_sample_once(parts, 600)
    assert min(map(len, parts)) >= 10
    again = dirichlet_partition(labels, 10, clients, alpha, Randomness(seed))
    assert all(torch.equal(one, other) for one, other in zip(parts, again, strict=True))


def test_shares_of_a_class_are_those_of_a_dirichlet_distribution() -> None:
    """Of the first class nobody holds enough yet: means 1/K, variances (1/K)(1 − 1/K)/(αK + 1)."""
    labels = torch.arange(40_000) % 2
    clients, alpha = 4, 0.5
    shares = torch.tensor(
        [
            [
                (labels[part] == 0).double().sum() / 20_000
                for part in dirichlet_partition(labels, 2, clients, alpha, Randomness(seed), 1)
            ]
            for seed in range(400)
        ]
    )
    assert shares.mean(dim=0).tolist() == pytest.approx([0.25] * 4, abs=0.06)
    expected = 0.25 * 0.75 / (alpha * clients + 1)
    assert shares.var(dim=0).mean() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_a_client_that_holds_its_share_gets_no_more_classes(alpha: float) -> None:
    labels = draw_labels(2000, 20, seed=3)
    for seed in range(20):
        parts = dirichlet_partition(labels, 20, 5, alpha, Randomness(seed))
        counts = torch.stack([torch.bincount(labels[part], minlength=20) for part in parts])
        before = counts.cumsum(dim=1) - counts
        # Rounding may give one sample too many, never to a client without a share.
        assert not counts[before >= 2000 / 5].any()


def test_a_smaller_alpha_is_more_heterogeneous() -> None:
    labels = torch.arange(10_000) % 10

    def largest_share(alpha: float) -> float:
        shares = []
        for seed in range(10):
            for part in dirichlet_partition(labels, 10, 10, alpha, Randomness(seed)):
                shares.append(float(torch.bincount(labels[part]).max() / len(part)))
        return float(np.mean(shares))

    by_alpha = [largest_share(alpha) for alpha in (0.05, 0.5, 5.0, math.inf)]
    assert by_alpha == sorted(by_alpha, reverse=True)
    assert by_alpha[0] > 0.6
    assert by_alpha[-1] < 0.15


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(UsageError, match="is not a concentration"):
        dirichlet_partition(torch.zeros(100, dtype=torch.int64), 1, 2, alpha, Randomness(0))


def test_clients_that_cannot_be_filled_are_refused() -> None:
    labels = torch.arange(100) % 2
    with pytest.raises(UsageError, match="11 clients with 10 samples at least need 110 of the 100"):
        dirichlet_partition(labels, 2, 11, 0.5, Randomness(0))
    with pytest.raises(UsageError, match="left some of 9 clients with fewer than 10 samples"):
        dirichlet_partition(labels, 2, 9, 0.001, Randomness(0))


# --- classes --------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(0, 50))
def test_clients_hold_their_number_of_classes(
    clients: int, classes: int, each: int, seed: int
) -> None:
    assume(each <= classes)
    labels = torch.arange(classes * 30) % classes
    parts = classes_partition(labels, classes, clients, each, Randomness(seed))
    held = [set(labels[part].tolist()) for part in parts]
    assert [len(own) for own in held] == [each] * clients
    holders = [sum(c in own for own in held) for c in range(classes)]
    assert max(holders) - min(holders) <= 1
    taken = torch.cat(parts).tolist()
    assert len(set(taken)) == len(taken)
    # All samples of every class that has a holder are dealt out, in equal parts.
    assert len(taken) == 30 * sum(count > 0 for count in holders)
    for c in range(classes):
        sizes = [int((labels[part] == c).sum()) for part in parts if (labels[part] == c).any()]
        assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("each", [0, 11])
def test_a_number_of_classes_that_does_not_fit_is_refused(each: int) -> None:
    with pytest.raises(UsageError, match="give a number from 1 to 10"):
        classes_partition(torch.arange(100) % 10, 10, 10, each, Randomness(0))


def test_a_client_that_would_hold_nothing_of_a_class_is_refused() -> None:
    labels = torch.tensor([0] * 50 + [1] * 2)
    with pytest.raises(UsageError, match="share class 1 among 5, but it has 2 samples"):
        classes_partition(labels, 2, 5, 2, Randomness(0))
