"""Each loss term against a slow version written from its paper, in value and in gradient."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.models.decorrelation import feddecorr
from supervised.losses import (
    decov,
    model_contrast,
    structured_decov,
)
from tests.clustering.systems.ccfc.test_losses import SEEDS, normal, value_and_gradient

Loss = Callable[[Tensor], Tensor]
GROUPS = 3
# Fewer and more dimensions than samples: the smaller of two products is formed.
BATCHES, DIMENSIONS = st.integers(2, 12), st.sampled_from([3, 6, 9])


def algorithm_1(z: Tensor) -> Tensor:
    """Algorithm 1 of the FedDecorr paper, line by line."""
    N, _ = z.shape
    z = (z - z.mean(0)) / z.std(0)
    corr_mat = 1 / N * torch.matmul(z.t(), z)
    return corr_mat.pow(2).mean()


def authors_code(z: Tensor) -> Tensor:
    """The FedDecorr authors' code: off-diagonal entries of ZᵀZ, and a division by N."""
    N, d = z.shape
    z = (z - z.mean(0)) / torch.sqrt(1e-8 + z.var(0))
    off_diagonal = [z[:, i] @ z[:, j] for i in range(d) for j in range(d) if i != j]
    return torch.stack(off_diagonal).pow(2).mean() / N


def squared_covariances(z: Tensor, groups: int) -> Tensor:
    """½ Σ C_ij² over dimensions i and j of different groups, C the mean of products."""
    N, d = z.shape
    means = [z[:, i].sum() / N for i in range(d)]
    total = torch.zeros((), dtype=z.dtype) * z.sum()
    for i in range(d):
        for j in range(d):
            if i // (d // groups) != j // (d // groups):
                covariance = ((z[:, i] - means[i]) * (z[:, j] - means[j])).sum() / N
                total = total + covariance**2 / 2
    return total


def cogswell(z: Tensor) -> Tensor:
    """½(‖C‖²_F − ‖diag C‖²) of DeCov."""
    C = torch.cov(z.T, correction=0)
    off_diagonal: Tensor = torch.linalg.norm(C) ** 2 - torch.linalg.norm(torch.diag(C)) ** 2
    return off_diagonal / 2


@pytest.mark.parametrize(
    ("fast", "slow", "spread"),
    [
        # Algorithm 1 divides by deviations as they are: wide data hides the 1e-8 beside them.
        pytest.param(feddecorr, algorithm_1, 1000.0, id="paper"),
        pytest.param(partial(feddecorr, scale="code"), authors_code, 1.0, id="code"),
        pytest.param(decov, cogswell, 1.0, id="decov"),
        pytest.param(
            partial(structured_decov, groups=GROUPS),
            partial(squared_covariances, groups=GROUPS),
            1.0,
            id="structured decov",
        ),
    ],
)
@given(batch=BATCHES, dimensions=DIMENSIONS, seed=SEEDS)
def test_a_decorrelation_term_is_its_equation(
    fast: Loss, slow: Loss, spread: float, batch: int, dimensions: int, seed: int
) -> None:
    z = normal(seed, batch, dimensions) + 1
    value, gradient = value_and_gradient(lambda x: fast(spread * x), z)
    expected, expected_gradient = value_and_gradient(lambda x: slow(spread * x), z)
    torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-6)


TERMS: list[Callable[..., Tensor]] = [
    feddecorr,
    partial(feddecorr, scale="code"),
    decov,
    partial(structured_decov, groups=GROUPS),
]


@pytest.mark.parametrize("term", TERMS)
def test_any_leading_axes_are_independent_losses(term: Callable[..., Tensor]) -> None:
    z = normal(0, 2, 3, 4, 6)
    found = term(z)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found[1, 2], term(z[1, 2]))


@pytest.mark.parametrize("term", TERMS)
def test_one_sample_gives_a_zero_with_a_gradient(term: Callable[..., Tensor]) -> None:
    value, gradient = value_and_gradient(term, normal(0, 1, 6))
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("batch", [4, 8])
def test_a_constant_dimension_counts_nothing_and_gives_finite_gradients(
    term: Callable[..., Tensor], batch: int, dtype: torch.dtype
) -> None:
    z = normal(0, batch, 6).to(dtype)
    z[:, 2] = 0.5
    value, gradient = value_and_gradient(term, z)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    moved = z.clone()
    moved[:, 2] = 0
    torch.testing.assert_close(value, term(moved))


