"""A synchronised step against PyTorch's own, over one batch that holds the batches of all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ccfcpp.models.pooled import (
    Objective,
    Pool,
    PooledModule,
    Pooling,
    Program,
    apply_pooled,
    batch_norm,
    running_statistics,
    updated_parameters,
)
from tests.support.synchronised import driven


class Shortcut(PooledModule):
    """A block whose input goes past its batch normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.convolution(x))
        return torch.tanh(y) + x

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        y = yield from batch_norm(self.norm, f"{name}.norm", self.convolution(x))
        return torch.tanh(y) + x


def network_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        Shortcut(3),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.BatchNorm1d(5, affine=False),
        nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh()),
    ).double()


def covariance_sums(z: Tensor) -> Tensor:
    return torch.cat([z.new_tensor([len(z)]), z.sum(dim=0), (z.T @ z).flatten()]).double()


def make_program(network: nn.Sequential, batch: Tensor) -> Program:
    """Fourth powers in the mean, and the squared covariance of all images."""
    z = yield from apply_pooled(network, batch)
    z, sums = yield Pool("covariance", z, covariance_sums, common=True)
    count = sums[0].detach()
    d = z.shape[1]
    mean, products = sums[1 : d + 1] / count, sums[d + 1 :].view(d, d)
    covariance = (products - count * torch.outer(mean, mean)) / (count - 1)
    return Objective(z.pow(4).sum() / count, covariance.square().sum())


def whole_loss(z: Tensor) -> Tensor:
    return z.pow(4).sum() / len(z) + torch.cov(z.T).square().sum()


@pytest.mark.usefixtures("double_precision")
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 2),
    st.integers(0, 10**6),
)
def test_a_step_is_the_one_over_the_union_of_all_batches(sizes: list[int], seed: int) -> None:
    network = network_of(seed)
    images = torch.randn(
        sum(sizes), 1, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    parameters = dict(network.named_parameters())
    last, trips = driven(
        lambda batch: make_program(network, batch), torch.split(images, sizes), parameters
    )

    expected = torch.autograd.grad(whole_loss(network(images)), list(parameters.values()))
    for (name, found), wanted in zip(last.gradient.items(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8, msg=name)
    # Five sums on the way there, four gradients at sums on the way back, and the model's gradient.
    assert trips == 5 + 4 + 1


@pytest.mark.usefixtures("double_precision")
def test_a_step_without_a_sum_is_one_trip() -> None:
    layer = nn.Linear(3, 1)
    rows = torch.randn(6, 3)

    def program(batch: Tensor) -> Program:
        y = yield from apply_pooled(layer, batch)
        return Objective(y.square().sum())

    parameters = dict(layer.named_parameters())
    last, trips = driven(program, torch.split(rows, 2), parameters)
    assert trips == 1
    expected = torch.autograd.grad(layer(rows).square().sum(), list(parameters.values()))
    torch.testing.assert_close(list(last.gradient.values()), list(expected))


def test_statistics_stay_where_nobody_had_a_sample() -> None:
    buffers = dict(nn.BatchNorm1d(3).named_buffers(prefix="norm"))
    assert running_statistics(buffers, "norm", torch.zeros(7, dtype=torch.float64)) == {}
    one = running_statistics(buffers, "norm", torch.ones(7, dtype=torch.float64))
    assert all(torch.isfinite(entry).all() for entry in one.values())


def test_a_bias_before_batch_normalisation_is_not_moved() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    assert list(updated_parameters(network)) == [
        "0.weight", "1.weight", "1.bias", "3.weight", "3.bias",
    ]  # fmt: skip


@given(st.integers(0, 10**6), st.floats(0, 1e4))
def test_no_channel_with_noise_is_divided_by_almost_nothing(seed: int, noise: float) -> None:
    """Means stay, and variances that are not far below the others."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(300, 6, generator=generator, dtype=torch.float64)
    pool = next(batch_norm(nn.BatchNorm1d(6), "norm", a))
    sums = pool.sums(a)
    torch.testing.assert_close(pool.nearest(sums), sums)
    with_noise = sums + noise * torch.randn(len(sums), generator=generator, dtype=torch.float64)
    found = pool.nearest(with_noise)
    assert pool.valid(found)
    means, variances = pool.statistics(found)
    torch.testing.assert_close(means, with_noise[1:7] / with_noise[0].clamp(min=1))
    before = (with_noise[7:] / with_noise[0].clamp(min=1) - means.square()).clamp(min=0)
    least = 0.3 * before.mean()
    torch.testing.assert_close(variances, before.where(before > least, least), rtol=1e-6, atol=1e-6)
