"""Small random problems: data, and weights that satisfy the papers' assumptions or do not."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.studies.theory.drives import ClusteredData, LabelledData
from ccfcpp.studies.theory.linear_networks import (
    SplitNetwork,
    balanced_chain,
    normal,
    orthonormal_columns,
    product,
    random_layers,
)

INPUTS, REPRESENTATION, CLASSES, CLUSTERS, SAMPLES = 8, 5, 6, 5, 60
"""Sizes of the problems. No more dimensions than classes, so that each singular vector of the
encoder has one of the classifier beside it."""


def one_hot(labels: Tensor, count: int) -> Tensor:
    """Turn labels, int64 of shape (…, samples), into columns, float64 (…, count, samples)."""
    return F.one_hot(labels, count).double().mT


def _points(
    means: Tensor, labels: Tensor, spread: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw points around means (draws, inputs, count); return them and their one-hot labels.

    Labels (clients, samples) are the same for all draws.
    """
    draws, _, count = means.shape
    members = one_hot(labels, count).unsqueeze(1).expand(-1, draws, -1, -1)
    centres = means @ members
    return centres + spread * normal(generator, *centres.shape), members


def labelled_data(
    draws: int, classes_held: Sequence[int], spread: float, generator: torch.Generator
) -> LabelledData:
    """Draw clients that hold samples of the first classes only, in equal parts.

    Each client has its number of classes, 1 to ``CLASSES``, in ``classes_held``. The data have the
    leading axes (clients, draws); all clients of a draw share its class means, around which
    ``spread`` is the standard deviation.
    """
    means = normal(generator, draws, INPUTS, CLASSES)
    labels = torch.stack([torch.arange(SAMPLES) % held for held in classes_held])
    return LabelledData(*_points(means, labels, spread, generator))


def aligned_start(
    draws: int,
    depths: tuple[int, int],
    outputs: int,
    values: Tensor,
    constants: Tensor | float,
    generator: torch.Generator,
) -> SplitNetwork:
    """Make balanced layers, and a head whose right singular vectors are the encoder's left ones.

    The depths are the layers of the encoder, L, and of the head, L'. The encoder's singular values,
    of shape (k,), are positive and descending; there are no fewer outputs. The constants are
    M_k = σ'_k^(2/L') − σ_k^(2/L). Where they are one number for all k, vectors that are aligned at
    the start stay so: W_{L+1}ᵀW_{L+1} − W_L W_Lᵀ = M · 1 is conserved.
    """
    depth, head_depth = depths
    rank = len(values)
    left, right, of_head = (
        orthonormal_columns((draws,), rows, rank, generator) for rows in (rank, INPUTS, outputs)
    )
    head_values = (values ** (2 / depth) + constants) ** (head_depth / 2)
    encoder = balanced_chain(left, values.expand(draws, rank), right, depth)
    head = balanced_chain(of_head, head_values.expand(draws, rank), left, head_depth)
    return SplitNetwork((*encoder, *head), depth)


def random_start(draws: int, depth: int, outputs: int, generator: torch.Generator) -> SplitNetwork:
    """Draw independent normal weights, neither balanced nor aligned."""
    widths = [INPUTS, *[REPRESENTATION] * depth, outputs]
    return SplitNetwork(random_layers((draws,), widths, generator), depth)


def with_random_head(start: SplitNetwork, generator: torch.Generator) -> SplitNetwork:
    """Return the same encoder under a head of one random layer: balanced but not aligned."""
    draws, outputs, rank = start.head.shape
    head = random_layers((draws,), [rank, outputs], generator)
    return SplitNetwork((*start.layers[: start.depth], *head), start.depth)


def clustered_data(
    start: SplitNetwork,
    skews: Sequence[float],
    spread: float,
    lam: float,
    generator: torch.Generator,
) -> ClusteredData:
    """Draw clients by CCFC++'s degree of skew p, with pseudo-labels by the global model, Eq. (1).

    A client draws the share p of its samples from one true cluster and the rest from all. The
    global model ``start``, of leading axis draws, is the one that local training starts from, and
    its centroids are the representations of the true means. The data have the leading axes
    (clients, draws); ``skews`` has the p of each client.
    """
    means = normal(generator, start.encoder.shape[0], INPUTS, CLUSTERS)
    own = [round(p * SAMPLES) for p in skews]
    truth = torch.stack([(torch.arange(SAMPLES) - n).clamp(min=0) % CLUSTERS for n in own])
    inputs, _ = _points(means, truth, spread, generator)
    labels = torch.cdist((start.encoder @ inputs).mT, (start.encoder @ means).mT).argmin(dim=-1)
    return ClusteredData(inputs, one_hot(labels, CLUSTERS), product(start.layers) @ inputs, lam)
