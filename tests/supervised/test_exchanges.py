"""Clients of every method can be in another process, since messages and updates are bytes."""

import pytest
import torch

from ccfcpp.core.randomness import Randomness
from supervised.classifiers import CLASSIFIERS
from supervised.messages import LocalUpdate
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.federation import assert_same_bits, federated, over_a_wire, refusal


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbn"])
def test_terms_by_epoch_travel_and_are_logged_by_client(method: str) -> None:
    """This includes a client that cannot train, which sends no loss."""
    settings = ("decorrelation.log_epochs=true", "training.local_epochs=2", "training.rounds=1")
    config = small_config(f"method={method}", *settings)
    sizes = (19, 12, 1)
    here, far, near = (small_algorithm(config, len(sizes)) for _ in range(3))
    wired = over_a_wire(method, near, far, labelled_clients(*sizes))
    ((_, report),) = wired.run(here.initial_state(Randomness(0)))
    terms = {key for key in report.figures if key != "loss"}
    assert terms == {f"decorrelation/{n}/{e}" for n in (1, 2) for e in (1, 2)}
    assert all(report.figures[key] > 0 for key in terms)
    assert not report.refused


def test_terms_of_another_number_of_epochs_are_refused() -> None:
    settings = ("training.local_epochs=2", "decorrelation.log_epochs=true")
    algorithm = small_algorithm(small_config(*settings), 1)
    state = algorithm.initial_state(Randomness(0))
    for epochs, refused in ((2, False), (3, True)):
        terms = torch.ones(epochs, dtype=torch.float64)
        update = LocalUpdate(state.model, 12, 4, 0.5, terms)
        reason = refusal(algorithm, state, update, samples=12)
        assert ("'terms' is" in (reason or "")) == refused


@pytest.mark.parametrize("method", CLASSIFIERS.own())
def test_over_a_wire_every_bit_is_that_of_one_process(method: str) -> None:
    """The clients' algorithm is made separately, from the same configuration."""
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
