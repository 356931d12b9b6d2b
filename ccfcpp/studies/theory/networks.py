"""Deep linear networks under gradient flow, in float64 on the CPU, and their singular values.

The loss depends on the layers only through their product, so that one matrix, the *drive*
B = −∂ℓ/∂(W_n ⋯ W_1) of shape (…, outputs, inputs), gives the velocity of every layer. Leading axes
are independent networks.

Both papers' theorems on the singular values σ_k of the encoder have one form. With its singular
vectors u_k, v_k, with u'_k, v'_k of the head, and L and L' their numbers of layers:

    dσ_k/dt = L σ_k^(2 − 2/L) · (σ_k^(2/L) + M_k)^(L'/2) · u'_kᵀ B v_k

FedDecorr's Theorem 1 and CCFC++'s Theorem III.4 print L' = 1. All rates have the shape (…, k).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

WeightMatrices = tuple[Tensor, ...]
"""Weight matrices of shape (…, width after, width before), first layer first."""


def product(layers: Sequence[Tensor]) -> Tensor:
    """Return W_n ⋯ W_1 of at least one layer."""
    return reduce(lambda done, layer: layer @ done, layers)


@dataclass(frozen=True)
class SplitNetwork:
    """A network of an encoder, its first ``depth`` layers, and a head: a classifier or predictor.

    Along a path of gradient flow the layers have a leading axis of times.
    """

    layers: WeightMatrices
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
"""From a network to its drive."""


def layer_velocities(layers: WeightMatrices, drive: Tensor) -> WeightMatrices:
    """Return dW_j/dt = (W_n ⋯ W_{j+1})ᵀ drive (W_{j−1} ⋯ W_1)ᵀ of each layer.

    Eq. (16) of the FedDecorr paper (ICLR).
    """
    velocities = []
    for number in range(len(layers)):
        before, after = layers[:number], layers[number + 1 :]
        velocity = product(after).mT @ drive if after else drive
        velocities.append(velocity @ product(before).mT if before else velocity)
    return tuple(velocities)


def flow(start: SplitNetwork, drive: Drive, step: float, steps: int) -> SplitNetwork:
    """Integrate gradient flow by the classical Runge-Kutta method of order four.

    The path has the times 0, step, …, steps · step: layers of shape (steps + 1, …, width after,
    width before).
    """
    assert step > 0, "a flow needs a positive step"
    assert steps > 0, "a flow needs at least one step"

    def velocities_at(layers: WeightMatrices) -> WeightMatrices:
        return layer_velocities(layers, drive(SplitNetwork(layers, start.depth)))

    path = [start.layers]
    for _ in range(steps):
        at = path[-1]
        first = velocities_at(at)
        second = velocities_at(_advance(at, first, step / 2))
        third = velocities_at(_advance(at, second, step / 2))
        fourth = velocities_at(_advance(at, third, step))
        stages = zip(first, second, third, fourth, strict=True)
        path.append(_advance(at, [a + 2 * b + 2 * c + d for a, b, c, d in stages], step / 6))
    return SplitNetwork(tuple(map(torch.stack, zip(*path, strict=True))), start.depth)


def _advance(layers: WeightMatrices, velocities: Sequence[Tensor], time: float) -> WeightMatrices:
    return tuple(w + time * v for w, v in zip(layers, velocities, strict=True))


def imbalance(layers: WeightMatrices) -> Tensor:
    """Return the largest entry of W_j W_jᵀ − W_{j+1}ᵀ W_{j+1}, 0 under Assumption 1; shape (…)."""
    differences = [before @ before.mT - after.mT @ after for before, after in pairwise(layers)]
    return torch.stack([each.abs().amax(dim=(-2, -1)) for each in differences]).amax(dim=0)


# --- random weights ---


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


def balanced_chain(left: Tensor, values: Tensor, right: Tensor, depth: int) -> WeightMatrices:
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
) -> WeightMatrices:
    """Draw layers of independent normal entries of deviation 1 / sqrt(width before).

    They have the leading axes ``shape``; ``widths`` are those before, between and after the layers.
    """
    pairs = pairwise(widths)
    return tuple(normal(generator, *shape, after, w) * (1.0 / w**0.5) for w, after in pairs)


# --- singular values ---


class PairedVectors(NamedTuple):
    """Singular values (…, k) of encoder and head, and their vectors as columns (…, width, k).

    The k-th of both belong together, up to the smaller rank: σ_k, u_k, v_k; σ'_k, u'_k, v'_k. Both
    vectors of the head's k-th pair change sign if u_k · v'_k would be negative: the theorems
    need u_k · v'_k = 1, though their assumption is about |u_k · v'_k|.
    """

    values: Tensor
    left: Tensor
    right: Tensor
    head_values: Tensor
    head_left: Tensor
    head_right: Tensor

    @property
    def alignment(self) -> Tensor:
        """|u_k · v'_k'|, of shape (…, k', k): the heat maps of the FedDecorr paper's Figure 6."""
        return (self.head_right.mT @ self.left).abs()

    def along(self, left: Tensor, matrix: Tensor) -> Tensor:
        """Return the entries left_kᵀ · matrix · v_k, of shape (…, k)."""
        return torch.einsum("...ok,...oi,...ik->...k", left, matrix, self.right)


def paired_vectors(network: SplitNetwork) -> PairedVectors:
    """Return singular values and vectors of encoder and head, in descending order."""
    left, values, right = torch.linalg.svd(network.encoder, full_matrices=False)
    head_left, head_values, head_right = torch.linalg.svd(network.head, full_matrices=False)
    kept = min(values.shape[-1], head_values.shape[-1])
    left, right = left[..., :kept], right.mT[..., :kept]
    head_left, head_right = head_left[..., :kept], head_right.mT[..., :kept]
    sides = torch.where((left * head_right).sum(dim=-2, keepdim=True) < 0, -1.0, 1.0)
    return PairedVectors(
        values[..., :kept], left, right,
        head_values[..., :kept], head_left * sides, head_right * sides,
    )  # fmt: skip


def depth_offsets(start: SplitNetwork, head_depth: int = 1) -> Tensor:
    """Return M_k = σ'_k^(2/L') − σ_k^(2/L) at time 0, Eq. (43) and CCFC++'s Eq. (29)."""
    pairs = paired_vectors(start)
    return pairs.head_values ** (2 / head_depth) - pairs.values ** (2 / start.depth)


