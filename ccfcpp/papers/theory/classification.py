"""A linear classifier under the cross-entropy, and the matrices of FedDecorr's Theorem 1.

Source: Shi et al., *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning* (ICLR 2023), Section 3.3 and Appendix A; the TPAMI version states the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.papers.theory.linear_networks import Layers, product


@dataclass(frozen=True)
class LabelledData:
    """A client's training data.

    Attributes:
        inputs: X, float64 of shape (…, inputs, samples).
        labels: One-hot y, float64 of shape (…, classes, samples).
    """

    inputs: Tensor
    labels: Tensor


def cross_entropy_sum(layers: Layers, data: LabelledData) -> Tensor:
    """The loss of Eq. (35): the sum over samples, not the mean; shape (…)."""
    logits = product(layers) @ data.inputs
    return -(data.labels * torch.log_softmax(logits, dim=-2)).sum(dim=(-2, -1))


def residuals(layers: Layers, data: LabelledData) -> Tensor:
    """The residuals y − γ, with the softmax outputs γ of Eq. (34): (…, classes, samples)."""
    return data.labels - torch.softmax(product(layers) @ data.inputs, dim=-2)


def exact_drive(layers: Layers, data: LabelledData) -> Tensor:
    """(y − γ) Xᵀ of Eqs. (36) and (37), which is −∂ℓ/∂(head · encoder).

    Returns:
        Tensor of shape (…, classes, inputs).
    """
    return residuals(layers, data) @ data.inputs.mT


def class_mean_drive(layers: Layers, data: LabelledData) -> Tensor:
    """N · G of Eqs. (32) and (33), G = Σ_c μ_c (e_c − γ̄_c) X̄_cᵀ, with means over each class.

    Eq. (45) says that this is (y − γ) Xᵀ. It is that matrix without the covariance, within each
    class, of outputs and inputs.

    Returns:
        Tensor of shape (…, classes, inputs); classes without samples add nothing.
    """
    samples_of = data.labels.sum(dim=-1)  # (…, classes)
    averaging = data.labels / samples_of.clamp(min=1).unsqueeze(-1)
    mean_residuals = residuals(layers, data) @ averaging.mT  # column c: e_c − γ̄_c
    mean_inputs = data.inputs @ averaging.mT  # column c: X̄_c
    return (mean_residuals * samples_of.unsqueeze(-2)) @ mean_inputs.mT
