"""What keeps latents apart, against loops over crops, and by gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.crops.config import CropsConfig
from ccfcpp.clustering.crops.losses import LOSSES, outer, square
from ccfcpp.clustering.crops.network import CropEncoder
from ccfcpp.clustering.crops.steps import crops_program
from tests.clustering.crops.test_algorithm import config_of, objective


def means(z: Tensor, each: int) -> list[Tensor]:
    """For each crop the direction of the mean over its image's."""
    groups = [
        torch.stack(list(z[first : first + each])).mean(0) for first in range(0, len(z), each)
    ]
    return [group / group.norm() for group in groups for _ in range(each)]


def agreement(z: Tensor, each: int) -> Tensor:
    return torch.stack([one @ mean for one, mean in zip(z, means(z, each), strict=True)]).mean()


def spectral(z: Tensor, each: int, weight: float) -> Tensor:
    """By all pairs of crops."""
    d = z.shape[1]
    pairs = torch.stack([(math.sqrt(d) * a @ (math.sqrt(d) * b)) ** 2 for a in z for b in z])
    return pairs.mean() / d - weight * agreement(z, each)


def vicreg(z: Tensor, each: int, weight: float) -> Tensor:
    """By columns."""
    y = math.sqrt(z.shape[1]) * z
    columns = [column - column.mean() for column in y.T]
    variances = [column.square().mean() for column in columns]
    apart = [torch.relu(1 - (variance + 1e-4).sqrt()) for variance in variances]
    shared = [
        (a * b).mean() ** 2 for i, a in enumerate(columns) for j, b in enumerate(columns) if i != j
    ]
    d = len(columns)
    total = 25 * torch.stack(apart).sum() + torch.stack(shared).sum()
    return total / d - weight * agreement(z, each)


def barlow(z: Tensor, each: int, weight: float) -> Tensor:
    """By the correlation of each number of a crop with each of its image's mean."""
    others = torch.stack(means(z, each))
    total = -weight * agreement(z, each)
    for i, a in enumerate(z.T):
        for j, b in enumerate(others.T):
            a_, b_ = a - a.mean(), b - b.mean()
            correlation = (a_ * b_).mean() / (a_.square().mean() * b_.square().mean()).sqrt()
            total = total + ((1 - correlation) ** 2 if i == j else 0.0051 * correlation**2)
    return total


def rate(z: Tensor, each: int, weight: float) -> Tensor:
    return objective(z, each, weight)


ORACLES = {"rate": rate, "spectral": spectral, "vicreg": vicreg, "barlow": barlow}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=10, deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.none() | st.floats(0, 200), st.integers(0, 10**6))
def test_a_step_and_its_gradient_are_those_of_a_loop(
    name: str, images: int, each: int, weight: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    config = config_of(f"crops.loss={name}", f"crops.weight={weight or 'null'}")
    encoder = CropEncoder(config.section(CropsConfig), (1, 8, 8)).double()
    crops = torch.rand(images, each, 1, 4, 4, dtype=torch.float64)
    running = crops_program(encoder, config.section(CropsConfig), crops)
    pool = next(running)
    with pytest.raises(StopIteration) as ended:
        running.send((pool.of, pool.sums(pool.of)))
    found = ended.value.value
    assert found.common is not None
    total = found.local + found.common
    used = weight or LOSSES[name].weight
    expected = ORACLES[name](encoder(crops.flatten(0, 1)), each, used)
    torch.testing.assert_close(total, expected, rtol=1e-7, atol=1e-9)
    parameters = list(encoder.parameters())
    gradients = torch.autograd.grad(total, parameters)
    for one, other in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_sums_of_crops_can_be_and_others_cannot(name: str) -> None:
    torch.manual_seed(0)
    config = config_of(f"crops.loss={name}").section(CropsConfig)
    running = crops_program(CropEncoder(config, (1, 8, 8)), config, torch.rand(3, 2, 1, 4, 4))
    pool = next(running)
    sums = pool.sums(pool.of).detach()
    assert pool.valid(sums)
    longer = square(sums).clone()
    longer[1, 1] += 1
    assert not pool.valid(longer.flatten())
    assert not pool.valid(-sums)
    assert not pool.valid(torch.cat([2 * sums[:1], sums[1:]]))
    noisy = sums + torch.randn(len(sums), generator=torch.Generator().manual_seed(0)).double()
    mended = square(pool.nearest(noisy))
    assert float(torch.linalg.eigvalsh(mended).min()) > -1e-9
    torch.testing.assert_close(pool.nearest(sums), sums)


def test_outer_is_a_sum_over_crops() -> None:
    u = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for row in u.double():
        one = torch.cat([torch.ones(1).double(), row])
        expected += torch.outer(one, one)
    torch.testing.assert_close(square(outer(u)), expected)
