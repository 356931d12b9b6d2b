"""Deep linear networks under gradient flow, in float64 on the CPU, and their singular values.

The loss depends on the layers only through their product, so that its negative gradient
B = −∂ℓ/∂(W_n ⋯ W_1), of shape (…, outputs, inputs) and called the *drive* here, gives the time
derivative of every layer. Leading axes are independent networks.

Both papers' theorems on the singular values σ_k of the encoder have the same form. u_k, v_k are its
left and right singular vectors, u'_k, v'_k those of the head, L and L' their numbers of layers:

    dσ_k/dt = L σ_k^(2 − 2/L) · (σ_k^(2/L) + M_k)^(L'/2) · u'_kᵀ B v_k

M_k is a constant of time (``depth_offsets``). FedDecorr's Theorem 1 and CCFC++'s Theorem III.4
have L' = 1. Rates are dσ_k/dt, of shape (…, k). Equations without a name are FedDecorr's (ICLR).
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
    """Return the matrix product W_n ⋯ W_1 of one or more layers, given first layer first."""
    return reduce(lambda done, layer: layer @ done, layers)


@dataclass(frozen=True)
class SplitNetwork:
    """Linear network of an encoder (its first ``depth`` layers) and a head (the layers above).

    On a path of gradient flow, layers have a leading axis of times.
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
        """Return the network with a new leading axis: the same weights at each client."""
        layers = tuple(layer.expand(clients, *layer.shape) for layer in self.layers)
        return SplitNetwork(layers, self.depth)

    def at_times(self, chosen: int | slice) -> "SplitNetwork":
        """Return the network at some times of a path, chosen by index."""
        return SplitNetwork(tuple(layer[chosen] for layer in self.layers), self.depth)


Drive = Callable[[SplitNetwork], Tensor]
"""Function from a network to its drive B, the loss's negative gradient by W_n ⋯ W_1."""


def layer_velocities(layers: WeightMatrices, drive: Tensor) -> WeightMatrices:
    """Return dW_j/dt = (W_n ⋯ W_{j+1})ᵀ B (W_{j−1} ⋯ W_1)ᵀ of each layer, for the drive B.

    Eq. (16) of the FedDecorr paper (ICLR).
    """
    velocities = []
    for number in range(len(layers)):
        before, after = layers[:number], layers[number + 1 :]
        velocity = product(after).mT @ drive if after else drive
        velocities.append(velocity @ product(before).mT if before else velocity)
    return tuple(velocities)


