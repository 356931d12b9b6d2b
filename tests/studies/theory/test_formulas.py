"""Each analytic right-hand side against autograd, on random small networks."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.networks import (
    SplitNetwork,
    WeightMatrices,
    depth_offsets,
    exact_rates,
    layer_velocities,
    paired_vectors,
    product,
    rates_without_alignment,
    theorem_rates,
)
from ccfcpp.studies.theory.problems import (
    aligned_start,
    class_mean_drive,
    contrastive_drive,
    exact_drive,
    residuals,
)
from tests.clustering.systems.ccfc.test_losses import equation_2
from tests.support.theory import (
    LATENT,
    OUTPUTS,
    clustered,
    contrastive_loss,
    cross_entropy_sum,
    labelled,
    network,
    normal,
)

SEEDS = st.integers(0, 10_000)
DEPTHS = st.integers(1, 3)


def descent(loss: Callable[[WeightMatrices], Tensor], layers: WeightMatrices) -> WeightMatrices:
    """−∂ℓ/∂W_j of every layer, by autograd."""
    leaves = [layer.clone().requires_grad_() for layer in layers]
    return tuple(-g for g in torch.autograd.grad(loss(tuple(leaves)), leaves))


def rates_by_hand(at: SplitNetwork, velocities: WeightMatrices) -> Tensor:
    """u_kᵀ (dΠ/dt) v_k, with dΠ/dt by a difference in the direction of descent."""
    u, _, vt = torch.linalg.svd(at.encoder, full_matrices=False)
    tiny = 1e-6
    steps = list(zip(at.layers[: at.depth], velocities[: at.depth], strict=True))
    ahead, behind = (product([w + sign * tiny * v for w, v in steps]) for sign in (1, -1))
    moved = (ahead - behind) / (2 * tiny)
    return torch.stack([u[:, k] @ moved @ vt[k] for k in range(LATENT)])


def check_descent(at: SplitNetwork, drive: Tensor, loss: Callable[[SplitNetwork], Tensor]) -> None:
    expected = descent(lambda layers: loss(SplitNetwork(layers, at.depth)), at.layers)
    for found, wanted in zip(layer_velocities(at.layers, drive), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    by_hand = rates_by_hand(at, expected)
    torch.testing.assert_close(exact_rates(at, drive), by_hand, rtol=1e-5, atol=1e-6)


@given(SEEDS, DEPTHS)
def test_cross_entropy_moves_layers_and_singular_values_as_autograd_says(
    seed: int, depth: int
) -> None:
    at, data = network(seed, depth, 1), labelled(seed)
    check_descent(at, exact_drive(at, data), lambda other: cross_entropy_sum(other, data))


@given(SEEDS, DEPTHS, st.integers(1, 2), st.sampled_from([0.0, 0.5]))
def test_contrast_moves_layers_and_singular_values_as_autograd_says(
    seed: int, depth: int, head_depth: int, lam: float
) -> None:
    at, data = network(seed, depth, head_depth, LATENT), clustered(seed, lam)
    check_descent(at, contrastive_drive(at, data), lambda other: contrastive_loss(other, data))


@given(SEEDS, st.sampled_from([0.0, 0.5]))
def test_the_contrastive_loss_is_equation_2(seed: int, lam: float) -> None:
    at, data = network(seed, 2, 1, LATENT), clustered(seed, lam)
    latents = at.encoder @ data.inputs
    expected = equation_2(
        (at.head @ latents).T, latents.T, data.global_predictions.T, data.members.argmax(0), lam, 1
    )
    torch.testing.assert_close(contrastive_loss(at, data), torch.as_tensor(expected))


@given(SEEDS)
def test_the_printed_q_is_equation_15_entry_by_entry(seed: int) -> None:
    at, data = network(seed, 1, 1, LATENT), clustered(seed, 0.5)
    z = at.encoder @ data.inputs
    p = at.head @ z
    labels = data.members.argmax(dim=0)
    expected = torch.zeros(LATENT, data.inputs.shape[0], dtype=torch.float64)
    clusters = sorted(set(labels.tolist()))
    for c in clusters:
        inside = (labels == c).nonzero().flatten().tolist()
        for i in inside:
            for r in range(LATENT):
                pull = sum(z[r, j] / z[:, j].norm() for j in inside) / len(inside) ** 2
                of_global = data.global_predictions[:, i]
                pull += 0.5 / len(inside) * of_global[r] / of_global.norm()
                q = pull * (1 - (p[r, i] / p[:, i].norm()) ** 2) / p[:, i].norm()
                expected[r] += q * data.inputs[:, i] / len(clusters)
    torch.testing.assert_close(contrastive_drive(at, data, "diagonal"), expected)
    assert not torch.allclose(contrastive_drive(at, data), expected)


def test_other_weights_of_the_main_text_are_a_factor_for_equal_clusters() -> None:
    at, data = network(0, 1, 1, LATENT), clustered(0, 0.0, clusters=1)
    torch.testing.assert_close(
        contrastive_drive(at, data, latent_weight="main text"),
        data.inputs.shape[1] * contrastive_drive(at, data),
    )


@given(SEEDS)
def test_class_means_are_the_printed_sum(seed: int) -> None:
    at, data = network(seed, 2, 1), labelled(seed)
    rest = residuals(at, data)
    expected = torch.zeros(OUTPUTS, data.inputs.shape[0], dtype=torch.float64)
    for c in range(OUTPUTS):
        inside = data.labels[c] == 1
        if inside.any():
            means = rest[:, inside].mean(dim=1), data.inputs[:, inside].mean(dim=1)
            expected += inside.sum() * torch.outer(*means)
    torch.testing.assert_close(class_mean_drive(at, data), expected)


@given(SEEDS)
def test_equation_45_holds_where_a_class_has_no_spread_and_else_does_not(seed: int) -> None:
    at = network(seed, 2, 1)
    alike, spread = labelled(seed, 0.0), labelled(seed, 1.0)
    torch.testing.assert_close(class_mean_drive(at, alike), exact_drive(at, alike))
    assert not torch.allclose(class_mean_drive(at, spread), exact_drive(at, spread), rtol=1e-3)


@given(SEEDS, DEPTHS, st.integers(1, 2), st.floats(0, 2))
def test_the_theorems_form_is_exact_under_the_assumptions_for_any_driving_matrix(
    seed: int, depth: int, head_depth: int, constant: float
) -> None:
    generator = Randomness(seed).generator("start")
    values = torch.tensor([1.3, 1.0, 0.6, 0.2], dtype=torch.float64)
    start = aligned_start(1, (depth, head_depth), OUTPUTS, values, constant, generator)
    driving = normal(seed, "driving", 1, *start.head.shape[1:2], start.encoder.shape[2])
    exact = exact_rates(start, driving)
    constants = depth_offsets(start, head_depth)
    torch.testing.assert_close(constants, torch.full_like(constants, constant))
    torch.testing.assert_close(theorem_rates(start, constants, driving, head_depth), exact)
    torch.testing.assert_close(rates_without_alignment(start, driving), exact)


def test_a_predictor_of_two_layers_needs_the_other_power() -> None:
    generator = Randomness(0).generator("start")
    values = torch.tensor([1.3, 1.0, 0.6, 0.2], dtype=torch.float64)
    start = aligned_start(1, (2, 2), OUTPUTS, values, 0.5, generator)
    printed = values + depth_offsets(
        start, 1
    )  # at L = 2 the squared head value, if it were one layer
    assert depth_offsets(start, 2).std() < 1e-12 < 0.1 < depth_offsets(start, 1).std()
    torch.testing.assert_close(paired_vectors(start).head_values ** 2, printed)


def test_aligned_vectors_are_turned_to_one_side() -> None:
    pairs = paired_vectors(network(3, 2, 1))
    assert ((pairs.left * pairs.head_right).sum(dim=0) >= 0).all()
    assert pairs.alignment.shape == (LATENT, LATENT)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_without_balance_the_third_line_of_equation_40_is_wrong_for_more_than_one_layer(
    depth: int,
) -> None:
    at, data = network(1, depth, 1), labelled(1)
    drive = exact_drive(at, data)
    same = torch.allclose(rates_without_alignment(at, drive), exact_rates(at, drive), rtol=1e-2)
    assert same == (depth == 1)
