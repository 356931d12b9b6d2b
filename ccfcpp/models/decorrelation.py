"""FedDecorr's decorrelation loss, which CCFC++ uses for clustering, and its parts.

Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning* ("the
paper" below).
"""

from torch import Tensor

EPSILON = 1e-8
"""Added to variances, so that a constant dimension gives 0 in place of 0/0."""


def feddecorr(representations: Tensor, scale: str = "paper") -> Tensor:
    """Compute the mean squared correlation between dimensions of representations.

    Args:
        representations: z of shape (…, batch, dimensions).
        scale: ``paper``: Eq. (9) by Algorithm 1, the mean over all d² entries of (ZᵀZ/N)², where Z
            is standardised by the unbiased deviation; ``code``: the authors' code, the mean over
            the entries off the diagonal of (ZᵀZ)²/N, about N times as large.

    Returns:
        Tensor of shape (…): the loss term without its weight β.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, 2.0], [-1.0, -2.0]])
        >>> feddecorr(z)
        tensor(0.5625)
    """
    residuals = subtract_mean(representations)
    batch, dimensions = representations.shape[-2:]
    variances = residuals.square().sum(dim=-2, keepdim=True) / max(1, batch - 1)
    scored = residuals * (variances + EPSILON).rsqrt()
    if scale == "paper":
        return squared_products(scored) / (batch * dimensions) ** 2
    off_diagonal = squared_products(scored) - squared_norms(scored)
    return off_diagonal / (batch * max(1, dimensions * (dimensions - 1)))


def subtract_mean(z: Tensor) -> Tensor:
    """Subtract the mean over the batch from a tensor of shape (…, batch, dimensions).

    Example:
        >>> import torch
        >>> subtract_mean(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    return z - z.mean(dim=-2, keepdim=True)


def squared_products(z: Tensor) -> Tensor:
    """Compute the squared Frobenius norm ‖zᵀz‖²_F of z (…, batch, dimensions), of shape (…).

    Example:
        >>> import torch
        >>> squared_products(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))  # zᵀz = [[1, 2], [2, 5]]
        tensor(34.)
    """
    batch, dimensions = z.shape[-2:]
    # ‖zᵀz‖_F = ‖zzᵀ‖_F: the smaller of the two products is formed.
    product = z @ z.mT if batch < dimensions else z.mT @ z
    return product.square().sum(dim=(-2, -1))


def squared_norms(z: Tensor) -> Tensor:
    """Compute Σ_j (Σ_i z_ij²)² of z (…, batch, dimensions), the squared diagonal of zᵀz: shape (…).

    Example:
        >>> import torch
        >>> squared_norms(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        tensor(26.)
    """
    return z.square().sum(dim=-2).square().sum(dim=-1)
