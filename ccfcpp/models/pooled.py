"""Networks and losses over the images of all clients, by sums that are pooled over clients.

Batch normalisation, a covariance and a mean prediction couple the images of a batch through a few
sums alone. A *program* is a training step as a generator: it yields a ``Pool`` for each sum that it
needs, and is sent the total over the batches of all clients. ``ccfcpp.engine.synchronised`` runs
programs. It also pools the gradients at these sums, so that the step equals one over the union of
all batches.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

Norm = nn.BatchNorm1d | nn.BatchNorm2d
_INSTRUCTIONS = "avx512_bf16", "amx_bf16"
"""Processor instructions with which 16 bits have been measured to be faster."""


@dataclass(frozen=True)
class Pool:
    """Request of a program (a training step as a generator) for a sum over all clients' samples.

    Attributes:
        name: A name that no other sum of the step has.
        of: The summands: a tensor of shape (batch, …) that depends on the parameters.
        sums: Maps ``of`` to this client's summand, float64; it can be differentiated.
        statistics: Maps the pooled sum to the values that the program receives, such as mean and
            variance. Gradients are pooled at these; if lagged, these should be independent.
        common: Whether only the common part of the objective depends on the sum, so that all
            clients can compute its gradient without another exchange.
        valid: Returns whether a client's summand is possible.
        nearest: Maps a sum with added noise to the nearest possible one.
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
    """Result of a training step's program: the loss, as all clients' parts plus a common part.

    Attributes:
        local: This client's part, a scalar.
        common: The part that depends on pooled sums alone, a scalar, equal at every client.
        figures: This client's parts of metrics, which are added up for the report.
    """

    local: Tensor
    common: Tensor | None = None
    figures: dict[str, Tensor] | None = None


T = TypeVar("T")
Pooling = Generator[Pool, tuple[Tensor, Tensor], T]
"""Generator that yields pools, and is sent a replacement of ``of`` and the statistics for each."""

Program = Pooling[Objective]


class _Moments(torch.autograd.Function):
    """The sums (n, Σa, Σa²) of each channel in float64, without converting a to float64."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        axes = [axis for axis in range(a.ndim) if axis != 1]
        count = a.new_full((1,), a.numel() // a.shape[1], dtype=torch.float64)
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


def moments(a: Tensor) -> Tensor:
    """Compute the count, sum and sum of squares of each channel, for mean and variance.

    Args:
        a: Float tensor of shape (batch, channels, …).

    Returns:
        n, the number of values in a channel, then Σa and Σa² of each channel, float64 of shape
        (1 + 2 · channels,).
    """
    sums: Tensor = _Moments.apply(a)
    return sums


def mean_and_variance(sums: Tensor) -> Tensor:
    """Compute mean and biased variance from the sums of ``moments``, of shape (2, channels)."""
    means, squares = (sums[1:] / sums[0]).chunk(2)
    return torch.stack([means, (squares - means.square()).clamp(min=0)])


def _plausible(sums: Tensor) -> bool:
    """Return whether the sums could be the ``moments`` of a batch."""
    squares = sums[1:].chunk(2)[1]
    return bool(sums[0] >= 0) and not bool((squares < 0).any())


_LEAST_VARIANCE = 0.3
"""Least variance of a channel with noise, as a share of the mean over channels: a tiny variance
would give its channel too much weight."""


def _nearest_moments(sums: Tensor) -> Tensor:
    """Return possible ``moments`` near noisy ones: count ≥ 1, no variance far below the mean."""
    count = sums[:1].clamp(min=1)
    _, variances = mean_and_variance(torch.cat([count, sums[1:]]))
    variances = torch.maximum(variances, _LEAST_VARIANCE * variances.mean())
    means = sums[1:].chunk(2)[0] / count
    return torch.cat([count, count * means, count * (variances + means.square())])


def batch_norm(norm: Norm, name: str, a: Tensor) -> Pooling[Tensor]:
    """Apply batch normalisation (Ioffe and Szegedy 2015) over all clients' batches, as a generator.

    Args:
        norm: The module; its running statistics are not changed.
        name: Its path in the network.
        a: Float tensor of shape (batch, channels, …), which the generator's result has, too.
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


