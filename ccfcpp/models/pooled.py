"""Networks and losses that see the images of all clients, in sums that are pooled.

Batch normalisation, a covariance and a mean prediction couple the images of a batch through a few
sums alone. A *program* is a training step that says where it needs one: it is a generator that
yields a ``Pool``, and is sent the sum over the batches of all clients. What runs it
(``ccfcpp.engine.synchronised``) also pools the gradients at these sums, so that the step is the one
over the union of all batches.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

Norm = nn.BatchNorm1d | nn.BatchNorm2d


@dataclass(frozen=True)
class Pool:
    """A sum over the samples of all clients that a program asks for.

    Attributes:
        name: Its name, which is the only one of this name in a step.
        of: What is summed over: a tensor of shape (batch, …) that depends on the parameters.
        sums: From ``of`` to this client's part of the sum, float64; it can be differentiated.
        statistics: What the program goes on with, from the pooled sum. Gradients are pooled at
            these: one of another step serves the better, the less they hang together.
        common: Whether nothing but the common part of the objective depends on the sum: its
            gradient is then known to all without another exchange.
        valid: Whether a client's part could be what it claims to be.
        nearest: From a sum to which noise was added to the nearest one that could be.
    """

    name: str
    of: Tensor
    sums: Callable[[Tensor], Tensor]
    statistics: Callable[[Tensor], Tensor] = lambda sums: sums
    common: bool = False
    valid: Callable[[Tensor], bool] = lambda _: True
    nearest: Callable[[Tensor], Tensor] = lambda sums: sums


@dataclass(frozen=True)
class Objective:
    """What a program returns: its loss is the sum of all clients' parts and the common part.

    Attributes:
        local: This client's part, a scalar.
        common: What depends on pooled sums alone, a scalar that is the same at every client.
        figures: For the report, by name: this client's parts, which are added up.
    """

    local: Tensor
    common: Tensor | None = None
    figures: dict[str, Tensor] | None = None


T = TypeVar("T")
Pooling = Generator[Pool, tuple[Tensor, Tensor], T]
"""Yields pools. The answer to each is a stand-in for ``of`` to go on with, and the statistics."""

Program = Pooling[Objective]


class _Moments(torch.autograd.Function):
    """(n, Σa, Σa²) by channel, summed in float64 without a copy of a in float64."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        axes = _all_but_channels(a)
        count = torch.tensor([a.numel() // a.shape[1]], dtype=torch.float64, device=a.device)
        sums = a.sum(axes, dtype=torch.float64)
        return torch.cat([count, sums, a.square().sum(axes, dtype=torch.float64)])

    @staticmethod
    def setup_context(
        ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor
    ) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *slopes: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors  # type: ignore[attr-defined]
        shape = [1, a.shape[1]] + [1] * (a.ndim - 2)
        by_sum, by_square = (part.to(a.dtype).view(shape) for part in slopes[0][1:].chunk(2))
        slope: Tensor = by_sum + 2 * by_square * a
        return slope


def _all_but_channels(a: Tensor) -> list[int]:
    return [axis for axis in range(a.ndim) if axis != 1]


def moments(a: Tensor) -> Tensor:
    """The sums of which mean and variance are made.

    Args:
        a: Float tensor of shape (batch, channels, …).

    Returns:
        (n, Σa, Σa²) for each channel, float64 of shape (1 + 2 · channels,). n counts a channel's
        values.
    """
    sums: Tensor = _Moments.apply(a)
    return sums


def mean_and_variance(sums: Tensor) -> Tensor:
    """Mean and biased variance of each channel, float64 of shape (2, channels).

    Args:
        sums: Pooled ``moments``.
    """
    means, squares = (sums[1:] / sums[0]).chunk(2)
    return torch.stack([means, (squares - means.square()).clamp(min=0)])


def _plausible(sums: Tensor) -> bool:
    """Whether ``moments`` could be those of a batch."""
    squares = sums[1:].chunk(2)[1]
    return bool(sums[0] >= 0) and not bool((squares < 0).any())


_LEAST_VARIANCE = 0.3
"""Of a channel with noise, by the mean over channels: one whose variance the noise has swallowed
would be divided by almost nothing, and drown all others."""


def _nearest_moments(sums: Tensor) -> Tensor:
    """``moments`` of one value at least, none of whose variances is far below the others."""
    count = sums[:1].clamp(min=1)
    _, variances = mean_and_variance(torch.cat([count, sums[1:]]))
    variances = torch.maximum(variances, _LEAST_VARIANCE * variances.mean())
    means = sums[1:].chunk(2)[0] / count
    return torch.cat([count, count * means, count * (variances + means.square())])


def batch_norm(norm: Norm, name: str, a: Tensor) -> Pooling[Tensor]:
    """Batch normalisation (Ioffe and Szegedy 2015) over the batches of all clients.

    Args:
        norm: The module, as in training mode; its running statistics stay as they are.
        name: Its path in the network.
        a: Float tensor of shape (batch, channels, …).

    Returns:
        Tensor of the shape of ``a``.
    """
    a, statistics = yield Pool(
        name, a, moments, mean_and_variance, valid=_plausible, nearest=_nearest_moments
    )
    mean, variance = statistics.unbind()
    scale = (variance + norm.eps).rsqrt()
    shape = [1, -1] + [1] * (a.ndim - 2)
    mean, scale = (part.to(a.dtype).view(shape) for part in (mean, scale))
    z = (a - mean) * scale
    if norm.affine:
        z = z * norm.weight.view(shape) + norm.bias.view(shape)
    return z


def through(module: nn.Module, x: Tensor, name: str = "") -> Pooling[Tensor]:
    """Apply a network, with its batch normalisation over the batches of all clients.

    Args:
        module: A module; those inside a ``Sequential`` are walked one by one. One of another kind
            that has batch normalisation inside has a method ``pooled(x, name)`` like this function.
        x: What it is applied to.
        name: The module's path in its network.

    Returns:
        What ``module(x)`` returns in training mode.
    """
    if isinstance(module, Norm):
        return (yield from batch_norm(module, name, x))
    if isinstance(module, nn.Sequential):
        for child, part in module.named_children():
            x = yield from through(part, x, inside(name, child))
        return x
    if isinstance(module, PooledModule):
        return (yield from module.pooled(x, name))
    result: Tensor = module(x)
    return result


def inside(name: str, child: str) -> str:
    """The path of a module's child."""
    return f"{name}.{child}" if name else child


class PooledModule(nn.Module):
    """A module with batch normalisation inside that is no chain of modules."""

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """``forward`` in training mode, with batch normalisation over all clients' batches."""
        raise NotImplementedError


def moved_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a step moves, by name.

    A bias that batch normalisation takes away again is none of them. Its gradient is 0, and an
    optimizer would make steps of the rounding errors that come instead.
    """
    idle = [
        f"{inside(name, child)}.bias"
        for name, chain in network.named_modules()
        if isinstance(chain, nn.Sequential)
        for (child, _), norm in zip(chain.named_children(), list(chain)[1:], strict=False)
        if isinstance(norm, Norm)
    ]
    return {name: entry for name, entry in network.named_parameters() if name not in idle}


def running_statistics(
    norm_buffers: dict[str, Tensor], name: str, sums: Tensor
) -> dict[str, Tensor]:
    """A norm's running mean and variance after a step, as ``torch.nn.BatchNorm1d`` keeps them.

    Args:
        norm_buffers: A model's entries by name; none is changed.
        name: The norm's path in the network.
        sums: Its pooled ``moments``.

    Returns:
        The entries that are new; none after a step without a sample.
    """
    if sums[0] == 0:
        return {}
    momentum = 0.1
    mean, variance = mean_and_variance(sums)
    unbiased = variance * (sums[0] / (sums[0] - 1).clamp(min=1))
    found = {}
    for entry, now in ((f"{name}.running_mean", mean), (f"{name}.running_var", unbiased)):
        before = norm_buffers[entry]
        found[entry] = before.lerp(now.to(before.dtype), momentum)
    counter = f"{name}.num_batches_tracked"
    return found | {counter: norm_buffers[counter] + 1}
