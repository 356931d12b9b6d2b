"""Integration: conserved quantities, convergence, measured rates, and awkward input."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.claim_checks import central_differences, relative_error, simulate
from ccfcpp.studies.theory.networks import (
    SplitNetwork,
    WeightMatrices,
    balanced_chain,
    exact_rates,
    flow,
    imbalance,
    orthonormal_columns,
    product,
)
from ccfcpp.studies.theory.problems import Jacobian, contrastive_drive, exact_drive
from tests.support.theory import INPUTS, LATENT, clustered, labelled, network, normal


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_balanced_chain_is_balanced_and_has_the_product(seed: int, depth: int) -> None:
    generator = Randomness(seed).generator("chain")
    left = orthonormal_columns((2,), 5, 3, generator)
    right = orthonormal_columns((2,), 6, 3, generator)
    values = normal(seed, "values", 2, 3).abs() + 0.1
    layers = balanced_chain(left, values, right, depth)
    torch.testing.assert_close(product(layers), left @ torch.diag_embed(values) @ right.mT)
    assert len(layers) == depth
    if depth > 1:
        assert imbalance(layers).max() < 1e-12


def balanced_network(depth: int) -> WeightMatrices:
    generator = Randomness(0).generator("balanced")
    left = orthonormal_columns((), LATENT, LATENT, generator)
    right = orthonormal_columns((), INPUTS, LATENT, generator)
    values = torch.tensor([1.2, 0.9, 0.6, 0.3], dtype=torch.float64)
    return balanced_chain(left, values, right, depth)


@pytest.mark.parametrize("depth", [2, 3])
def test_the_flow_conserves_balance_whatever_the_head(depth: int) -> None:
    start = SplitNetwork((*balanced_network(depth), normal(0, "head", 5, LATENT)), depth)
    path = flow(start, partial(exact_drive, data=labelled(0)), 1e-3, 100).layers
    assert imbalance(path[:depth]).max() < 1e-7
    # a difference that is not 0 is conserved as well
    ends = [
        path[-1][n].mT @ path[-1][n] - path[depth - 1][n] @ path[depth - 1][n].mT for n in (0, -1)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-7)
    assert (path[0][-1] - path[0][0]).norm() > 0.1


def test_the_contrastive_flow_conserves_each_layers_norm_and_the_printed_one_does_not() -> None:
    start = network(0, 2, 1, LATENT)
    data = clustered(0, 0.5)

    def growth(jacobian: Jacobian) -> float:
        drive = partial(contrastive_drive, data=data, jacobian=jacobian)
        path = flow(start, drive, 0.01, 50)
        return max(abs(float(w[-1].norm() / w[0].norm()) - 1) for w in path.layers)

    assert growth("full") < 1e-9
    assert growth("diagonal") > 1e-2


def test_halving_the_step_divides_the_error_by_sixteen() -> None:
    start, data = network(0, 2, 1), labelled(0)

    def end(steps: int) -> torch.Tensor:
        path = flow(start, partial(exact_drive, data=data), 0.2 / steps, steps)
        return product(path.at_times(-1).layers)

    reference = end(640)
    errors = [float((end(steps) - reference).norm()) for steps in (40, 80)]
    assert 13 < errors[0] / errors[1] < 19


def test_differences_are_exact_for_polynomials_of_order_four() -> None:
    t = 0.1 * torch.arange(9, dtype=torch.float64)
    torch.testing.assert_close(central_differences(t**4, 0.1), (4 * t**3)[2:-2])


def test_measured_rates_are_the_exact_ones_and_a_wrong_formula_is_far_off() -> None:
    data = labelled(0)
    start = network(0, 2, 1).at_clients(1)
    drive = partial(exact_drive, data=data)
    simulation = simulate(start, drive, 1e-3, 100)
    assert simulation.resolved.any()
    exact = exact_rates(simulation.network, drive(simulation.network))
    assert relative_error(exact, simulation) < 1e-6
    assert relative_error(2 * exact, simulation) == pytest.approx(1, rel=1e-5)
    assert relative_error(-exact, simulation) == pytest.approx(2, rel=1e-5)
    assert simulation.times[0] == pytest.approx(4e-3)
    torch.testing.assert_close(
        simulation.network.at_times(0).encoder, flow(start, drive, 1e-3, 4).at_times(4).encoder
    )


def test_a_turn_that_is_faster_than_the_step_is_not_resolved() -> None:
    # Two singular values that cross: the larger one has a kink there.
    def drive(at: SplitNetwork) -> torch.Tensor:
        return torch.tensor([[[-1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)

    eye = torch.eye(2, dtype=torch.float64)
    start = SplitNetwork((torch.diag(torch.tensor([1.0, 0.9])).double()[None], eye[None]), 1)
    resolved = simulate(start, drive, 0.01, 20).resolved
    assert not resolved.all()
    assert resolved.any()


@pytest.mark.parametrize(("step", "steps"), [(0.0, 5), (-1.0, 5), (0.1, 0)])
def test_a_flow_without_steps_is_refused(step: float, steps: int) -> None:
    with pytest.raises(AssertionError, match="step"):
        flow(network(0, 1, 1), lambda _: torch.zeros(1), step, steps)


def test_other_awkward_input_is_refused() -> None:
    with pytest.raises(AssertionError, match="orthonormal"):
        orthonormal_columns((), 2, 3, Randomness(0).generator("x"))
    with pytest.raises(AssertionError, match="five times"):
        central_differences(torch.zeros(4), 1.0)
