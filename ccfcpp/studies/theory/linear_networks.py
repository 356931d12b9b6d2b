"""Deep linear networks under gradient flow, in float64 on the CPU.

The loss depends on the layers only through their product, so that one matrix, the *drive*
−∂ℓ/∂(W_n ⋯ W_1), gives the velocity of every layer. Leading axes are independent networks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

Layers = tuple[Tensor, ...]
"""Weight matrices of shape (…, width after, width before), first layer first."""


@dataclass(frozen=True)
class SplitNetwork:
    """A network of an encoder, its first ``depth`` layers, and a head: a classifier or predictor.

    Along a path of gradient flow the layers have a leading axis of times.
    """

    layers: Layers
    depth: int

    @property
    def encoder(self) -> Tensor:
        """The product of the encoder's layers, of shape (…, representation, inputs)."""
        return product(self.layers[: self.depth])

    @property
    def head(self) -> Tensor:
        """The product of the head's layers, of shape (…, outputs, representation)."""
        return product(self.layers[self.depth :])

    def at_clients(self, clients: int) -> "SplitNetwork":
        """Return the same weights at several clients, along a new leading axis."""
        layers = tuple(layer.expand(clients, *layer.shape) for layer in self.layers)
        return SplitNetwork(layers, self.depth)

    def at_times(self, chosen: int | slice) -> "SplitNetwork":
        """Return the network at one point of a path, or at several."""
        return SplitNetwork(tuple(layer[chosen] for layer in self.layers), self.depth)


Drive = Callable[[SplitNetwork], Tensor]
"""From a network to its drive, of shape (…, outputs, inputs)."""


def product(layers: Sequence[Tensor]) -> Tensor:
    """Return W_n ⋯ W_1 of at least one layer."""
    return reduce(lambda done, layer: layer @ done, layers)


def layer_velocities(layers: Layers, drive: Tensor) -> Layers:
    """Return dW_j/dt = (W_n ⋯ W_{j+1})ᵀ drive (W_{j−1} ⋯ W_1)ᵀ of each layer.

    Eq. (16) of the FedDecorr paper (ICLR). ``drive`` has the shape (…, outputs, inputs).
    """
    velocities = []
    for number in range(len(layers)):
        before, after = layers[:number], layers[number + 1 :]
        velocity = product(after).mT @ drive if after else drive
        velocities.append(velocity @ product(before).mT if before else velocity)
    return tuple(velocities)


def flow(start: SplitNetwork, drive: Drive, step: float, steps: int) -> SplitNetwork:
    """Follow gradient flow by the classical Runge-Kutta method of order four.

    The path has the times 0, step, …, steps · step: layers of shape (steps + 1, …, width after,
    width before).
    """
    assert step > 0, "a flow needs a positive step"
    assert steps > 0, "a flow needs at least one step"

    def slope(layers: Layers) -> Layers:
        return layer_velocities(layers, drive(SplitNetwork(layers, start.depth)))

    path = [start.layers]
    for _ in range(steps):
        at = path[-1]
        first = slope(at)
        second = slope(_moved(at, first, step / 2))
        third = slope(_moved(at, second, step / 2))
        fourth = slope(_moved(at, third, step))
        slopes = zip(first, second, third, fourth, strict=True)
        path.append(_moved(at, [a + 2 * b + 2 * c + d for a, b, c, d in slopes], step / 6))
    return SplitNetwork(tuple(map(torch.stack, zip(*path, strict=True))), start.depth)


def _moved(layers: Layers, velocities: Sequence[Tensor], time: float) -> Layers:
    return tuple(w + time * v for w, v in zip(layers, velocities, strict=True))


def imbalance(layers: Layers) -> Tensor:
    """Return how far neighbours are from W_j W_jᵀ = W_{j+1}ᵀ W_{j+1}, the papers' Assumption 1.

    This is the largest absolute entry of all differences, of shape (…).
    """
    pairs = pairwise(layers)
    differences = [before @ before.mT - after.mT @ after for before, after in pairs]
    return torch.stack([each.abs().amax(dim=(-2, -1)) for each in differences]).amax(dim=0)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw independent standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orthonormal_columns(
    shape: Sequence[int], rows: int, columns: int, generator: torch.Generator
) -> Tensor:
    """Draw matrices of shape (*shape, rows, columns) with orthonormal columns."""
    assert columns <= rows, f"{columns} columns of {rows} rows cannot be orthonormal"
    drawn: Tensor = torch.linalg.qr(normal(generator, *shape, rows, columns)).Q
    return drawn


def balanced_chain(left: Tensor, values: Tensor, right: Tensor, depth: int) -> Layers:
    """Make ``depth`` balanced layers whose product is left · diag(values) · rightᵀ.

    ``left`` and ``right`` have orthonormal columns; the values, of shape (…, rank), are positive.
    Layers in the middle are diagonal: the basis between layers is that of the singular vectors.
    """
    inner = torch.diag_embed(values ** (1 / depth))
    if depth == 1:
        return (left @ inner @ right.mT,)
    return (inner @ right.mT, *[inner] * (depth - 2), left @ inner)


def random_layers(
    shape: Sequence[int], widths: Sequence[int], generator: torch.Generator
) -> Layers:
    """Draw layers of independent normal entries of deviation 1 / sqrt(width before).

    They have the leading axes ``shape``; ``widths`` are those before, between and after the layers.
    """
    pairs = pairwise(widths)
    return tuple(normal(generator, *shape, after, w) * (1.0 / w**0.5) for w, after in pairs)
