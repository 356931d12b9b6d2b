"""A linear encoder and predictor under CCFC's cluster-contrastive loss, and Q̄ of Theorem III.4.

Source: Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation*, Section III-D and the appendix.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.papers.theory.linear_networks import SplitNetwork, product

Jacobian = Literal["diagonal", "full"]
"""Jacobian of the normalisation p ↦ p / ‖p‖: what Eq. (15) keeps of it, or all of it."""

LatentWeight = Literal["appendix", "main text"]
"""Eq. (15) weighs a cluster's sum of ẑ with 1/n_c², what stands below Eq. (8) with 1/n_c."""


@dataclass(frozen=True)
class ClusteredData:
    """Data of a client with pseudo-labels, and the outputs of the frozen global model.

    Attributes:
        inputs: X, float64 of shape (…, inputs, samples).
        members: One-hot pseudo-labels, float64 of shape (…, clusters, samples).
        global_predictions: Pᵍ, float64 of shape (…, representation, samples).
        lam: Weight of the model-contrastive term.
    """

    inputs: Tensor
    members: Tensor
    global_predictions: Tensor
    lam: float


def contrastive_drive(
    network: SplitNetwork,
    data: ClusteredData,
    jacobian: Jacobian = "full",
    latent_weight: LatentWeight = "appendix",
) -> Tensor:
    """Return Q̄ of Eqs. (8) and (15); with the full Jacobian it is −∂ℓ/∂(predictor · encoder).

    Args:
        network: Encoder and predictor.
        data: The client's data.
        jacobian: ``diagonal`` as printed, with factors (1 − p̂²) / ‖p‖ for each entry, or ``full``.
        latent_weight: Where the weight of a cluster's ẑ is read off; Eq. (2) gives the appendix's.

    Returns:
        Tensor of shape (…, representation, inputs).
    """
    latents = network.encoder @ data.inputs
    predictions = network.head @ latents
    pulls = _pulls(latents, data, latent_weight)
    norms = predictions.norm(dim=-2, keepdim=True)
    unit = predictions / norms
    if jacobian == "full":
        changed = pulls - unit * (unit * pulls).sum(dim=-2, keepdim=True)
    else:
        changed = pulls * (1 - unit.square())
    clusters = (data.members.sum(dim=-1) > 0).sum(dim=-1)[..., None, None]
    drive: Tensor = (changed / norms) @ data.inputs.mT / clusters
    return drive


def _pulls(latents: Tensor, data: ClusteredData, latent_weight: LatentWeight) -> Tensor:
    """Return −k ∂ℓ/∂p̂ of Eq. (16), a column a sample: (1/n_c²) Σ_j ẑ_j + (λ/n_c) p̂ᵍ."""
    sizes = data.members.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = 1 / sizes**2 if latent_weight == "appendix" else 1 / sizes
    sums = F.normalize(latents, dim=-2) @ (data.members * weights).mT  # column c: Σ_j ẑ_j, weighed
    towards_global = F.normalize(data.global_predictions, dim=-2)
    of_sample = (data.members / sizes).sum(dim=-2, keepdim=True)
    return sums @ data.members + data.lam * of_sample * towards_global


def predictions_of(network: SplitNetwork, inputs: Tensor) -> Tensor:
    """Return P = Φ Π X, of shape (…, representation, samples), without a gradient."""
    with torch.no_grad():
        return product(network.layers) @ inputs
