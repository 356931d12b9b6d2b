"""The drives of both papers' losses: −∂ℓ/∂(head · encoder), as derived and as printed.

Sources: Shi et al., *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning* (ICLR 2023), Section 3.3 and Appendix A, for a linear classifier under the
cross-entropy; Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation*, Section III-D and the appendix, for CCFC's cluster-contrastive loss.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.studies.theory.linear_networks import SplitNetwork, product

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


def residuals(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return y − γ with the softmax outputs γ of Eq. (34), of shape (…, classes, samples)."""
    return data.labels - torch.softmax(product(network.layers) @ data.inputs, dim=-2)


def exact_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return (y − γ) Xᵀ of Eqs. (36) and (37), of shape (…, classes, inputs)."""
    return residuals(network, data) @ data.inputs.mT


def class_mean_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return N · G of Eqs. (32) and (33), G = Σ_c μ_c (e_c − γ̄_c) X̄_cᵀ, with means of each class.

    Eq. (45) says that this is (y − γ) Xᵀ. It is that matrix, of shape (…, classes, inputs), without
    the covariance, within each class, of outputs and inputs. Classes without samples add nothing.
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
    """Return Q̄ of Eqs. (8) and (15), of shape (…, representation, inputs).

    With the ``full`` Jacobian it is −∂ℓ/∂(predictor · encoder). The printed one is ``diagonal``,
    with factors (1 − p̂²) / ‖p‖ for each entry. Eq. (2) gives the weight of a cluster's ẑ that the
    appendix has.
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
