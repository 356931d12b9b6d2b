"""Aggregation of each method against the recurrences of its paper."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.config_layers import parse_assignments, validate
from ccfcpp.engine.payload import pack
from ccfcpp.models.state import ModelState
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.messages import LocalUpdate, ServerState
from supervised.methods.scaffold import ControlledState, ControlledUpdate
from tests.clustering.systems.ccfc.test_losses import SEEDS, normal

PARAMETERS = ["head.weight", "head.bias"]
CONTROL = 9
ROUNDS = 4
CLIENTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=5)
"""Samples and steps of each client."""


def model(seed: int) -> ModelState:
    """Two parameters, a running statistic and a counter."""
    return {
        "head.weight": normal(seed, 2, 3),
        "head.bias": normal(seed + 1, 2),
        "norm.running_mean": normal(seed + 2, 4),
        "norm.num_batches_tracked": torch.tensor(seed % 97),
    }


def updates_of(seed: int, clients: Sequence[tuple[int, int]]) -> list[LocalUpdate]:
    """An update of each client, which is given by its samples and steps."""
    updates = []
    for number, (samples, steps) in enumerate(clients):
        own = 100 * seed + 10 * number
        updates.append(LocalUpdate(model(own), samples, steps, 1.0))
    return updates


def rounds_of(seed: int, clients: Sequence[tuple[int, int]]) -> list[list[LocalUpdate]]:
    return [updates_of(seed + number, clients) for number in range(1, ROUNDS + 1)]


def start(seed: int, method: str = "fedavg") -> ServerState:
    """First state of the method, for some model."""
    return CLASSIFIERS[method].begin(model(100 * seed + 70), normal(seed, CONTROL))


def controlled(seed: int, updates: Sequence[LocalUpdate]) -> list[LocalUpdate]:
    """Updates with changes of control variates, as SCAFFOLD sends them."""
    return [
        ControlledUpdate(**vars(update), control_change=normal(100 * seed + 10 * n + 5, CONTROL))
        for n, update in enumerate(updates)
    ]


def sent(method: str, seed: int, clients: Sequence[tuple[int, int]]) -> Sequence[LocalUpdate]:
    """Updates of the method's type."""
    updates = updates_of(seed, clients)
    return controlled(seed, updates) if method == "scaffold" else updates


def aggregated(
    method: str,
    state: ServerState,
    updates: Sequence[LocalUpdate],
    *settings: str,
    population: int = 10,
) -> ServerState:
    config = validate(ClassifyConfig, parse_assignments((f"method={method}", *settings)))
    aggregation = CLASSIFIERS[method].aggregation(state, PARAMETERS, config, population)
    for update in updates:
        aggregation.add(update)
    result = aggregation.result()
    assert isinstance(result, CLASSIFIERS[method].state)
    return result


def after_rounds(
    method: str, state: ServerState, rounds: Sequence[list[LocalUpdate]], *settings: str
) -> ModelState:
    for updates in rounds:
        state = aggregated(method, state, updates, *settings)
    return state.model


def mean(updates: Sequence[LocalUpdate], name: str) -> Tensor:
    """Σ n_k w_k / n."""
    total = sum(update.samples for update in updates)
    return torch.stack([u.samples / total * u.model[name] for u in updates]).sum(dim=0)


def assert_parameters(found: ModelState, expected: Callable[[str], Tensor]) -> None:
    for name in PARAMETERS:
        torch.testing.assert_close(found[name], expected(name), msg=name)


@given(CLIENTS, SEEDS)
def test_fedavg_is_the_mean_by_samples(clients: list[tuple[int, int]], seed: int) -> None:
    updates = updates_of(seed, clients)
    found = aggregated("fedavg", start(seed), updates).model
    assert_parameters(found, lambda name: mean(updates, name))


@pytest.mark.parametrize("method", CLASSIFIERS)
@given(clients=CLIENTS, seed=SEEDS)
def test_statistics_are_the_plain_mean_and_the_largest_counter_is_kept(
    method: str, clients: list[tuple[int, int]], seed: int
) -> None:
    state, updates = start(seed, method), sent(method, seed, clients)
    found = aggregated(method, state, updates).model
    assert list(found) == list(model(0))
    expected = mean(updates, "norm.running_mean")
    torch.testing.assert_close(found["norm.running_mean"], expected)
    counters = [int(update.model["norm.num_batches_tracked"]) for update in updates]
    assert found["norm.num_batches_tracked"] == max(counters)


