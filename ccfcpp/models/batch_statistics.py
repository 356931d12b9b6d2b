"""Means and products over batches that may be padded.

Leading axes are independent batches, such as those of several clients. Where batches are padded to
one length, ``mask`` of shape (…, batch) is 1 for each sample that counts and 0 for the others.
"""

from torch import Tensor


def batch_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean over the last axis of a tensor of shape (…, batch)."""
    if mask is None:
        return values.mean(dim=-1)
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1)


def centred(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Subtract the mean of the samples that count, and count them.

    Returns:
        The samples of shape (…, batch, dimensions), 0 where they do not count, and the counts of
        shape (…).
    """
    if mask is None:
        counts = z.new_full(z.shape[:-2], z.shape[-2])
        return z - z.mean(dim=-2, keepdim=True), counts
    weights, counts = mask.unsqueeze(-1), mask.sum(dim=-1)
    means = (z * weights).sum(dim=-2, keepdim=True) / counts[..., None, None]
    return (z - means) * weights, counts


def squared_products(z: Tensor) -> Tensor:
    """Return ‖zᵀz‖²_F over the last two axes of a tensor (…, batch, dimensions), of shape (…)."""
    batch, dimensions = z.shape[-2:]
    # ‖zᵀz‖_F = ‖zzᵀ‖_F: the smaller of the two products is formed.
    product = z @ z.mT if batch < dimensions else z.mT @ z
    return product.square().sum(dim=(-2, -1))


def squared_norms(z: Tensor) -> Tensor:
    """Return Σ_j (Σ_i z_ij²)², the part of ``squared_products`` on the diagonal of zᵀz."""
    return z.square().sum(dim=-2).square().sum(dim=-1)
