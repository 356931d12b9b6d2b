"""Small random problems: data, weights, and negative gradients (drives) of both papers' losses.

Sources: Shi et al., *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning* (ICLR 2023), Section 3.3 and Appendix A, for a linear classifier under the
cross-entropy; Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation*, Section III-D and the appendix, for CCFC's cluster-contrastive loss.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.studies.theory.networks import (
    SplitNetwork,
    balanced_chain,
    normal,
    orthonormal_columns,
    product,
    random_layers,
)

INPUTS, REPRESENTATION, CLASSES, CLUSTERS, SAMPLES = 8, 5, 6, 5, 60
"""Sizes of the problems. The representation has fewer dimensions than there are classes, so that
each singular vector of the encoder is paired with one of the classifier."""
Jacobian = Literal["diagonal", "full"]
"""Jacobian of the normalisation p ↦ p / ‖p‖: its diagonal (CCFC++'s Eq. (15)), or all of it."""
LatentWeight = Literal["appendix", "main text"]
"""Weight of a cluster's sum of ẑ: 1/n_c² in CCFC++'s Eq. (15), 1/n_c in the text below Eq. (8)."""


class LabelledData(NamedTuple):
    """A client's X (…, inputs, samples) and one-hot labels y (…, classes, samples), in float64."""

    inputs: Tensor
    labels: Tensor


class ClusteredData(NamedTuple):
    """A client's data with pseudo-labels, and the frozen global model's predictions; float64.

    They are X (…, inputs, samples), one-hot ``members`` (…, clusters, samples) and Pᵍ (…,
    representation, samples); ``lam`` is the weight λ of the model-contrastive term.
    """

    inputs: Tensor
    members: Tensor
    global_predictions: Tensor
    lam: float


# --- drives: −∂ℓ/∂(head · encoder), as derived and as printed ---


def residuals(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return y − γ, labels minus softmax outputs (Eq. (34), ICLR), as (…, classes, samples)."""
    return data.labels - torch.softmax(product(network.layers) @ data.inputs, dim=-2)


def exact_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Compute the cross-entropy's negative gradient (y − γ) Xᵀ, of shape (…, classes, inputs).

    Eqs. (36) and (37) of the FedDecorr paper (ICLR); γ are the softmax outputs.
    """
    return residuals(network, data) @ data.inputs.mT


def class_mean_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Compute N · G = N Σ_c μ_c (e_c − γ̄_c) X̄_cᵀ, FedDecorr's negative gradient by class means.

    Eqs. (32) and (33) of the FedDecorr paper (ICLR). N is the number of samples, μ_c the share of
    class c, e_c its one-hot vector, γ̄_c and X̄_c its mean softmax output and mean input. Eq. (45)
    claims that N · G is (y − γ) Xᵀ, of shape (…, classes, inputs); it lacks the covariance of
    outputs and inputs within classes.
    """
    samples_of = data.labels.sum(dim=-1)  # (…, classes)
    averaging = data.labels / samples_of.clamp(min=1).unsqueeze(-1)
    mean_residuals = residuals(network, data) @ averaging.mT  # column c: e_c − γ̄_c
    mean_inputs = data.inputs @ averaging.mT  # column c: X̄_c
    return (mean_residuals * samples_of.unsqueeze(-2)) @ mean_inputs.mT


def contrastive_drive(
    network: SplitNetwork,
    data: ClusteredData,
    jacobian: Jacobian = "full",
    latent_weight: LatentWeight = "appendix",
) -> Tensor:
    """Compute Q̄ of CCFC++, the contrastive loss's negative gradient by predictor · encoder.

    Eqs. (8) and (15) of the CCFC++ paper, of shape (…, representation, inputs). It is exact for the
    loss of Eq. (2) with the ``full`` Jacobian and the ``appendix``'s weights. As printed, the
    Jacobian is ``diagonal``: (1 − p̂²) / ‖p‖ for each entry.
    """
    latents = network.encoder @ data.inputs
    predictions = network.head @ latents
    gradients = _prediction_gradients(latents, data, latent_weight)
    norms = predictions.norm(dim=-2, keepdim=True)
    unit = predictions / norms
    if jacobian == "full":
        changed = gradients - unit * (unit * gradients).sum(dim=-2, keepdim=True)
    else:
        changed = gradients * (1 - unit.square())
    clusters = (data.members.sum(dim=-1) > 0).sum(dim=-1)[..., None, None]
    drive: Tensor = (changed / norms) @ data.inputs.mT / clusters
    return drive


def _prediction_gradients(
    latents: Tensor, data: ClusteredData, latent_weight: LatentWeight
) -> Tensor:
    """Return −k ∂ℓ/∂p̂ = (1/n_c²) Σ_j ẑ_j + (λ/n_c) p̂ᵍ (CCFC++'s Eq. (16)), a column per sample.

    Latents ẑ, predictions p̂ and the global model's p̂ᵍ are normalised; of k clusters, the sample's
    has the size n_c and the members j.
    """
    sizes = data.members.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = 1 / sizes**2 if latent_weight == "appendix" else 1 / sizes
    sums = F.normalize(latents, dim=-2) @ (data.members * weights).mT  # column c: Σ_j ẑ_j, weighed
    towards_global = F.normalize(data.global_predictions, dim=-2)
    of_sample = (data.members / sizes).sum(dim=-2, keepdim=True)
    return sums @ data.members + data.lam * of_sample * towards_global


# --- data and weights ---


def one_hot(labels: Tensor, count: int) -> Tensor:
    """One-hot encode labels, int64 of shape (…, samples), as float64 (…, count, samples)."""
    return F.one_hot(labels, count).double().mT


def _draw_points(
    means: Tensor, labels: Tensor, spread: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw normal points around ``means`` (draws, inputs, count); also return one-hot labels.

    ``labels`` (clients, samples), which are the same for all draws, choose each point's mean.
    """
    draws, _, count = means.shape
    members = one_hot(labels, count).unsqueeze(1).expand(-1, draws, -1, -1)
    centres = means @ members
    return centres + spread * normal(generator, *centres.shape), members


def labelled_data(
    draws: int, classes_held: Sequence[int], spread: float, generator: torch.Generator
) -> LabelledData:
    """Draw the data of clients with different numbers of classes, of leading axes (clients, draws).

    ``classes_held`` has each client's number m of classes, 1 to ``CLASSES``: equally many samples
    of each of the first m. All clients of a draw share its class means, around which ``spread`` is
    the standard deviation.
    """
    means = normal(generator, draws, INPUTS, CLASSES)
    labels = torch.stack([torch.arange(SAMPLES) % held for held in classes_held])
    return LabelledData(*_draw_points(means, labels, spread, generator))


def aligned_start(
    draws: int,
    depths: tuple[int, int],
    outputs: int,
    values: Tensor,
    constants: Tensor | float,
    generator: torch.Generator,
) -> SplitNetwork:
    """Make random networks that are balanced, and whose head is aligned with the encoder.

    Aligned: the head's right singular vectors are the encoder's left ones. They stay so under
    gradient flow if ``constants``, M_k = σ'_k^(2/L') − σ_k^(2/L), is one number for all k:
    W_{L+1}ᵀW_{L+1} − W_L W_Lᵀ = M · 1 is conserved. ``depths`` are the numbers of layers of encoder
    (L) and head (L'), ``values`` the encoder's singular values σ_k, positive, descending, of shape
    (k,). There must be k outputs or more.
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
    """Draw networks of normal weights: neither balanced nor aligned, as the theorems assume."""
    widths = [INPUTS, *[REPRESENTATION] * depth, outputs]
    return SplitNetwork(random_layers((draws,), widths, generator), depth)


def with_random_head(start: SplitNetwork, generator: torch.Generator) -> SplitNetwork:
    """Replace the head by one random layer, so that it is no longer aligned with the encoder."""
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
    """Draw clients' data by CCFC++'s degree of skew p, with the global model's pseudo-labels.

    ``skews`` has the p of each client: this share of its samples comes from one true cluster, the
    rest from all in equal parts. Pseudo-labels, Eq. (1), are the nearest centroids in the
    representation by ``start``, the global model, with a leading axis of draws; centroids are the
    representations of the true means. The data have the leading axes (clients, draws).
    """
    means = normal(generator, start.encoder.shape[0], INPUTS, CLUSTERS)
    own = [round(p * SAMPLES) for p in skews]
    truth = torch.stack([(torch.arange(SAMPLES) - n).clamp(min=0) % CLUSTERS for n in own])
    inputs, _ = _draw_points(means, truth, spread, generator)
    labels = torch.cdist((start.encoder @ inputs).mT, (start.encoder @ means).mT).argmin(dim=-1)
    return ClusteredData(inputs, one_hot(labels, CLUSTERS), product(start.layers) @ inputs, lam)
