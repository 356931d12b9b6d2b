"""Clients of every system could be in another process: what reaches them is bytes."""

from collections.abc import Sequence

import pytest

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyServerWork
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.federation import assert_same_bits, federated, over_a_wire

TWO_ROUNDS: Tree = {
    "compute": {"cohort": 1},
    "gan": {"epochs": 2},
    "dcn": {"rounds": 2},
    "ffcm": {"rounds": 2},
    "means": {"rounds": 2},
    "mixture": {"rounds": 2},
}
VARIANTS: dict[str, list[Tree]] = {
    "ccfc++": [
        {"centroids": {"encoder": "global"}},
        {"training": {"rounds": 2, "pretrain_rounds": 0}},
        {"training": {"steps": "synchronised", "synchronised_batch": 30}},
        {
            "training": {"pretraining": "neighbours", "steps": "synchronised"},
            "scan": {"steps": 4, "steps_per_round": 4},
        },
        {"training": {"pretraining": "neighbours"}, "scan": {"steps": 4, "steps_per_round": 4}},
        {
            "clusters": "2-3",
            "training": {"pretraining": "neighbours", "steps": "synchronised"},
            "centroids": {"search": "lloyd"},
            "scan": {"steps": 4, "steps_per_round": 4},
        },
    ],
    "fed-scan": [{"clusters": "2-3"}],
}
"""Other exchanges than those of a system's defaults."""
CASES = [
    pytest.param(method, other, id=f"{method}-{number}" if number else method)
    for method in METHODS.own()
    for number, other in enumerate([{}, *VARIANTS.get(method, [])])
]


@pytest.mark.parametrize(("method", "other"), CASES)
def test_over_a_wire_every_bit_is_that_of_one_process(method: str, other: Tree) -> None:
    """The clients' algorithm is made for itself, from the same configuration."""
    config, sizes = tiny(method, TWO_ROUNDS, other), (30, 21, 12)
    whole = federated(method, made(config), clients_of_sizes(*sizes))
    wired = over_a_wire(method, made(config), made(config), clients_of_sizes(*sizes))
    state = whole.algorithm.initial_state(Randomness(0))
    expected, found = list(whole.run(state)), list(wired.run(state))
    assert 1 <= len(found) <= (3 if method == "fed-emp" else 2)
    assert_same_bits(found, expected)
    assert not any(report.refused for _, report in found)


@pytest.mark.parametrize(("method", "other"), CASES)
def test_a_run_in_which_nothing_fails_goes_as_planned(method: str, other: Tree) -> None:
    """Noise is enough for what is planned, and a header counts it."""
    algorithm = made(tiny(method, TWO_ROUNDS, other))
    federation = federated(method, algorithm, clients_of_sizes(30, 21, 12))
    state = algorithm.initial_state(Randomness(0))
    planned, number = [names(works) for works in algorithm.plan(state)], 0
    assert len(planned) == algorithm.rounds
    while not federation.is_over(state, number):
        foreseen = [
            work
            for work in algorithm.exchanges(number, state)
            if not getattr(getattr(work, "work", work), "again", False)  # for few points alone
        ]
        assert names(foreseen) == planned[number]
        state, _ = federation.run_round(state, number)
        number += 1


def names(works: Sequence[AnyServerWork]) -> list[str]:
    return [work.exchange.name for work in works]


@pytest.mark.parametrize("method", METHODS.own())
def test_both_halves_know_the_same_exchanges(method: str) -> None:
    """A task names a work that the clients have, whatever the round."""
    config = tiny(method)
    here, there = made(config), made(config)
    federation = federated(method, there, clients_of_sizes(5, 4))
    works = federation.transport.side.works
    state = here.initial_state(Randomness(0))
    for number in range(here.rounds):
        for work in here.exchanges(number, state):
            assert works[work.exchange.name].exchange == work.exchange