class PooledModule(nn.Module):
    """Base class of modules with batch normalisation inside that are not a ``Sequential``."""

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Compute ``forward`` as a generator; batch normalisation is over all clients' batches.

        Args:
            x: The module's input.
            name: The module's path in its network.
        """
        raise NotImplementedError


def rounding_dtype(wanted: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype to which matrix products are rounded; None for float32 and TF32.

    Args:
        wanted: ``compute.precision``. ``auto`` rounds to 16 bits if that is faster.
        device: Device of the products.
    """
    fast = wanted == "auto" and _multiplies_bfloat16(device)
    return torch.bfloat16 if fast or wanted == "bfloat16" else None


def _multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 natively; otherwise float32 is faster."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    there = torch.cpu.get_capabilities()
    return any(there.get(name, False) for name in _INSTRUCTIONS)


def apply_rounded(module: nn.Module, x: Tensor, precision: torch.dtype | None) -> Tensor:
    """Apply a module with parameters and input rounded to a precision.

    Args:
        module: The module. Batch normalisation and a ``PooledModule`` in it are not rounded.
        x: Float tensor, the input.
        precision: The dtype to round to; None for no rounding.

    Returns:
        The result, in the precision of the last layer.
    """
    if precision is None or isinstance(module, Norm | PooledModule):
        result: Tensor = module(x if precision is None else x.float())
        return result
    if isinstance(module, nn.Sequential):
        for part in module:
            x = apply_rounded(part, x, precision)
        return x
    entries = {name: entry.to(precision) for name, entry in module.named_parameters()}
    output: Tensor = functional_call(module, entries, (x.to(precision),))
    return output


def apply_pooled(
    module: nn.Module, x: Tensor, name: str = "", precision: torch.dtype | None = None
) -> Pooling[Tensor]:
    """Apply a network as a generator; its batch normalisation is over all clients' batches.

    Args:
        module: A module; a ``Sequential`` is applied child by child, and any other module with
            batch normalisation inside must be a ``PooledModule``.
        x: The module's input.
        name: The module's path in its network.
        precision: The dtype to which products are rounded, except those inside a
            ``PooledModule``; None for no rounding. Batch normalisation is never rounded.

    Returns:
        The generator, whose result is ``module(x)`` in training mode.
    """
    if isinstance(module, Norm | PooledModule) and precision is not None:
        x = x.float()
    if isinstance(module, Norm):
        return (yield from batch_norm(module, name, x))
    if isinstance(module, nn.Sequential):
        for child, part in module.named_children():
            x = yield from apply_pooled(part, x, child_path(name, child), precision)
        return x
    if isinstance(module, PooledModule):
        return (yield from module.pooled(x, name))
    return apply_rounded(module, x, precision)


def child_path(name: str, child: str) -> str:
    """Return the path of a module's child; ``name``, the module's path, is "" for the network."""
    return f"{name}.{child}" if name else child


def updated_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training updates, by name.

    A bias right before batch normalisation is left out: its gradient is 0, and an optimizer would
    follow rounding errors.
    """
    idle = [
        f"{child_path(name, child)}.bias"
        for name, chain in network.named_modules()
        if isinstance(chain, nn.Sequential)
        for (child, _), norm in zip(chain.named_children(), list(chain)[1:], strict=False)
        if isinstance(norm, Norm)
    ]
    return {name: entry for name, entry in network.named_parameters() if name not in idle}


_MOMENTUM = 0.1
"""PyTorch's default momentum of running statistics."""


def running_statistics(
    norm_buffers: dict[str, Tensor], name: str, sums: Tensor
) -> dict[str, Tensor]:
    """Return a normalisation's buffers after a step, as ``torch.nn.BatchNorm1d`` updates them.

    Args:
        norm_buffers: Buffers of the network by name; none is changed.
        name: The normalisation's path in the network.
        sums: Its ``moments`` over all clients; if over no sample, no buffer is returned.
    """
    if sums[0] == 0:
        return {}
    mean, variance = mean_and_variance(sums)
    unbiased = variance * (sums[0] / (sums[0] - 1).clamp(min=1))
    counter = f"{name}.num_batches_tracked"
    updated = {counter: norm_buffers[counter] + 1}
    for entry, now in ((f"{name}.running_mean", mean), (f"{name}.running_var", unbiased)):
        updated[entry] = norm_buffers[entry].lerp(now.to(norm_buffers[entry].dtype), _MOMENTUM)
    return updated
