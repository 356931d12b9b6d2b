"""Each loss against a slow version written from its equation, in value and in gradient."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.systems.ccfc.losses import cluster_contrast, decorrelation, siamese
from ccfcpp.core.randomness import Randomness

BATCHES = st.integers(1, 12)
DIMENSIONS = st.integers(2, 9)
SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> Tensor:
    generator = Randomness(seed).generator("test")
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def value_and_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def d(p: Tensor, z: Tensor) -> Tensor:
    """D(p, stopgrad(z)) of one pair of vectors, as the paper writes it."""
    z = z.detach()
    return -torch.dot(p / torch.linalg.norm(p), z / torch.linalg.norm(z))


def equation_2(
    p: Tensor, z: Tensor, p_global: Tensor, labels: Tensor, lam: float, min_cluster_size: int
) -> Tensor | float:
    """Eq. (2), sums written out; clusters that are too small are left out."""
    groups = [(labels == c).nonzero().flatten().tolist() for c in torch.unique(labels)]
    groups = [group for group in groups if len(group) >= min_cluster_size]
    k = len(groups)
    loss: Tensor | float = 0.0
    for group in groups:
        n = len(group)
        loss += sum(d(p[i], z[j]) for i in group for j in group) / (k * n * n)
        loss += sum(d(p[i], p_global[i]) for i in group) * lam / (k * n)
    return loss


@given(
    BATCHES,
    DIMENSIONS,
    st.integers(1, 6),
    SEEDS,
    st.sampled_from([0.0, 0.001, 2.0]),
    st.integers(1, 3),
)
def test_cluster_contrast_is_equation_2(
    batch: int, dimensions: int, clusters: int, seed: int, lam: float, smallest: int
) -> None:
    p, z, p_global = normal(seed, 3, batch, dimensions)
    labels = torch.randint(clusters, (batch,), generator=Randomness(seed).generator("labels"))

    def fast(x: Tensor) -> Tensor:
        return cluster_contrast(x, z, p_global, labels, clusters, lam, smallest)

    def slow(x: Tensor) -> Tensor:
        # 0·x keeps the oracle differentiable where no cluster is left.
        return equation_2(x, z, p_global, labels, lam, smallest) + 0 * x.sum()

    value, gradient = value_and_gradient(fast, p)
    expected, expected_gradient = value_and_gradient(slow, p)
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=0)


def test_cluster_contrast_without_lam_is_its_first_line() -> None:
    p, z, p_global = normal(0, 3, 8, 4)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 0])
    with_zero = cluster_contrast(p, z, p_global, labels, 3, 0.0)
    without = cluster_contrast(p, z, None, labels, 3, 0.0)
    torch.testing.assert_close(without, with_zero)


def test_cluster_contrast_of_a_batch_without_a_pair_is_a_zero_with_a_gradient() -> None:
    p, z, p_global = normal(0, 3, 4, 5)
    value, gradient = value_and_gradient(
        lambda x: cluster_contrast(x, z, p_global, torch.arange(4), 4, 1.0), p
    )
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(p))


def test_no_gradient_reaches_the_targets() -> None:
    p, z, p_global = (t.requires_grad_() for t in normal(0, 3, 6, 5).unbind())
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    torch.autograd.backward(cluster_contrast(p, z, p_global, labels, 2, 1.0))
    assert p.grad is not None
    assert z.grad is None
    assert p_global.grad is None


@given(BATCHES, DIMENSIONS, SEEDS)
def test_siamese_is_the_symmetric_mean_over_pairs(batch: int, dimensions: int, seed: int) -> None:
    p1, p2, z1, z2 = normal(seed, 4, batch, dimensions)

    def slow(x: Tensor) -> Tensor:
        pairs = [d(x[i], z2[i]) / 2 + d(p2[i], z1[i]) / 2 for i in range(batch)]
        return torch.stack(pairs).mean()

    value, gradient = value_and_gradient(lambda x: siamese((x, p2), (z1, z2)), p1)
    expected, expected_gradient = value_and_gradient(slow, p1)
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=0)


# Both sides of the switch between the two products are drawn: batch < d and batch ≥ d.
@given(st.integers(2, 12), DIMENSIONS, SEEDS)
def test_decorrelation_is_the_squared_norm_of_numpys_covariance(
    batch: int, dimensions: int, seed: int
) -> None:
    z = normal(seed, batch, dimensions) * 3 + 1
    value, gradient = value_and_gradient(decorrelation, z)
    covariance = np.cov(z.numpy(), rowvar=False)
    expected = np.square(covariance).sum() / dimensions**2
    assert value.item() == pytest.approx(expected, abs=1e-5)
    # d‖Σ‖²/dz = 4/(n−1)·(z − z̄)Σ: centring is its own transpose and leaves the centred z alone.
    centred = z.numpy() - z.numpy().mean(axis=0)
    by_hand = 4 / (batch - 1) * centred @ covariance / dimensions**2
    np.testing.assert_allclose(gradient.numpy(), by_hand, atol=1e-5, rtol=0)


def test_decorrelation_of_one_sample_is_a_zero_with_a_gradient() -> None:
    value, gradient = value_and_gradient(decorrelation, normal(0, 1, 5))
    assert value == 0
    assert torch.equal(gradient, torch.zeros(1, 5, dtype=torch.float64))


# --- several losses at once ---------------------------------------------------------------------


@given(
    st.integers(1, 4),
    BATCHES,
    DIMENSIONS,
    st.integers(1, 4),
    SEEDS,
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["paper", "feddecorr"]),
)
def test_leading_axes_are_losses_of_their_own(
    count: int, batch: int, dimensions: int, clusters: int, seed: int, lam: float, scale: str
) -> None:
    """In value and in gradient."""
    p, z, q = normal(seed, 3, count, batch, dimensions)
    source = Randomness(seed).generator("labels")
    labels = torch.randint(clusters, (count, batch), generator=source)

    def losses(x: Tensor, z: Tensor, q: Tensor, labels: Tensor) -> Tensor:
        contrast = cluster_contrast(x, z, q if lam else None, labels, clusters, lam)
        return contrast + siamese((x, q), (z, x)) + decorrelation(x, scale)

    weights = torch.arange(1.0, count + 1).double()
    found = value_and_gradient(lambda x: losses(x, z, q, labels) @ weights, p)

    def one_by_one(x: Tensor) -> Tensor:
        each = zip(x, z, q, labels, strict=True)
        return torch.stack([losses(*own) for own in each]) @ weights

    for one, other in zip(found, value_and_gradient(one_by_one, p), strict=True):
        torch.testing.assert_close(one, other)
