"""Products over batches; leading axes are independent batches."""

from torch import Tensor


def centred(z: Tensor) -> Tensor:
    """Subtract the mean over the batch, of a tensor of shape (…, batch, dimensions)."""
    return z - z.mean(dim=-2, keepdim=True)


def squared_products(z: Tensor) -> Tensor:
    """Return ‖zᵀz‖²_F over the last two axes of a tensor (…, batch, dimensions), of shape (…)."""
    batch, dimensions = z.shape[-2:]
    # ‖zᵀz‖_F = ‖zzᵀ‖_F: the smaller of the two products is formed.
    product = z @ z.mT if batch < dimensions else z.mT @ z
    return product.square().sum(dim=(-2, -1))


def squared_norms(z: Tensor) -> Tensor:
    """Return Σ_j (Σ_i z_ij²)², the part of ``squared_products`` on the diagonal of zᵀz."""
    return z.square().sum(dim=-2).square().sum(dim=-1)