def flow(start: SplitNetwork, drive: Drive, step: float, steps: int) -> SplitNetwork:
    """Integrate gradient flow from ``start`` by the classical Runge-Kutta method of order four.

    The result has the times 0, step, …, steps · step: layers of shape (steps + 1, …, width after,
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
    """Return the largest |entry| of W_j W_jᵀ − W_{j+1}ᵀ W_{j+1}, 0 if balanced; shape (…)."""
    differences = [before @ before.mT - after.mT @ after for before, after in pairwise(layers)]
    return torch.stack([each.abs().amax(dim=(-2, -1)) for each in differences]).amax(dim=0)


# --- random weights ---


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw independent standard normal numbers, float64 of the given shape."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orthonormal_columns(
    shape: Sequence[int], rows: int, columns: int, generator: torch.Generator
) -> Tensor:
    """Draw random matrices with orthonormal columns, of shape (*shape, rows, columns)."""
    assert columns <= rows, f"{columns} columns of {rows} rows cannot be orthonormal"
    drawn: Tensor = torch.linalg.qr(normal(generator, *shape, rows, columns)).Q
    return drawn


def balanced_chain(left: Tensor, values: Tensor, right: Tensor, depth: int) -> WeightMatrices:
    """Make ``depth`` balanced layers with the product left · diag(values) · rightᵀ.

    ``left`` (…, width after, rank) and ``right`` (…, width before, rank) have orthonormal columns;
    ``values`` (…, rank) are positive. Layers between the first and the last are diagonal.
    """
    inner = torch.diag_embed(values ** (1 / depth))
    if depth == 1:
        return (left @ inner @ right.mT,)
    return (inner @ right.mT, *[inner] * (depth - 2), left @ inner)


def random_layers(
    shape: Sequence[int], widths: Sequence[int], generator: torch.Generator
) -> WeightMatrices:
    """Draw layers with independent normal weights of standard deviation 1 / sqrt(width before).

    ``shape`` are their leading axes, ``widths`` the widths before, between and after the layers.
    """
    pairs = pairwise(widths)
    return tuple(normal(generator, *shape, after, w) * (1.0 / w**0.5) for w, after in pairs)


# --- singular values ---


class PairedVectors(NamedTuple):
    """Singular value decompositions of encoder (σ_k, u_k, v_k) and head (σ'_k, u'_k, v'_k).

    Values have the shape (…, k), in descending order up to the smaller rank; vectors are columns
    (…, width, k). Signs of u'_k and v'_k are chosen such that u_k · v'_k ≥ 0, since the theorems
    use u_k · v'_k = 1, though their assumption is on |u_k · v'_k|.
    """

    values: Tensor
    left: Tensor
    right: Tensor
    head_values: Tensor
    head_left: Tensor
    head_right: Tensor

    @property
    def alignment(self) -> Tensor:
        """|u_k · v'_k'|, of shape (…, k', k), as in Figure 6 of the FedDecorr paper (ICLR)."""
        return (self.head_right.mT @ self.left).abs()

    def along(self, left: Tensor, matrix: Tensor) -> Tensor:
        """Return left_kᵀ · matrix · v_k, of shape (…, k), for the encoder's right vectors v_k."""
        return torch.einsum("...ok,...oi,...ik->...k", left, matrix, self.right)


def paired_vectors(network: SplitNetwork) -> PairedVectors:
    """Compute the singular values and vectors of a network's encoder and head."""
    left, values, right = torch.linalg.svd(network.encoder, full_matrices=False)
    head_left, head_values, head_right = torch.linalg.svd(network.head, full_matrices=False)
    kept = min(values.shape[-1], head_values.shape[-1])
    left, right = left[..., :kept], right.mT[..., :kept]
    head_left, head_right = head_left[..., :kept], head_right.mT[..., :kept]
    signs = torch.where((left * head_right).sum(dim=-2, keepdim=True) < 0, -1.0, 1.0)
    return PairedVectors(
        values[..., :kept], left, right,
        head_values[..., :kept], head_left * signs, head_right * signs,
    )  # fmt: skip


def depth_offsets(start: SplitNetwork, head_depth: int = 1) -> Tensor:
    """Return M_k = σ'_k^(2/L') − σ_k^(2/L) at time 0: Eq. (43) (ICLR), Eq. (29) of CCFC++.

    σ_k, σ'_k are the singular values of encoder and head, L, L' (``head_depth``) their depths.
    """
    pairs = paired_vectors(start)
    return pairs.head_values ** (2 / head_depth) - pairs.values ** (2 / start.depth)


def theorem_rates(
    network: SplitNetwork, constants: Tensor, driving: Tensor, head_depth: int = 1
) -> Tensor:
    """Return dσ_k/dt of the encoder's singular values by the theorems, of shape (…, k).

    Eq. (32) of the FedDecorr paper (ICLR), whose drive B is N · G, and Eq. (7) of CCFC++, with Q̄.
    ``constants`` are M_k of ``depth_offsets``, ``driving`` is B, ``head_depth`` is L'.
    """
    pairs, depth = paired_vectors(network), network.depth
    # The sum may be negative if the assumptions do not hold; the head's value is then 0.
    squared = (pairs.values ** (2 / depth) + constants).clamp(min=0)
    along = pairs.along(pairs.head_left, driving)
    return depth * pairs.values ** (2 - 2 / depth) * squared ** (head_depth / 2) * along


def rates_without_alignment(network: SplitNetwork, driving: Tensor) -> Tensor:
    """Return dσ_k/dt = L σ_k^(2 − 2/L) u_kᵀ headᵀ B v_k, of shape (…, k), for the drive B.

    Eq. (40), line 3, of the FedDecorr paper (ICLR): it does not assume alignment.
    """
    pairs = paired_vectors(network)
    along = pairs.along(pairs.left, network.head.mT @ driving)
    return network.depth * pairs.values ** (2 - 2 / network.depth) * along


def exact_rates(network: SplitNetwork, driving: Tensor) -> Tensor:
    """Return dσ_k/dt = u_kᵀ (dΠ/dt) v_k of the encoder Π, FedDecorr's Eq. (10), always exact."""
    encoder = network.layers[: network.depth]
    velocities = layer_velocities(encoder, network.head.mT @ driving)
    first, *others = (
        product((*encoder[:number], velocity, *encoder[number + 1 :]))
        for number, velocity in enumerate(velocities)
    )
    pairs = paired_vectors(network)
    return pairs.along(pairs.left, sum(others, first))