# --- Proposition 1 ------------------------------------------------------------------------------


@given(st.integers(3, 20), st.integers(2, 9), SEEDS)
def test_proposition_1_and_what_the_loss_has_to_do_with_it(batch: int, d: int, seed: int) -> None:
    """Σ(λ_i − λ̄)² = ‖K‖²_F − d, and the loss is ((N − 1)/N)² ‖K‖²_F/d².

    Z is scored by the unbiased deviation, so K = ZᵀZ/(N − 1), where Algorithm 1 has ZᵀZ/N.
    """
    z = 1000 * normal(seed, batch, d)
    K = np.corrcoef(z.numpy(), rowvar=False)
    singular = np.linalg.svd(K, compute_uv=False)
    squares = np.square(K).sum()
    assert np.square(singular - singular.mean()).sum() == pytest.approx(squares - d)
    assert feddecorr(z).item() == pytest.approx(((batch - 1) / batch) ** 2 * squares / d**2)


@given(BATCHES, DIMENSIONS, SEEDS)
def test_the_two_scales_of_feddecorr_are_one_sum_apart(batch: int, d: int, seed: int) -> None:
    """With the diagonal of ZᵀZ, N − 1, taken off and on again: about N times as large."""
    z = 1000 * normal(seed, batch, d)
    with_diagonal = feddecorr(z, "code") * batch * d * (d - 1) + d * (batch - 1) ** 2
    torch.testing.assert_close(feddecorr(z), with_diagonal / (batch * d) ** 2)


# --- Structured-DeCov ---------------------------------------------------------------------------


@given(BATCHES, DIMENSIONS, SEEDS)
def test_structured_decov_of_all_groups_and_of_one(batch: int, dimensions: int, seed: int) -> None:
    z = normal(seed, batch, dimensions)
    torch.testing.assert_close(structured_decov(z, dimensions), decov(z))
    assert structured_decov(z, 1).item() == pytest.approx(0, abs=1e-12)


def test_dimensions_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="6 dimensions cannot be divided into 4 groups"):
        structured_decov(normal(0, 5, 6), 4)


# --- MOON ---------------------------------------------------------------------------------------


def equation_3(z: Tensor, of_global: Tensor, of_previous: Tensor, tau: float) -> Tensor:
    """Eq. (3) of MOON, sample by sample."""

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        cosine: Tensor = torch.dot(a, b) / (torch.linalg.norm(a) * torch.linalg.norm(b))
        return cosine

    losses = []
    for own, other, last in zip(z, of_global, of_previous, strict=True):
        towards = torch.exp(similarity(own, other) / tau)
        away = torch.exp(similarity(own, last) / tau)
        losses.append(-torch.log(towards / (towards + away)))
    return torch.stack(losses).mean()


@given(BATCHES, DIMENSIONS, st.sampled_from([0.1, 0.5, 1.0]), SEEDS)
def test_model_contrast_is_equation_3_of_moon(
    batch: int, dimensions: int, tau: float, seed: int
) -> None:
    z, other, last = normal(seed, 3, batch, dimensions)
    found = value_and_gradient(lambda x: model_contrast(x, other, last, tau), z)
    for one, expected in zip(
        found, value_and_gradient(lambda x: equation_3(x, other, last, tau), z), strict=True
    ):
        torch.testing.assert_close(one, expected)


def test_equal_frozen_models_give_log_2_and_no_gradient() -> None:
    z, frozen = normal(0, 2, 5, 6)
    value, gradient = value_and_gradient(lambda x: model_contrast(x, frozen, frozen, 0.5), z)
    assert value.item() == pytest.approx(np.log(2))
    torch.testing.assert_close(gradient, torch.zeros_like(z), atol=1e-15, rtol=0)


def test_no_gradient_reaches_the_frozen_models() -> None:
    z, other, last = (t.requires_grad_() for t in normal(0, 3, 5, 6).unbind())
    torch.autograd.backward(model_contrast(z, other, last, 0.5))
    assert z.grad is not None
    assert other.grad is None
    assert last.grad is None