def theorem_rates(
    network: SplitNetwork, constants: Tensor, driving: Tensor, head_depth: int = 1
) -> Tensor:
    """Return dσ_k/dt by the theorems, with M_k of ``depth_offsets`` and a drive B.

    Eq. (32) of the FedDecorr paper (ICLR; B is N · G) and Eq. (7) of CCFC++ (Q̄).
    """
    pairs, depth = paired_vectors(network), network.depth
    # Where the assumptions do not hold the sum may become negative; the head's value is then 0.
    squared = (pairs.values ** (2 / depth) + constants).clamp(min=0)
    along = pairs.along(pairs.head_left, driving)
    return depth * pairs.values ** (2 - 2 / depth) * squared ** (head_depth / 2) * along


def rates_without_alignment(network: SplitNetwork, driving: Tensor) -> Tensor:
    """Return dσ_k/dt = L σ_k^(2 − 2/L) u_kᵀ headᵀ B v_k, third line of Eq. (40): no alignment."""
    pairs = paired_vectors(network)
    along = pairs.along(pairs.left, network.head.mT @ driving)
    return network.depth * pairs.values ** (2 - 2 / network.depth) * along


def exact_rates(network: SplitNetwork, driving: Tensor) -> Tensor:
    """Return dσ_k/dt = u_kᵀ (dΠ/dt) v_k of gradient flow, Eq. (10), without any assumption."""
    encoder = network.layers[: network.depth]
    velocities = layer_velocities(encoder, network.head.mT @ driving)
    first, *others = (
        product((*encoder[:number], velocity, *encoder[number + 1 :]))
        for number, velocity in enumerate(velocities)
    )
    pairs = paired_vectors(network)
    return pairs.along(pairs.left, sum(others, first))
