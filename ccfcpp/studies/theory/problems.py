"""Small random problems: data, weights, and the drives of both papers' losses.

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
"""Sizes of the problems. No more dimensions than classes, so that each singular vector of the
encoder has one of the classifier beside it."""
Jacobian = Literal["diagonal", "full"]
"""Jacobian of the normalisation p ↦ p / ‖p‖: what Eq. (15) keeps of it, or all of it."""
LatentWeight = Literal["appendix", "main text"]
"""Eq. (15) weighs a cluster's sum of ẑ with 1/n_c², what stands below Eq. (8) with 1/n_c."""


class LabelledData(NamedTuple):
    """A client's X (…, inputs, samples) and one-hot y (…, classes, samples), both float64."""

    inputs: Tensor
    labels: Tensor


class ClusteredData(NamedTuple):
    """A client's data with one-hot pseudo-labels, and the outputs of the frozen global model.

    X (…, inputs, samples), members (…, clusters, samples) and Pᵍ (…, representation, samples) are
    float64; ``lam`` is the weight of the model-contrastive term.
    """

    inputs: Tensor
    members: Tensor
    global_predictions: Tensor
    lam: float


# --- drives: −∂ℓ/∂(head · encoder), as derived and as printed ---


def residuals(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return y − γ with the softmax outputs γ of Eq. (34), of shape (…, classes, samples)."""
    return data.labels - torch.softmax(product(network.layers) @ data.inputs, dim=-2)


def exact_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Compute FedDecorr's (y − γ) Xᵀ, Eqs. (36) and (37) (ICLR), of shape (…, classes, inputs)."""
    return residuals(network, data) @ data.inputs.mT


def class_mean_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Compute FedDecorr's N · G, G = Σ_c μ_c (e_c − γ̄_c) X̄_cᵀ, from each class's means.

    Eqs. (32) and (33) of the ICLR paper; Eq. (45) says that this is (y − γ) Xᵀ. It is that matrix,
    of shape (…, classes, inputs), without the covariance of outputs and inputs within each class.
    Classes without samples add nothing.
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
    """Compute CCFC++'s Q̄, Eqs. (8) and (15), of shape (…, representation, inputs).

    With the ``full`` Jacobian it is −∂ℓ/∂(predictor · encoder). The printed one is ``diagonal``,
    with factors (1 − p̂²) / ‖p‖ for each entry. Eq. (2) gives the weight of a cluster's ẑ that the
    appendix has.
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
    """Return −k ∂ℓ/∂p̂ of Eq. (16), a column for each sample: (1/n_c²) Σ_j ẑ_j + (λ/n_c) p̂ᵍ."""
    sizes = data.members.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = 1 / sizes**2 if latent_weight == "appendix" else 1 / sizes
    sums = F.normalize(latents, dim=-2) @ (data.members * weights).mT  # column c: Σ_j ẑ_j, weighed
    towards_global = F.normalize(data.global_predictions, dim=-2)
    of_sample = (data.members / sizes).sum(dim=-2, keepdim=True)
    return sums @ data.members + data.lam * of_sample * towards_global


# --- data and weights ---


def one_hot(labels: Tensor, count: int) -> Tensor:
    """Convert labels, int64 of shape (…, samples), to columns, float64 (…, count, samples)."""
    return F.one_hot(labels, count).double().mT


def _draw_points(
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
    return LabelledData(*_draw_points(means, labels, spread, generator))


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
    M_k = σ'_k^(2/L') − σ_k^(2/L). If they are one number for all k, vectors that are aligned at
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
    inputs, _ = _draw_points(means, truth, spread, generator)
    labels = torch.cdist((start.encoder @ inputs).mT, (start.encoder @ means).mT).argmin(dim=-1)
    return ClusteredData(inputs, one_hot(labels, CLUSTERS), product(start.layers) @ inputs, lam)
