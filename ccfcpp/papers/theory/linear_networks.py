"""Deep linear networks under gradient flow, in float64 on the CPU.

A network is a tuple of weight matrices, first layer first: layer j of shape (…, width after, width
before). Leading axes are independent networks. Its loss depends on the layers only through their
product, so that one matrix, the *drive* −∂ℓ/∂(W_n ⋯ W_1), gives the velocity of every layer.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

Layers = tuple[Tensor, ...]
"""Weight matrices, first layer first."""

Drive = Callable[[Layers], Tensor]
"""From the layers to the loss's negative gradient by their product, of the product's shape."""


def product(layers: Sequence[Tensor]) -> Tensor:
    """The matrix W_n ⋯ W_1 that the layers are together.

    Args:
        layers: At least one, each of shape (…, width after, width before).
    """
    return reduce(lambda done, layer: layer @ done, layers)


def layer_velocities(layers: Layers, drive: Tensor) -> Layers:
    """Gradient flow of each layer, dW_j/dt = (W_n ⋯ W_{j+1})ᵀ drive (W_{j−1} ⋯ W_1)ᵀ.

    Eq. (16) of the FedDecorr paper (ICLR).

    Args:
        layers: The network.
        drive: −∂ℓ/∂(W_n ⋯ W_1), of shape (…, outputs, inputs).

    Returns:
        A matrix of each layer's shape.
    """
    velocities = []
    for number in range(len(layers)):
        velocity = drive
        if number + 1 < len(layers):
            velocity = product(layers[number + 1 :]).mT @ velocity
        if number > 0:
            velocity = velocity @ product(layers[:number]).mT
        velocities.append(velocity)
    return tuple(velocities)


def flow(layers: Layers, drive: Drive, step: float, steps: int) -> Layers:
    """Gradient flow from given layers by the classical Runge-Kutta method of order four.

    Args:
        layers: The network at time 0.
        drive: What moves it.
        step: Time between two points, positive.
        steps: Number of steps, at least 1.

    Returns:
        Each layer at the times 0, step, …, steps · step: shape (steps + 1, …, width after, width
        before).

    Raises:
        ValueError: The step is not positive, or there are no steps.
    """
    if step <= 0 or steps < 1:
        raise ValueError(f"a flow needs a positive step and at least one of them, not {steps}")
    path = [layers]
    for _ in range(steps):
        path.append(_runge_kutta(path[-1], drive, step))
    return tuple(torch.stack(layer) for layer in zip(*path, strict=True))


def _runge_kutta(layers: Layers, drive: Drive, step: float) -> Layers:
    def slope(at: Layers) -> Layers:
        return layer_velocities(at, drive(at))

    first = slope(layers)
    second = slope(_moved(layers, first, step / 2))
    third = slope(_moved(layers, second, step / 2))
    fourth = slope(_moved(layers, third, step))
    slopes = zip(layers, first, second, third, fourth, strict=True)
    return tuple(w + step / 6 * (a + 2 * b + 2 * c + d) for w, a, b, c, d in slopes)


def _moved(layers: Layers, velocities: Layers, time: float) -> Layers:
    return tuple(w + time * v for w, v in zip(layers, velocities, strict=True))


def imbalance(layers: Layers) -> Tensor:
    """How far neighbours are from W_j W_jᵀ = W_{j+1}ᵀ W_{j+1}, the papers' Assumption 1.

    Args:
        layers: At least two.

    Returns:
        The largest absolute entry of all differences, of shape (…).
    """
    differences = [
        (before @ before.mT - after.mT @ after).abs().amax(dim=(-2, -1))
        for before, after in pairwise(layers)
    ]
    return torch.stack(differences).amax(dim=0)


def orthonormal_columns(
    shape: Sequence[int], rows: int, columns: int, generator: torch.Generator
) -> Tensor:
    """Random matrices of shape (*shape, rows, columns) with orthonormal columns.

    Raises:
        ValueError: There are more columns than rows.
    """
    if columns > rows:
        raise ValueError(f"{columns} columns of {rows} rows cannot be orthonormal")
    normal = torch.randn(*shape, rows, columns, generator=generator, dtype=torch.float64)
    columns_of: Tensor = torch.linalg.qr(normal).Q
    return columns_of


def balanced_chain(left: Tensor, values: Tensor, right: Tensor, depth: int) -> Layers:
    """Balanced layers, W_j W_jᵀ = W_{j+1}ᵀ W_{j+1}, whose product is left · diag(values) · rightᵀ.

    Between them lies the basis of the singular vectors: layers in the middle are diagonal.

    Args:
        left: Orthonormal columns, of shape (…, outputs, rank).
        values: Singular values, positive, of shape (…, rank).
        right: Orthonormal columns, of shape (…, inputs, rank).
        depth: Number of layers, at least 1.

    Returns:
        The layers; widths between them are the rank.
    """
    roots = values ** (1 / depth)
    inner = torch.diag_embed(roots)
    if depth == 1:
        return (left @ inner @ right.mT,)
    return (inner @ right.mT, *[inner] * (depth - 2), left @ inner)


def random_layers(
    shape: Sequence[int], widths: Sequence[int], scale: float, generator: torch.Generator
) -> Layers:
    """Layers of independent normal entries of standard deviation scale / sqrt(width before).

    Args:
        shape: Leading axes.
        widths: Inputs, the widths between layers, outputs.
        scale: Positive.
        generator: Source of the numbers.
    """
    return tuple(
        torch.randn(*shape, after, before, generator=generator, dtype=torch.float64)
        * (scale / before**0.5)
        for before, after in pairwise(widths)
    )
