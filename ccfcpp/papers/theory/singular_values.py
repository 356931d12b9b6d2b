"""Singular values of the encoder: how they move, and how both papers say that they move.

The encoder is the product of the first layers, the head (classifier, predictor) that of the others.
Both theorems have one form. With σ_k, u_k, v_k of the encoder, singular vectors u'_k, v'_k of the
head, L and L' their numbers of layers, and a driving matrix B = −∂ℓ/∂(head · encoder):

    dσ_k/dt = L σ_k^(2 − 2/L) · (σ_k^(2/L) + M_k)^(L'/2) · u'_kᵀ B v_k

FedDecorr's Theorem 1 and CCFC++'s Theorem III.4 print L' = 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.metrics import effective_rank
from ccfcpp.papers.theory.linear_networks import Layers, layer_velocities, product


@dataclass(frozen=True)
class SplitNetwork:
    """A network and where its head begins.

    Attributes:
        layers: Layers of shape (…, width after, width before).
        depth: Layers of the encoder, L; the others are the head.
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

    @property
    def head_depth(self) -> int:
        """Layers of the head, L'."""
        return len(self.layers) - self.depth

    def at_clients(self, clients: int) -> "SplitNetwork":
        """The same weights at several clients, along a new leading axis."""
        layers = tuple(layer.expand(clients, *layer.shape) for layer in self.layers)
        return SplitNetwork(layers, self.depth)

    def at_time(self, number: int) -> "SplitNetwork":
        """The network at one point of a path, whose layers have a leading axis of times."""
        return SplitNetwork(tuple(layer[number] for layer in self.layers), self.depth)


@dataclass(frozen=True)
class PairedVectors:
    """The singular vectors of encoder and head, the k-th with the k-th, up to the lesser rank.

    Of the head's k-th pair both vectors are turned over where u_k · v'_k would be negative: the
    theorems need u_k · v'_k = 1, though their assumption is about |u_k · v'_k|.

    Attributes:
        values: σ_k of the encoder, of shape (…, k).
        left: u_k as columns, (…, representation, k).
        right: v_k as columns, (…, inputs, k).
        head_values: σ'_k, (…, k).
        head_left: u'_k as columns, (…, outputs, k).
        head_right: v'_k as columns, (…, representation, k).
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


def paired_vectors(network: SplitNetwork) -> PairedVectors:
    """Singular values and vectors of encoder and head, in descending order."""
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


def offsets(start: SplitNetwork, head_depth: int = 1) -> Tensor:
    """The constants M_k = σ'_k^(2/L') − σ_k^(2/L) at time 0, Eq. (43) and CCFC++'s Eq. (29).

    Args:
        start: The network at time 0.
        head_depth: L' of the formula; both papers print 1.

    Returns:
        Tensor of shape (…, k).
    """
    pairs = paired_vectors(start)
    return pairs.head_values ** (2 / head_depth) - pairs.values ** (2 / start.depth)


def theorem_rates(
    network: SplitNetwork, constants: Tensor, driving: Tensor, head_depth: int = 1
) -> Tensor:
    """dσ_k/dt as the theorems have it.

    Eq. (32) of the FedDecorr paper (ICLR; driving matrix N · G) and Eq. (7) of CCFC++ (Q̄).

    Args:
        network: The network now.
        constants: M_k of ``offsets``, of a shape that fits (…, k).
        driving: B of shape (…, outputs, inputs).
        head_depth: L' of the formula; both papers print 1.

    Returns:
        Tensor of shape (…, k).
    """
    pairs = paired_vectors(network)
    depth = network.depth
    # Where the assumptions do not hold the sum may become negative; the head's value is then 0.
    squared = (pairs.values ** (2 / depth) + constants).clamp(min=0)
    along = torch.einsum("...ok,...oi,...ik->...k", pairs.head_left, driving, pairs.right)
    return depth * pairs.values ** (2 - 2 / depth) * squared ** (head_depth / 2) * along


def rates_without_alignment(network: SplitNetwork, driving: Tensor) -> Tensor:
    """dσ_k/dt = L σ_k^(2 − 2/L) u_kᵀ headᵀ B v_k: the third line of Eq. (40), Assumption 1 alone.

    Args:
        network: The network now.
        driving: B of shape (…, outputs, inputs).

    Returns:
        Tensor of shape (…, k).
    """
    pairs = paired_vectors(network)
    seen = network.head.mT @ driving
    along = torch.einsum("...rk,...ri,...ik->...k", pairs.left, seen, pairs.right)
    return network.depth * pairs.values ** (2 - 2 / network.depth) * along


def exact_rates(network: SplitNetwork, driving: Tensor) -> Tensor:
    """dσ_k/dt = u_kᵀ (dΠ/dt) v_k of gradient flow, Eq. (10), without any assumption.

    Args:
        network: The network now.
        driving: −∂ℓ/∂(head · encoder), of shape (…, outputs, inputs).

    Returns:
        Tensor of shape (…, k).
    """
    encoder = network.layers[: network.depth]
    velocities = layer_velocities(encoder, network.head.mT @ driving)
    moved = sum(
        product((*encoder[:number], velocity, *encoder[number + 1 :]))
        for number, velocity in enumerate(velocities)
    )
    pairs = paired_vectors(network)
    return torch.einsum("...rk,...ri,...ik->...k", pairs.left, moved, pairs.right)


def mean_effective_rank(matrices: Tensor) -> float:
    """The effective rank of matrices (…, rows, columns), the mean over the leading axes."""
    values = torch.linalg.svdvals(matrices)
    ranks = [effective_rank(each) for each in values.reshape(-1, values.shape[-1])]
    return sum(ranks) / len(ranks)
