"""A linear classifier under the cross-entropy, and the matrices of FedDecorr's Theorem 1.

Source: Shi et al., *Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning* (ICLR 2023), Section 3.3 and Appendix A; the TPAMI version states the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.papers.theory.linear_networks import SplitNetwork, product


@dataclass(frozen=True)
class LabelledData:
    """Training data of a client.

    Attributes:
        inputs: X, float64 of shape (…, inputs, samples).
        labels: One-hot y, float64 of shape (…, classes, samples).
    """

    inputs: Tensor
    labels: Tensor


def residuals(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return y − γ with the softmax outputs γ of Eq. (34), of shape (…, classes, samples)."""
    return data.labels - torch.softmax(product(network.layers) @ data.inputs, dim=-2)


def exact_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return (y − γ) Xᵀ of Eqs. (36) and (37), which is −∂ℓ/∂(head · encoder).

    Returns:
        Tensor of shape (…, classes, inputs).
    """
    return residuals(network, data) @ data.inputs.mT


def class_mean_drive(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return N · G of Eqs. (32) and (33), G = Σ_c μ_c (e_c − γ̄_c) X̄_cᵀ, with means of each class.

    Eq. (45) says that this is (y − γ) Xᵀ. It is that matrix without the covariance, within each
    class, of outputs and inputs.

    Returns:
        Tensor of shape (…, classes, inputs); classes without samples add nothing.
    """
    samples_of = data.labels.sum(dim=-1)  # (…, classes)
    averaging = data.labels / samples_of.clamp(min=1).unsqueeze(-1)
    mean_residuals = residuals(network, data) @ averaging.mT  # column c: e_c − γ̄_c
    mean_inputs = data.inputs @ averaging.mT  # column c: X̄_c
    return (mean_residuals * samples_of.unsqueeze(-2)) @ mean_inputs.mT
