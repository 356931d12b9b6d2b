"""The losses of CCFC and CCFC++ over the batches of all clients together.

Source: Yan, Liu, Ning and Zhang, *CCFC++*, Eqs. (2) and (10). Each loss is a function of a few sums
over images, which clients pool (see ``ccfcpp.models.pooled``): it is the common part of the
objective, and clients have no part of their own.

The model-contrastive term, the second line of Eq. (2), is left out. It keeps a local model near the
global one, and in synchronised steps there is only one model.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.ccfc.config import LossConfig
from ccfcpp.clustering.systems.ccfc.losses import negative_cosine
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel, pooled_latents
from ccfcpp.models.decorrelation import EPSILON
from ccfcpp.models.pooled import Objective, Pool, Pooling, Program, apply_pooled

_ROUNDING = 1.001
"""Largest ratio of the length of a sum of unit vectors to their number: 1, and rounding."""

LARGEST_OF_SIAMESE = {"sums/siamese": 2**0.5}
"""Bound on the norm of what one image adds to the sums of ``siamese_program``: (1, a cosine)."""

LARGEST_OF_CONTRAST = {"sums/clusters": 3**0.5}
"""The same for ``contrast_program``: (1, two unit vectors)."""


def siamese_program(model: ContrastiveModel, weights: LossConfig, pairs: Tensor) -> Program:
    """Return a generator that computes SimSiam's loss plus decorrelation over all clients.

    Batch normalisation and covariance are over both views together; in local steps they are over
    each view by itself.

    Args:
        model: Model of the step.
        weights: Weight and scale of the decorrelation term.
        pairs: Tensor of shape (images, 2, channels, height, width): two views of each image.

    Returns:
        The objective; its metric is ``loss``.
    """
    views = pairs.transpose(0, 1).flatten(0, 1)
    z = yield from pooled_latents(model, views)
    z, decorrelation = yield from pooled_decorrelation(z, weights.pretrain_eta, weights.scale)
    p = yield from apply_pooled(model.predictor, z, "predictor")
    sums = partial(_siamese_sums, z.detach())
    p, totals = yield Pool(
        "siamese", p, sums, common=True, valid=_plausible_cosines, nearest=_project_cosines
    )
    loss = totals[1] / totals[0] + decorrelation
    return _common_objective(loss, len(views) / (2 * totals[0].detach()))


def contrast_program(
    model: ContrastiveModel, clusters: int, weights: LossConfig, images: Tensor, labels: Tensor
) -> Program:
    """Return a generator that computes the cluster-contrastive loss over all clients.

    It is Eq. (10) of the CCFC++ paper, with only the first line of Eq. (2). With p̂ and ẑ of length
    1, Σᵢⱼ D(pᵢ, zⱼ) over the n² pairs of a cluster is −⟨Σ p̂, Σ ẑ⟩, and the mean over its pairs
    −⟨Σ p̂ / n, Σ ẑ / n⟩. Clusters that are too small in all batches together are left out.

    Args:
        model: Model of the step.
        clusters: Number of clusters k.
        weights: Weight and scale of the decorrelation term, and the smallest cluster size.
        images: Tensor of shape (batch, channels, height, width).
        labels: int64 pseudo-labels of shape (batch,), each in [0, ``clusters``).

    Returns:
        The objective; its metric is ``loss``.
    """
    z = yield from pooled_latents(model, images)
    z, decorrelation = yield from pooled_decorrelation(z, weights.eta, weights.scale)
    return (yield from predictor_program(model, clusters, weights, z, labels, decorrelation))


def predictor_program(
    model: ContrastiveModel,
    clusters: int,
    weights: LossConfig,
    z: Tensor,
    labels: Tensor,
    decorrelation: Tensor | float = 0.0,
) -> Program:
    """Return a generator that computes Eq. (2), line 1 (CCFC++), from latents.

    With constant latents, it trains the predictor alone.

    Args:
        model: Its predictor is used.
        clusters: Number of clusters k.
        weights: The smallest cluster size.
        z: Latents of shape (batch, latent).
        labels: As for ``contrast_program``.
        decorrelation: The decorrelation term times its weight, which is added.
    """
    p = yield from apply_pooled(model.predictor, z, "predictor")
    # As F.one_hot, which does not work within vmap and grad.
    members = (labels.unsqueeze(1) == torch.arange(clusters, device=labels.device)).double()
    sums = partial(_cluster_sums, members, z.detach())
    plausible, nearest = (
        partial(_plausible_clusters, clusters),
        partial(_project_clusters, clusters),
    )
    p, totals = yield Pool("clusters", p, sums, common=True, valid=plausible, nearest=nearest)
    counts, of_predictions, of_latents = _split_cluster_sums(totals, clusters)
    counts = counts.detach()
    kept = counts >= weights.min_cluster_size
    pairs = -(of_predictions * of_latents).sum(dim=1) / counts.clamp(min=1).square()
    loss = (pairs * kept).sum() / kept.sum().clamp(min=1)
    return _common_objective(loss + decorrelation, len(labels) / counts.sum().clamp(min=1))


def pooled_decorrelation(
    z: Tensor, eta: float, scale: str = "paper"
) -> Pooling[tuple[Tensor, Tensor]]:
    """Compute CCFC++'s decorrelation term, Eq. (10), times its weight, over all clients' latents.

    The pooled sums n, Σz and Σzzᵀ give the unbiased covariance of the latents.

    Args:
        z: This client's latents, of shape (batch, d).
        eta: Weight η. If it is 0, nothing is pooled.
        scale: See :func:`~ccfcpp.clustering.systems.ccfc.losses.decorrelation`.

    Returns:
        z to be used from here on, through which gradients flow, and the term: a scalar.
    """
    if eta == 0:
        return z, z.new_zeros(())
    d = z.shape[1]
    plausible, nearest = partial(_plausible_moments, d), partial(_project_moments, d)
    z, totals = yield Pool(
        "covariance", z, _latent_moments, common=True, valid=plausible, nearest=nearest
    )
    count, sums, products = totals[0].detach(), totals[1 : d + 1], totals[d + 1 :].view(d, d)
    freedom = (count - 1).clamp(min=1)
    covariance = (products - torch.outer(sums, sums) / count) / freedom
    if scale == "paper":
        return z, eta * covariance.square().sum() / d**2
    deviations = (covariance.diagonal() + EPSILON).sqrt()
    squares = (covariance / torch.outer(deviations, deviations)).square()
    off_diagonal = (squares.sum() - squares.diagonal().sum()) / max(1, d * (d - 1))
    return z, eta * off_diagonal * freedom**2 / count


def _common_objective(loss: Tensor, own: Tensor) -> Objective:
    """Return the objective of a loss of all clients; ``own``: this client's share of the batch."""
    return Objective(torch.zeros_like(loss.detach()), loss, {"loss": loss.detach() * own})


