"""Merges of over-clusters against all merges there are, and how many clusters they show."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.algorithm import rank_candidates
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.merging import (
    FOLDS,
    Rule,
    agglomerate,
    association,
    evidence,
    joint_distribution,
    merge_overclusters,
    mutual_information,
    renumber_like,
    scaled_gains,
)
from ccfcpp.clustering.systems.fed_scan.messages import OwnTransitions, Transitions
from ccfcpp.clustering.systems.fed_scan.server import MergeOverclusters, sum_transitions
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import RefusedUpdateError


def information(joints: torch.Tensor, groups: list[int]) -> float:
    """The sum over kinds of pairs."""
    return sum(_information_of(joint, groups) for joint in joints)


def _information_of(joint: torch.Tensor, groups: list[int]) -> float:
    """By its definition, cell by cell."""
    cells: dict[tuple[int, int], float] = {}
    for (a, g), (b, h) in itertools.product(enumerate(groups), repeat=2):
        cells[g, h] = cells.get((g, h), 0.0) + float(joint[a, b])
    shares = {g: sum(value for (h, _), value in cells.items() if h == g) for g in set(groups)}
    return sum(
        value * math.log(value / (shares[g] * shares[h]))
        for (g, h), value in cells.items()
        if value > 0
    )


def information_of_mean(joints: torch.Tensor, groups: list[int]) -> float:
    return _information_of(joints.mean(dim=0), groups)


def association_of(joints: torch.Tensor, groups: list[int]) -> float:
    """The sum over kinds of pairs, by its definition, cell by cell."""
    found = 0.0
    for joint, cluster in itertools.product(joints, set(groups)):
        own = [over for over, group in enumerate(groups) if group == cluster]
        inside = sum(float(joint[a, b]) for a, b in itertools.product(own, own))
        found += inside / sum(float(joint[a].sum()) for a in own)
    return found


def both_of(joints: torch.Tensor, groups: list[int]) -> float:
    return association_of(joints, groups) + 0.6 * information(joints, groups)


WORTH: dict[Rule, Callable[[torch.Tensor, list[int]], float]] = {
    "information": information_of_mean,
    "both": both_of,
}
rules = pytest.mark.parametrize("rule", WORTH)


def random_joints(size: int, seed: int, kinds: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(kinds, size, size, generator=generator).double() ** 3
    return (values + values.mT) / (2 * values.sum(dim=(1, 2), keepdim=True))


@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 10**6))
def test_the_sums_are_those_of_the_definitions(size: int, clusters: int, seed: int) -> None:
    joint = random_joints(size, seed)
    groups = torch.randint(clusters, (size,), generator=torch.Generator().manual_seed(seed))
    for found, worth in ((mutual_information, information), (association, association_of)):
        expected = worth(joint, groups.tolist())
        assert found(joint, groups, clusters) == pytest.approx(expected, abs=1e-9)


@rules
@settings(max_examples=20, deadline=None)
@given(st.integers(3, 7), st.integers(2, 3), st.integers(0, 10**6))
@example(4, 2, 240)  # of which the best merge has clusters of three and of one
def test_it_is_the_best_of_all_merges(rule: Rule, size: int, clusters: int, seed: int) -> None:
    joint = random_joints(size, seed)
    found = merge_overclusters(joint, clusters, torch.Generator().manual_seed(0), rule)
    best = max(
        WORTH[rule](joint, list(groups))
        for groups in itertools.product(range(clusters), repeat=size)
        if len(set(groups)) == clusters
    )
    assert WORTH[rule](joint, found.tolist()) == pytest.approx(best, abs=1e-9)


@rules
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_no_move_of_one_makes_it_better(rule: Rule, seed: int) -> None:
    joint = random_joints(12, seed)
    groups = merge_overclusters(joint, 4, torch.Generator().manual_seed(0), rule).tolist()
    reached = WORTH[rule](joint, groups)
    for place, group in itertools.product(range(12), range(4)):
        moved = [*groups[:place], group, *groups[place + 1 :]]
        if len(set(moved)) < 4:
            continue
        assert WORTH[rule](joint, moved) <= reached + 1e-8


@rules
def test_kinds_that_go_together_are_merged_whatever_their_order_and_scale(rule: Rule) -> None:
    """Three classes of 2, 3 and 4 kinds, which pass to one another more than to others."""
    classes = torch.tensor([0, 1, 2, 1, 2, 0, 2, 1, 2])
    together = (classes.unsqueeze(0) == classes.unsqueeze(1)).double()
    transitions = 1000 * (torch.eye(9) * 5 + together + 0.05 * torch.rand(2, 9, 9))
    found = merge_overclusters(transitions, 3, torch.Generator().manual_seed(1), rule)
    assert found.dtype == torch.int64
    assert found.tolist() == classes.tolist()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    turned = transitions[:, order][:, :, order]
    other = merge_overclusters(turned, 3, torch.Generator().manual_seed(5), rule)
    same = other.unsqueeze(0) == other.unsqueeze(1)
    assert torch.equal(same, classes[order].unsqueeze(0) == classes[order].unsqueeze(1))


@rules
@pytest.mark.parametrize("classes_each", [1, 2, 3, 6])
def test_clients_that_hold_several_classes_do_not_join_them(rule: Rule, classes_each: int) -> None:
    """Six classes of two kinds: neighbours know the classes, clients know those of their own."""
    classes = torch.arange(12) // 2
    clients = classes // classes_each
    near = torch.eye(12) * 5 + (classes.unsqueeze(0) == classes.unsqueeze(1)) + 0.02
    held = (clients.unsqueeze(0) == clients.unsqueeze(1)).double()
    found = merge_overclusters(torch.stack([near, held]), 6, torch.Generator().manual_seed(0), rule)
    assert found.tolist() == classes.tolist()


@rules
def test_what_clients_hold_decides_where_neighbours_do_not(rule: Rule) -> None:
    near = torch.eye(8) + 0.1
    clients = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    held = (clients.unsqueeze(0) == clients.unsqueeze(1)).double()
    found = merge_overclusters(torch.stack([near, held]), 2, torch.Generator().manual_seed(0), rule)
    assert found.tolist() == clients.tolist()


@rules
def test_clients_that_are_alike_change_nothing(rule: Rule) -> None:
    near, (share,) = random_joints(9, 3, kinds=1), random_joints(9, 3, kinds=1).sum(dim=2)
    alike = torch.stack([near[0], torch.outer(share, share)])
    for clusters in (2, 3, 5):
        first, second = (
            merge_overclusters(sums, clusters, torch.Generator().manual_seed(0), rule)
            for sums in (near, alike)
        )
        assert torch.equal(first, second)


def test_a_small_class_stays_apart() -> None:
    """Two kinds of each class, of 100 or 3 images; the two small ones have common neighbours."""
    classes = torch.tensor([0, 0, 1, 1, 2, 2])
    sizes = torch.tensor([100.0, 100, 3, 3, 3, 3])
    together = (classes.unsqueeze(0) == classes.unsqueeze(1)).double()
    near = torch.outer(sizes, sizes).sqrt() * (0.3 * together) + sizes.diag()
    near[2:4, 4:] = near[4:, 2:4] = 0.2
    found = merge_overclusters(near.unsqueeze(0), 3, torch.Generator().manual_seed(0), "both")
    assert found.tolist() == classes.tolist()


def test_a_kind_of_a_large_class_is_no_cluster() -> None:
    """Two kinds of one class have fewer common neighbours than images of two other classes."""
    near = torch.tensor(
        [
            [0.93, 0.07, 0.0, 0.0],
            [0.07, 0.93, 0.0, 0.0],
            [0.0, 0.0, 0.30, 0.018],
            [0.0, 0.0, 0.018, 0.664],
        ]
    ).unsqueeze(0)
    apart, joined = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 1, 2])
    joint = near.double() / near.sum()
    assert association(joint, joined, 3) > association(joint, apart, 3)
    found = merge_overclusters(near, 3, torch.Generator().manual_seed(0), "both")
    assert found.tolist() == apart.tolist()


def test_as_many_as_there_are_stay_apart_and_nothing_gives_some_merge() -> None:
    generator = torch.Generator().manual_seed(0)
    apart = torch.stack([torch.eye(5) + 0.1, torch.ones(5, 5)])
    assert merge_overclusters(apart, 5, generator).tolist() == [0, 1, 2, 3, 4]
    assert merge_overclusters(torch.zeros(2, 4, 4), 2, generator).shape == (4,)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_clusters_keep_the_numbers_of_those_with_which_they_have_most_in_common(
    now: int, earlier: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.cat([torch.arange(now), torch.randint(now, (4,), generator=generator)])
    before = torch.randint(earlier, groups.shape, generator=generator)
    shares = torch.rand(groups.shape, generator=generator).double()
    found = renumber_like(groups, before, shares)
    best = max(
        sum(float(shares[(groups == g) & (before == number)].sum()) for g, number in enumerate(way))
        for way in itertools.permutations(range(now))
    )
    assert float(shares[found == before].sum()) == pytest.approx(best)
    # The groups are the same.
    assert torch.equal(
        found.unsqueeze(0) == found.unsqueeze(1), groups.unsqueeze(0) == groups.unsqueeze(1)
    )
    assert set(found.tolist()) == set(range(now))


def test_a_new_cluster_takes_a_number_that_is_free() -> None:
    before = torch.tensor([2, 0, 0, 1, 1, 1])
    groups = torch.tensor([0, 1, 1, 2, 3, 3])
    assert renumber_like(groups, before, torch.ones(6).double()).tolist() == [2, 0, 0, 3, 1, 1]


@rules
def test_the_agglomerative_start_alone_finds_kinds_of_unequal_classes(rule: Rule) -> None:
    """Four classes of 20, 10, 8 and 2 kinds: so many that random starts would not find them."""
    classes = torch.tensor([0] * 20 + [1] * 10 + [2] * 8 + [3] * 2)
    together = (classes.unsqueeze(0) == classes.unsqueeze(1)).double()
    noise = torch.rand(2, 40, 40, generator=torch.Generator().manual_seed(0)).double()
    found = merge_overclusters(
        torch.eye(40) * 5 + together * (1 + noise) + 0.05 * noise, 4, None, rule
    )
    assert found.tolist() == classes.tolist()


def test_transitions_of_more_images_than_a_client_has_are_refused() -> None:
    """One large number would leave no share to the other clusters."""
    work = MergeOverclusters[EncoderState](2, 4)
    senders, square = [Member(0, "one", 5)], torch.zeros(4, 4, dtype=torch.float64)
    message = EncoderState({}, 1)
    fair = square.fill_(5 / 16)
    work.check(message, Transitions(fair.unsqueeze(0), fair), senders)
    large = fair.clone()
    large[0, 0] = 1e300
    for neighbours, holders in ((large, fair), (fair, large)):
        with pytest.raises(RefusedUpdateError, match="and the client holds 5"):
            work.check(message, Transitions(neighbours.unsqueeze(0), holders), senders)


def test_absent_clients_count_with_their_last_transitions() -> None:
    """Two clients; the second is away at the second merge, and a third has only taken steps."""
    generator = torch.Generator().manual_seed(0)

    def told(client: int) -> OwnTransitions:
        square = torch.rand(4, 4, generator=generator, dtype=torch.float64)
        return OwnTransitions(square.unsqueeze(0), square.T, client=client)

    first, second, again = told(0), told(1), told(0)
    parts: dict[str, torch.Tensor] = {}
    _, complete = sum_transitions([first, second], parts)
    assert complete
    total, complete = sum_transitions([again], parts)
    assert complete
    torch.testing.assert_close(total.neighbours, again.neighbours + second.neighbours)
    torch.testing.assert_close(total.holders, again.holders + second.holders)
    parts["2/predictions"] = torch.ones(4)
    assert not sum_transitions([again], parts)[1]
    # Of sums over several clients nobody's part is known.
    whole = Transitions(first.neighbours, first.holders)
    total, complete = sum_transitions([whole], {})
    assert complete
    assert torch.equal(total.neighbours, whole.neighbours)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 10**6))
def test_each_merge_of_two_costs_least_of_all_pairs(size: int, kinds: int, seed: int) -> None:
    joint = random_joints(size, seed, kinds)
    path = agglomerate(joint)
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
            path = agglomerate(first[None])
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
    found = rank_candidates(evidence(folds, 2, 15), 2)
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
    found = scaled_gains(folds, 8)
    assert found[[2, 6]].tolist() == pytest.approx([2 * math.log(2)] * 2)  # 4 and 8 equal ones
    assert joint_distribution(folds).sum(dim=(1, 2)).tolist() == pytest.approx([1, 1])
