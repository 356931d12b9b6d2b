"""Singular values of the encoder: how they move, and how both papers say that they move.

Both theorems have one form. With σ_k, u_k, v_k of the encoder, singular vectors u'_k, v'_k of the
head, L and L' their numbers of layers, and a driving matrix B = −∂ℓ/∂(head · encoder) of shape
(…, outputs, inputs):

    dσ_k/dt = L σ_k^(2 − 2/L) · (σ_k^(2/L) + M_k)^(L'/2) · u'_kᵀ B v_k

FedDecorr's Theorem 1 and CCFC++'s Theorem III.4 print L' = 1. All rates have the shape (…, k).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ccfcpp.core.metrics import effective_rank
from ccfcpp.studies.theory.linear_networks import SplitNetwork, layer_velocities, product


class PairedVectors(NamedTuple):
    """Singular values (…, k) of encoder and head, and their vectors as columns (…, width, k).

    The k-th stands with the k-th, up to the lesser rank: σ_k, u_k, v_k; σ'_k, u'_k, v'_k. Both
    vectors of the head's k-th pair are turned over where u_k · v'_k would be negative: the theorems
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


def offsets(start: SplitNetwork, head_depth: int = 1) -> Tensor:
    """Return M_k = σ'_k^(2/L') − σ_k^(2/L) at time 0, Eq. (43) and CCFC++'s Eq. (29)."""
    pairs = paired_vectors(start)
    return pairs.head_values ** (2 / head_depth) - pairs.values ** (2 / start.depth)


def theorem_rates(
    network: SplitNetwork, constants: Tensor, driving: Tensor, head_depth: int = 1
) -> Tensor:
    """Return dσ_k/dt as the theorems have it, with M_k of ``offsets`` and the driving matrix B.

    Eq. (32) of the FedDecorr paper (ICLR; driving matrix N · G) and Eq. (7) of CCFC++ (Q̄).
    ``head_depth`` is the formula's L'; both papers print 1.
    """
    pairs, depth = paired_vectors(network), network.depth
    # Where the assumptions do not hold the sum may become negative; the head's value is then 0.
    squared = (pairs.values ** (2 / depth) + constants).clamp(min=0)
    along = pairs.along(pairs.head_left, driving)
    return depth * pairs.values ** (2 - 2 / depth) * squared ** (head_depth / 2) * along


def rates_without_alignment(network: SplitNetwork, driving: Tensor) -> Tensor:
    """Return dσ_k/dt = L σ_k^(2 − 2/L) u_kᵀ headᵀ B v_k, by Assumption 1 alone.

    The third line of Eq. (40).
    """
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


def mean_effective_rank(matrices: Tensor) -> float:
    """Return the effective rank of matrices (…, rows, columns), the mean over leading axes."""
    values = torch.linalg.svdvals(matrices).flatten(end_dim=-2)
    return sum(map(effective_rank, values)) / len(values)


def mean_growing(values: Tensor) -> Tensor:
    """Return how many singular values grow by more than a tenth of what the fastest one does.

    Values along a path, of shape (times, clients, draws, k), give means over draws, of shape
    (clients,).
    """
    growth = values[-1] - values[0]
    grown = growth > 0.1 * growth.amax(dim=-1, keepdim=True)
    return grown.double().sum(dim=-1).mean(dim=-1)
