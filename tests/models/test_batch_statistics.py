"""Means and products over batches against plain loops, padded and not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.models.batch_statistics import batch_mean, centred, squared_products

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)
"""Samples that count in each of several batches."""
SEEDS = st.integers(0, 10**6)


def normal(seed: int, *shape: int) -> Tensor:
    generator = Randomness(seed).generator("numbers")
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def padded(sizes: list[int], seed: int) -> Tensor:
    """A mask of a batch for each size, all padded to one length, with the gaps anywhere."""
    length = max(sizes) + seed % 3
    mask = torch.zeros(len(sizes), length, dtype=torch.float64)
    for row, size in zip(mask, sizes, strict=True):
        generator = Randomness(seed).generator(f"places of {size}")
        row[torch.randperm(length, generator=generator)[:size]] = 1
    return mask


def counted(values: Tensor, mask: Tensor | None) -> list[list[float]]:
    """The numbers that count, batch by batch."""
    return [
        [
            value
            for place, value in enumerate(row.tolist())
            if mask is None or float(mask[number, place]) == 1
        ]
        for number, row in enumerate(values)
    ]


@given(SIZES, SEEDS)
def test_the_mean_is_that_of_what_counts(sizes: list[int], seed: int) -> None:
    mask = padded(sizes, seed)
    values = normal(seed, *mask.shape)
    for own in (None, mask):
        expected = [sum(row) / len(row) for row in counted(values, own)]
        assert batch_mean(values, own).tolist() == pytest.approx(expected)


@given(SIZES, st.integers(1, 4), SEEDS)
def test_samples_are_centred_by_what_counts_and_nothing_else_is_left(
    sizes: list[int], dimensions: int, seed: int
) -> None:
    mask = padded(sizes, seed)
    z = normal(seed, *mask.shape, dimensions)
    for own in (None, mask):
        found, counts = centred(z, own)
        assert found.shape == z.shape
        for batch in range(len(sizes)):
            places = [
                place
                for place in range(mask.shape[1])
                if own is None or float(own[batch, place]) == 1
            ]
            assert float(counts[batch]) == len(places)
            for axis in range(dimensions):
                column = [float(z[batch, place, axis]) for place in places]
                mean = sum(column) / len(column)
                for place in range(mask.shape[1]):
                    left = float(z[batch, place, axis]) - mean if place in places else 0.0
                    assert float(found[batch, place, axis]) == pytest.approx(left, abs=1e-12)


@given(SIZES, st.integers(1, 3), SEEDS)
def test_what_does_not_count_changes_nothing(sizes: list[int], dimensions: int, seed: int) -> None:
    mask = padded(sizes, seed)
    z = normal(seed, *mask.shape, dimensions)
    other = torch.where(mask.unsqueeze(-1) == 1, z, 1e6 * normal(seed + 1, *z.shape))
    for found, expected in zip(centred(other, mask), centred(z, mask), strict=True):
        torch.testing.assert_close(found, expected)
    first, second = (batch_mean(values[..., 0], mask) for values in (other, z))
    torch.testing.assert_close(first, second)


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


def test_leading_axes_are_batches_of_their_own() -> None:
    z, mask = normal(0, 2, 3, 5, 4), torch.ones(2, 1, 5, dtype=torch.float64)
    mask[1, 0, 3:] = 0
    found, counts = centred(z, mask)
    assert counts.tolist() == [[5], [3]]
    for client in range(2):
        for view in range(3):
            alone, _ = centred(z[client, view], mask[client, 0])
            torch.testing.assert_close(found[client, view], alone)
            square = squared_products(found)[client, view]
            torch.testing.assert_close(square, squared_products(alone))
