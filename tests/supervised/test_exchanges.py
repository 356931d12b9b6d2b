"""Clients of every method could be in another process: what reaches them is bytes."""

import pytest
import torch

from ccfcpp.core.randomness import Randomness
from supervised.classifiers import CLASSIFIERS
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.federation import assert_same_bits, federated, over_a_wire


@pytest.mark.parametrize("method", CLASSIFIERS.own())
def test_over_a_wire_every_bit_is_that_of_one_process(method: str) -> None:
    """The clients' algorithm is made for itself, from the same configuration."""
    config = small_config(f"method={method}", "compute.cohort=1", "training.rounds=2")
    sizes = (19, 12, 9)
    here, far, near = (small_algorithm(config, len(sizes)) for _ in range(3))
    whole = federated(method, here, labelled_clients(*sizes))
    wired = over_a_wire(method, near, far, labelled_clients(*sizes))
    state = here.initial_state(Randomness(0))
    expected, found = list(whole.run(state)), list(wired.run(state))
    assert len(found) == 2
    assert_same_bits(found, expected)
    assert not any(report.refused for _, report in found)
    for client in range(len(sizes)):
        kept = whole.transport.memories.take(client)
        other = wired.transport.far.memories.take(client)
        assert kept.keys() == other.keys()
        assert all(torch.equal(entry, other[name]) for name, entry in kept.items())
