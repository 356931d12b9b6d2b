"""Every system and method gives the same bits on other machines as in one process."""

from pathlib import Path

import pytest

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from supervised.classifiers import CLASSIFIERS
from tests.clustering.test_exchanges import CASES, TWO_ROUNDS
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import deployed, one_by_one, spec_of
from tests.support.federation import assert_same_bits

SOME_ABSENT = Availability(dropout_rate=0.3)


@pytest.mark.parametrize(("method", "other"), CASES)
def test_a_system_is_the_same(method: str, other: Tree, tmp_path: Path) -> None:
    clients = clients_of_sizes(30, 21, 12)
    config = tiny(method, TWO_ROUNDS, other, {"seed": 5})
    spec = spec_of(config, clients, clusters=3)
    there, _ = deployed(spec, made(config, samples=63), clients, tmp_path)
    here = one_by_one(spec, made(config, samples=63), clients)
    state = here.algorithm.initial_state(Randomness(5))
    found, expected = list(there.run(state)), list(here.run(state))
    assert_same_bits(found, expected)
    assert not any(report.refused or report.absent for _, report in found)


@pytest.mark.parametrize("method", CLASSIFIERS.own())
def test_a_method_is_the_same(method: str, tmp_path: Path) -> None:
    clients = labelled_clients(40, 31, 24)
    config = small_config(f"method={method}", "seed=5", "compute.cohort=1")
    classes = [str(number) for number in range(10)]
    spec = spec_of(config, clients, classes=classes)
    there, _ = deployed(spec, small_algorithm(config, 3), clients, tmp_path, SOME_ABSENT)
    here = one_by_one(spec, small_algorithm(config, 3), clients, SOME_ABSENT)
    state = here.algorithm.initial_state(Randomness(5))
    found, expected = list(there.run(state)), list(here.run(state))
    assert_same_bits(found, expected)
    assert not any(report.refused or report.absent for _, report in found)


def test_every_system_says_what_it_sends() -> None:
    kinds = {name: METHODS[name].kinds for name in METHODS.own()}
    assert {name for name in kinds if kinds[name] == ("images",)} == {"km", "fcm"}
    assert {name for name in kinds if "synthetic" in kinds[name]} == {
        "sda-fc-km", "sda-fc-fcm", "ppfc-gan", "fed-dcn",
    }  # fmt: skip
