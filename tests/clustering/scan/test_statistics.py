"""Pooled normalisation against PyTorch's batch normalisation over the union of all batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccfcpp.clustering.scan.statistics import (
    StatisticsGradient,
    latents_gradient,
    moments,
    normalised,
    pooled,
    statistics_gradient,
)
from ccfcpp.engine.payload import added_up


@pytest.mark.usefixtures("double_precision")
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 1),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_values_and_gradients_are_those_of_one_batch(
    sizes: list[int], dimensions: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    latents = 3 + torch.randn(sum(sizes), dimensions, generator=generator, dtype=torch.float64)
    slopes = torch.randn(latents.shape, generator=generator, dtype=torch.float64)

    whole = latents.clone().requires_grad_()
    expected = nn.BatchNorm1d(dimensions, affine=False, dtype=torch.float64)(whole)
    torch.autograd.backward(expected, slopes)

    of_clients, of_slopes = torch.split(latents, sizes), torch.split(slopes, sizes)
    over = pooled(added_up(moments(own) for own in of_clients), torch.float64)
    found = torch.cat([normalised(own, over.mean, over.variance) for own in of_clients])
    torch.testing.assert_close(found, expected.detach())
    total: StatisticsGradient = added_up(
        statistics_gradient(g, own, over) for g, own in zip(of_slopes, of_clients, strict=True)
    )
    gradients = [
        latents_gradient(g, own, over, total) for g, own in zip(of_slopes, of_clients, strict=True)
    ]
    assert whole.grad is not None
    torch.testing.assert_close(torch.cat(gradients), whole.grad, rtol=1e-6, atol=1e-8)


def test_latents_far_from_0_keep_their_spread() -> None:
    latents = 1e4 + torch.arange(6.0).unsqueeze(1)
    over = pooled(moments(latents), torch.float32)
    torch.testing.assert_close(over.variance, latents.var(dim=0, correction=0))
    assert over.count == 6
