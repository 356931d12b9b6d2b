"""Classifiers whose server needs means alone: secure sums of their models."""

from contextlib import nullcontext

import pytest
import torch

from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ClientLevel
from ccfcpp.robust.attacks import ATTACKS, acts_on
from ccfcpp.robust.config import RULES
from ccfcpp.robust.defence import Defence
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.methods.scaffold import ControlledState
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.sums import federation_of, protected

NEEDS_EACH = {"fednova", "fedexp"}
MEANS = sorted(set(CLASSIFIERS.own()) - NEEDS_EACH)


def one_round(config: ClassifyConfig, secure: bool) -> object:
    clients = labelled_clients(19, 16, 12, 9)
    algorithm = small_algorithm(config, len(clients))
    side = algorithm.client_side(ClientContext.of(clients))
    if secure:
        asked = PrivacyConfig(secure_sums=True)
        federation = protected(asked, config.method, algorithm, clients, side)
    else:
        federation = federation_of(config.method, algorithm, clients, side)
    state, report = federation.run_round(algorithm.initial_state(Randomness(0)), 0)
    assert not report.refused
    return state


@pytest.mark.parametrize("method", MEANS)
def test_a_mean_by_secure_sums_is_the_mean(method: str) -> None:
    """Up to the rounding of fixed point; counters of batches stay as they went down."""
    config = small_config(f"method={method}")
    found, expected = (pack(one_round(config, secure)) for secure in (True, False))
    for name, entry in expected.items():
        if entry.is_floating_point():
            torch.testing.assert_close(found[name], entry, rtol=1e-5, atol=1e-6)
        else:
            assert name.endswith("num_batches_tracked")
            assert int(found[name]) == 0


def test_scaffolds_control_variate_moves_by_the_sum_of_all_changes() -> None:
    """In secure sums it is a sum beside a mean: the server has both, and no client's part."""
    config = small_config("method=scaffold")
    secure, plain = (one_round(config, secure) for secure in (True, False))
    assert isinstance(secure, ControlledState)
    assert isinstance(plain, ControlledState)
    assert float(plain.control.norm()) > 0.1
    torch.testing.assert_close(secure.control, plain.control, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", sorted(NEEDS_EACH))
def test_methods_that_need_each_update_say_so(method: str) -> None:
    with pytest.raises(UsageError, match="the server needs each client's part"):
        one_round(small_config(f"method={method}"), secure=True)


def undefended(method: str, rule: str) -> str:
    """Why a method has not a defence; nothing where it has it."""
    if method in NEEDS_EACH:
        return "take a system whose models are means"
    # No robust mean stands for the sum of the control variates' changes.
    return "take bound" if method == "scaffold" and rule != "bound" else ""


def test_which_classifiers_have_defences_and_can_be_attacked() -> None:
    clients = labelled_clients(19, 16, 12, 9, 9)
    for method in CLASSIFIERS.own():
        algorithm = small_algorithm(small_config(f"method={method}"), len(clients))
        works = algorithm.client_side(ClientContext.of(clients)).works.values()
        exchanges = [work.exchange for work in works]
        for rule in RULES:
            reason = undefended(method, rule)
            settings = {"defence": {"rule": rule, "hostile": 0.2}}
            config = validate(ClassifyConfig, settings).defence
            with pytest.raises(UsageError, match=reason) if reason else nullcontext():
                Defence(config, method, exchanges, len(clients))
        acted = [kind for kind in ATTACKS if any(acts_on(kind, each) for each in exchanges)]
        assert acted == [kind for kind in ATTACKS if kind != "one-point"]


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "moon", "scaffold"])
def test_a_mean_with_noise_moves_by_clipped_changes_alone(method: str) -> None:
    """With next to no noise: the sum of changes of norm C at most, by q N, and no loss."""
    pytest.importorskip("dp_accounting", reason="dp-accounting is an extra: ccfcpp[privacy]")
    config = small_config(f"method={method}")
    clients = labelled_clients(19, 16, 12, 9)
    algorithm = small_algorithm(config, len(clients))
    side = algorithm.client_side(ClientContext.of(clients))
    asked = PrivacyConfig(level="client", noise=1e-6, epsilon=1e15, clip=0.01)
    start = algorithm.initial_state(Randomness(0))
    works = [algorithm.exchanges(0, start)]
    level = ClientLevel(asked, works, Randomness(0), sampled=1.0, clients=len(clients))
    federation = protected(asked, method, algorithm, clients, side, level)
    state, report = federation.run_round(start, 0)
    assert "loss" not in report.figures
    moved = [
        state.model[name].double() - entry.double()
        for name, entry in start.model.items()
        if entry.is_floating_point()
    ]
    norm = float(sum(change.square().sum() for change in moved)) ** 0.5
    assert 0.001 < norm <= 0.01 * 1.01
    if isinstance(state, ControlledState):  # each of four changes it by C / 4 at most
        assert 0.001 < float(state.control.norm()) <= 0.01 * 1.01
