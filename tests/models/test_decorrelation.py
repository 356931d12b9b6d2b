"""Products over batches against plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.models.decorrelation import squared_norms, squared_products, subtract_mean

SEEDS = st.integers(0, 10**6)


def normal(seed: int, *shape: int) -> Tensor:
    generator = Randomness(seed).generator("numbers")
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_centring_takes_each_batchs_own_mean_away(
    batches: int, samples: int, dimensions: int, seed: int
) -> None:
    z = normal(seed, batches, samples, dimensions)
    for found, batch in zip(subtract_mean(z).tolist(), z.tolist(), strict=True):
        for axis in range(dimensions):
            mean = sum(sample[axis] for sample in batch) / samples
            expected = [sample[axis] - mean for sample in batch]
            assert [sample[axis] for sample in found] == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), SEEDS)
def test_the_squared_product_is_a_double_sum(
    batches: int, samples: int, dimensions: int, seed: int
) -> None:
    """Of all pairs of dimensions, whichever of the two products is the smaller one."""
    z = normal(seed, batches, samples, dimensions)
    expected = []
    for batch in z.tolist():
        total = 0.0
        for i in range(dimensions):
            for j in range(dimensions):
                total += sum(sample[i] * sample[j] for sample in batch) ** 2
        expected.append(total)
    assert squared_products(z).tolist() == pytest.approx(expected)
    on_the_diagonal = [
        sum(sum(sample[i] ** 2 for sample in batch) ** 2 for i in range(dimensions))
        for batch in z.tolist()
    ]
    assert squared_norms(z).tolist() == pytest.approx(on_the_diagonal)