def _siamese_sums(z: Tensor, p: Tensor) -> Tensor:
    """Return n and Σ ½D(p₁, z₂) + ½D(p₂, z₁) over n images; D: negative cosine; float64 (2,)."""
    first, second = z.chunk(2)
    crossed = negative_cosine(p, torch.cat([second, first])).double()
    count = crossed.new_full((1,), len(first))
    return torch.cat([count, crossed.sum(dim=0, keepdim=True) / 2])


def _cluster_sums(members: Tensor, z: Tensor, p: Tensor) -> Tensor:
    """Return each cluster's size n, and sums of unit vectors p̂ and ẑ: float64 (k · (1 + 2d),)."""
    parts = [members.T @ F.normalize(each, dim=1).double() for each in (p, z)]
    return torch.cat([members.sum(dim=0), *(part.flatten() for part in parts)])


def _split_cluster_sums(sums: Tensor, clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the sums of ``_cluster_sums`` into n of shape (k,), Σ p̂ and Σ ẑ of shape (k, d)."""
    first, second = sums[clusters:].chunk(2)
    return sums[:clusters], first.view(clusters, -1), second.view(clusters, -1)


def _latent_moments(z: Tensor) -> Tensor:
    """Return (n, Σz, Σzzᵀ) of n latents z (n, d), joined: float64 of shape (1 + d + d²,)."""
    wide = z.double()
    count = wide.new_full((1,), len(wide))
    return torch.cat([count, wide.sum(dim=0), (wide.T @ wide).flatten()])


def _plausible_cosines(sums: Tensor) -> bool:
    """Return whether ``_siamese_sums`` could return these sums: n ≥ 0, and Σ in [−n, n]."""
    return bool(sums[0] >= 0) and bool(sums[1].abs() <= _ROUNDING * sums[0])


def _project_cosines(sums: Tensor) -> Tensor:
    """Clamp noisy results of ``_siamese_sums``: n to at least 1, the sum of cosines to [−n, n]."""
    count = sums[:1].clamp(min=1)
    return torch.cat([count, torch.clamp(sums[1:], -count, count)])


def _plausible_clusters(clusters: int, sums: Tensor) -> bool:
    counts, *vectors = _split_cluster_sums(sums, clusters)
    return bool((counts >= 0).all()) and all(
        bool((part.norm(dim=1) <= _ROUNDING * counts).all()) for part in vectors
    )


def _project_clusters(clusters: int, sums: Tensor) -> Tensor:
    """Make noisy results of ``_cluster_sums`` possible: n ≥ 0, Σ p̂ and Σ ẑ no longer than n."""
    counts, *vectors = _split_cluster_sums(sums, clusters)
    counts = counts.clamp(min=0)
    longest = [(counts / v.norm(dim=1).clamp(min=1e-300)).clamp(max=1) for v in vectors]
    parts = [(v * m.unsqueeze(1)).flatten() for v, m in zip(vectors, longest, strict=True)]
    return torch.cat([counts, *parts])


def _plausible_moments(d: int, sums: Tensor) -> bool:
    squares = sums[d + 1 :].view(d, d).diagonal()
    return bool(sums[0] >= 0) and bool((squares >= 0).all())


def _project_moments(d: int, sums: Tensor) -> Tensor:
    """Make noisy ``_latent_moments`` possible: n ≥ 1, Σzzᵀ symmetric, no negative eigenvalue."""
    products = sums[d + 1 :].view(d, d)
    values, vectors = torch.linalg.eigh((products + products.T) / 2)
    near = (vectors * values.clamp(min=0)) @ vectors.T
    return torch.cat([sums[:1].clamp(min=1), sums[1 : d + 1], near.flatten()])