@pytest.mark.parametrize("method", CLASSIFIERS)
@given(clients=CLIENTS, seed=SEEDS)
def test_the_order_of_the_updates_does_not_matter(
    method: str, clients: list[tuple[int, int]], seed: int
) -> None:
    state, updates = start(seed, method), sent(method, seed, clients)
    first = pack(aggregated(method, state, updates))
    second = pack(aggregated(method, state, updates[::-1]))
    assert first.keys() == second.keys()
    for name, entry in first.items():
        torch.testing.assert_close(second[name], entry, msg=name)


# --- server optimizers --------------------------------------------------------------------------


@pytest.mark.parametrize("dampening", ["none", "momentum"])
@given(clients=CLIENTS, seed=SEEDS, rho=st.sampled_from([0.3, 0.5, 0.9]))
def test_fedavgm_over_several_rounds(
    dampening: str, clients: list[tuple[int, int]], seed: int, rho: float
) -> None:
    rounds = rounds_of(seed, clients)
    settings = (f"fedavgm.momentum={rho}", f"fedavgm.dampening={dampening}")

    def expected(name: str) -> Tensor:
        x = start(seed).model[name]
        v = torch.zeros_like(x)
        for updates in rounds:
            delta = mean(updates, name) - x
            v = rho * v + (delta if dampening == "none" else (1 - rho) * delta)
            x = x + v
        return x

    assert_parameters(after_rounds("fedavgm", start(seed, "fedavgm"), rounds, *settings), expected)


@pytest.mark.parametrize("dampening", ["none", "momentum"])
@given(clients=CLIENTS, seed=SEEDS)
def test_fedavgm_without_momentum_is_fedavg(
    dampening: str, clients: list[tuple[int, int]], seed: int
) -> None:
    rounds = rounds_of(seed, clients)
    settings = ("fedavgm.momentum=0", f"fedavgm.dampening={dampening}")
    found = after_rounds("fedavgm", start(seed, "fedavgm"), rounds, *settings)
    expected = after_rounds("fedavg", start(seed), rounds)
    assert_parameters(found, lambda name: expected[name])


@pytest.mark.parametrize("method", ["fedadagrad", "fedyogi", "fedadam"])
@given(clients=CLIENTS, seed=SEEDS, tau=st.sampled_from([1e-3, 0.5]))
def test_adaptive_servers_are_algorithm_2_of_reddi(
    method: str, clients: list[tuple[int, int]], seed: int, tau: float
) -> None:
    rounds = rounds_of(seed, clients)
    eta, beta1, beta2 = 0.3, 0.8, 0.95
    settings = [f"adaptive.learning_rate={eta}", f"adaptive.tau={tau}"]
    settings += [f"adaptive.beta1={beta1}", f"adaptive.beta2={beta2}"]

    def expected(name: str) -> Tensor:
        x = start(seed).model[name]
        m, v = torch.zeros_like(x), torch.full_like(x, tau**2)
        for updates in rounds:
            delta = mean(updates, name) - x
            m = beta1 * m + (1 - beta1) * delta
            if method == "fedadagrad":
                v = v + delta**2
            elif method == "fedyogi":
                v = v - (1 - beta2) * delta**2 * torch.sign(v - delta**2)
            else:
                v = beta2 * v + (1 - beta2) * delta**2
            x = x + eta * m / (torch.sqrt(v) + tau)
        return x

    assert_parameters(after_rounds(method, start(seed, method), rounds, *settings), expected)


# --- FedNova ------------------------------------------------------------------------------------


def norm_of_steps(tau: int, rho: float) -> float:
    """‖a‖₁: a step k of τ goes on in all later ones, by (1 − ρ^{τ−k})/(1 − ρ) in all."""
    return sum((1 - rho ** (tau - k)) / (1 - rho) for k in range(tau))


@given(CLIENTS, SEEDS, st.sampled_from([0.0, 0.5, 0.9]))
def test_fednova_moves_by_normalised_changes(
    clients: list[tuple[int, int]], seed: int, rho: float
) -> None:
    updates = updates_of(seed, clients)
    total = sum(update.samples for update in updates)
    p = [update.samples / total for update in updates]
    norms = [norm_of_steps(update.steps, rho) for update in updates]
    tau_eff = sum(share * norm for share, norm in zip(p, norms, strict=True))

    def expected(name: str) -> Tensor:
        x = start(seed).model[name]
        d = [(x - u.model[name]) / norm for u, norm in zip(updates, norms, strict=True)]
        parts = [share * direction for share, direction in zip(p, d, strict=True)]
        return x - tau_eff * torch.stack(parts).sum(dim=0)

    found = aggregated("fednova", start(seed), updates, f"training.momentum={rho}").model
    assert_parameters(found, expected)


