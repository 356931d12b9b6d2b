"""Loss terms of CCFC and CCFC++.

Source: Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation* ("the paper" below). All terms take time linear
in the batch: the double sum over the pairs of a cluster is an inner product of two means.

Axes before the batch axis, written …, are kept: each index along them has a loss of its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.models.decorrelation import feddecorr, squared_products, subtract_mean


def negative_cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return each row's −cos to its target, D in CCFC++, Eq. (2); targets get no gradient.

    Both arguments have shape (…, dimensions), and the result has shape (…).

    Example:
        >>> import torch
        >>> negative_cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([-0.6000])
    """
    return -F.cosine_similarity(predictions, targets.detach(), dim=-1)


def siamese(predictions: Sequence[Tensor], latents: Sequence[Tensor]) -> Tensor:
    """Return SimSiam's loss ½D(p₁, z₂) + ½D(p₂, z₁), which pre-training minimises.

    Source: Chen and He, *Exploring Simple Siamese Representation Learning* (CVPR 2021), Eq. (4);
    D is ``negative_cosine``.

    Args:
        predictions: Predictions p₁, p₂ of two views, each of shape (…, batch, dimensions).
        latents: Their latent representations z₁, z₂, of the same shape.

    Returns:
        Tensor of shape (…), the mean over the batch.

    Example:
        >>> import torch
        >>> z = torch.eye(2)
        >>> siamese([z, z], [z, z])  # Each prediction has the direction of its target.
        tensor(-1.)
    """
    crossed = zip(predictions, reversed(latents), strict=True)
    first, second = (negative_cosine(p, z).mean(dim=-1) for p, z in crossed)
    return (first + second) / 2


def cluster_contrast(
    predictions: Tensor,
    latents: Tensor,
    global_predictions: Tensor | None,
    labels: Tensor,
    clusters: int,
    lam: float,
    min_cluster_size: int = 2,
) -> Tensor:
    """Return the cluster-contrastive loss over one batch, Eq. (2) of the CCFC++ paper.

    With p̂ and ẑ of length 1, Σᵢⱼ D(pᵢ, zⱼ) over the n² pairs of a cluster is −n²⟨mean p̂, mean ẑ⟩.
    Clusters that are too small in the batch are left out, and k counts those that are left: Eq. (2)
    as printed divides by the number of all clusters, also of those that have no sample in the
    batch. In the authors' code the second line is the mean over the whole batch; here it leaves the
    samples of small clusters out, as the first line does.

    Args:
        predictions: The model's predictions p of shape (…, batch, dimensions); the only input that
            receives a gradient.
        latents: Latents z of the same shape.
        global_predictions: The global model's predictions pᵍ, of the same shape; None if ``lam``
            is 0.
        labels: int64 pseudo-labels of shape (…, batch), each in [0, ``clusters``).
        clusters: Number of clusters.
        lam: Weight λ of the model-contrastive term, the second line of Eq. (2).
        min_cluster_size: Samples that a cluster must have in the batch: 2 in the authors' code;
            with 1 every cluster that has a sample counts.

    Returns:
        Tensor of shape (…). If no cluster is left it is a 0 that can be differentiated.

    Example:
        >>> import torch
        >>> z = torch.eye(2).repeat_interleave(2, dim=0)
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> cluster_contrast(z, z, None, labels, clusters=2, lam=0.0)
        tensor(-1.)
    """
    # As F.one_hot, which on a CPU would first check all values.
    members = labels.unsqueeze(-1) == torch.arange(clusters, device=labels.device)
    members = members.to(predictions.dtype)
    sizes = members.sum(dim=-2)
    kept = (sizes >= min_cluster_size).to(predictions.dtype)
    # If no cluster is left, every weight is 0, and so is the loss.
    cluster_weights = kept / kept.sum(dim=-1, keepdim=True).clamp(min=1)
    averaging = members / sizes.clamp(min=1).unsqueeze(-2)

    unit_predictions = F.normalize(predictions, dim=-1)
    mean_predictions = averaging.mT @ unit_predictions
    mean_latents = averaging.mT @ F.normalize(latents.detach(), dim=-1)
    loss = -(cluster_weights * (mean_predictions * mean_latents).sum(dim=-1)).sum(dim=-1)
    if global_predictions is None:
        return loss
    sample_weights = (averaging @ cluster_weights.unsqueeze(-1)).squeeze(-1)
    drift = sample_weights * negative_cosine(predictions, global_predictions)
    return loss + lam * drift.sum(dim=-1)


def decorrelation(latents: Tensor, scale: str = "paper") -> Tensor:
    """Return the decorrelation term ‖Σ‖²_F / d² of the CCFC++ paper, Eq. (10), without weight η.

    Σ is the unbiased covariance of the d latent dimensions over the N samples of the batch; the
    paper divides by N instead of N − 1 (Eq. 9), so its term is 1.6% smaller for a batch of 128.

    Args:
        latents: Latents z of shape (…, batch, dimensions).
        scale: ``paper``; or ``feddecorr``: as in the public code of FedDecorr, which the paper
            follows, about N times as large.

    Returns:
        Tensor of shape (…); for a batch of one sample a 0 that can be differentiated.

    Example:
        >>> import torch
        >>> decorrelation(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))  # Σ has 2 everywhere.
        tensor(4.)
    """
    if scale == "feddecorr":
        return feddecorr(latents, "code")
    batch, dimensions = latents.shape[-2:]
    return squared_products(subtract_mean(latents)) / (max(1, batch - 1) * dimensions) ** 2