def test_the_norm_of_steps_is_what_sgd_with_momentum_does_to_a_constant_gradient() -> None:
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    for steps in range(1, 8):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert -weight.item() == pytest.approx(norm_of_steps(steps, 0.9))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 12), SEEDS)
def test_fednova_of_equal_steps_is_fedavg(samples: list[int], steps: int, seed: int) -> None:
    updates = updates_of(seed, [(count, steps) for count in samples])
    found = aggregated("fednova", start(seed), updates).model
    assert_parameters(found, lambda name: mean(updates, name))


@given(CLIENTS, SEEDS)
def test_in_fednova_a_client_without_a_step_brings_no_direction(
    clients: list[tuple[int, int]], seed: int
) -> None:
    """The client has its share p_i, with ‖a_i‖₁ = 0 and d_i = 0."""
    updates, other = updates_of(seed, clients), updates_of(seed, [*clients, (7, 0)])
    total = sum(update.samples for update in updates)
    without = aggregated("fednova", start(seed), updates).model
    found = aggregated("fednova", start(seed), other).model
    share = total / (total + 7)

    def expected(name: str) -> Tensor:
        x = start(seed).model[name]
        return x + share**2 * (without[name] - x)

    assert_parameters(found, expected)


def test_in_fednova_nobody_with_a_step_leaves_the_state() -> None:
    state = start(0)
    found = aggregated("fednova", state, updates_of(0, [(3, 0), (1, 0)]))
    assert found.model.keys() == state.model.keys()
    assert all(torch.equal(found.model[name], state.model[name]) for name in state.model)


# --- FedExP -------------------------------------------------------------------------------------


@given(CLIENTS, SEEDS, st.sampled_from([1e-3, 0.1, 10.0]))
def test_fedexp_goes_beyond_the_mean(
    clients: list[tuple[int, int]], seed: int, epsilon: float
) -> None:
    updates, x = updates_of(seed, clients), start(seed).model
    total = sum(update.samples for update in updates)

    def flat(changed: Callable[[str], Tensor]) -> Tensor:
        return torch.cat([(changed(name) - x[name]).flatten() for name in PARAMETERS])

    average = flat(lambda name: mean(updates, name))
    spread = 0.0
    for update in updates:
        own = flat(update.model.__getitem__)
        spread += update.samples / total * float(own @ own)
    factor = max(1.0, spread / (2 * (float(average @ average) + epsilon)))
    found = aggregated("fedexp", start(seed), updates, f"fedexp.epsilon={epsilon}").model
    assert_parameters(found, lambda name: x[name] + factor * (mean(updates, name) - x[name]))


def test_fedexp_does_extrapolate_where_clients_disagree() -> None:
    ones = {name: torch.ones_like(entry) for name, entry in model(0).items()}
    x = {name: torch.zeros_like(entry) for name, entry in ones.items()}
    first = {name: entry.clone() for name, entry in ones.items()}
    first["head.weight"] *= -0.9
    updates = [LocalUpdate(first, 5, 1), LocalUpdate(ones, 5, 1)]
    found = aggregated("fedexp", ServerState(x), updates, "fedexp.epsilon=1e-9").model
    # Squared norms are 6 · 0.81 + 2 and 8; the mean's is 6 · 0.0025 + 2.
    factor = (6.86 + 8) / 2 / (2 * 2.015)
    assert found["head.bias"].tolist() == pytest.approx([factor, factor])


# --- SCAFFOLD -----------------------------------------------------------------------------------


@given(CLIENTS, SEEDS, st.integers(0, 5))
def test_scaffolds_control_moves_by_the_participants_share_of_their_mean_change(
    clients: list[tuple[int, int]], seed: int, absent: int
) -> None:
    state, updates = start(seed, "scaffold"), sent("scaffold", seed, clients)
    population = len(clients) + absent
    found = aggregated("scaffold", state, updates, population=population)
    changes = [u.control_change for u in updates if isinstance(u, ControlledUpdate)]
    assert isinstance(state, ControlledState)
    assert isinstance(found, ControlledState)
    assert len(changes) == len(clients)
    expected = state.control + len(clients) / population * torch.stack(changes).mean(dim=0)
    torch.testing.assert_close(found.control, expected)
    assert_parameters(found.model, lambda name: mean(updates, name))
