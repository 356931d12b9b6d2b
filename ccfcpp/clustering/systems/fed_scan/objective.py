"""SCAN's objective, over the images of all clients.

Source: Van Gansbeke et al., *SCAN: Learning to Classify Images without Labels* (ECCV 2020, arXiv
2005.12320), Eq. (2): for an image x and one of its neighbours x′, with p = softmax(head(z)),

    L = −mean log⟨p(x), p(x′)⟩ − λ H(p̄),

where p̄ is the mean prediction over all images, H the entropy and λ a weight. If over-clusters are
merged, p and p̄ are probabilities of the clusters, and −H(p̄) becomes the divergence KL(p̄ ‖ s) from
the clusters' target shares s, which for equal shares is log k − H(p̄). The first term is a mean over
pairs, to which each client adds its part. For the second, clients pool the k elements of p̄.
"""

from torch import Tensor

from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork
from ccfcpp.models.pooled import Objective, Pool, Program, apply_pooled

_LEAST = 1e-9
"""Smallest probability in a logarithm, which would be infinite at 0."""

PREDICTIONS = "predictions"
"""Name of the pooled sum of predictions."""


def consistency(predictions: Tensor) -> Tensor:
    """Return SCAN's consistency loss, −Σ log⟨p(x), p(x′)⟩ over pairs of images, a scalar.

    Args:
        predictions: Probabilities p of shape (2 · pairs, k): first of the images x, then of their
            neighbours x′.
    """
    first, second = predictions.chunk(2)
    return -(first * second).sum(dim=-1).clamp(min=_LEAST).log().sum()


def divergence(mean: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return KL(p̄ ‖ s) of a mean prediction p̄ (k,) from target shares s (k,); None: equal ones."""
    wanted = 1 / len(mean) if shares is None else shares
    return (mean * (mean.clamp(min=_LEAST) / wanted).log()).sum()


def scan_program(network: ClusterNetwork, balance: float, pairs: Tensor) -> Program:
    """Return a generator that computes SCAN's loss on pairs of views, over all clients.

    Args:
        network: Network of the step.
        balance: Weight λ of the second term, the entropy.
        pairs: Float tensor of shape (images, 2 · n, channels, height, width): n views of the image,
            then n views of neighbours.

    Returns:
        The objective. Its metrics are ``loss``, the first term, and ``entropy``, H(p̄).
    """
    # Views of all images come first, then those of all neighbours.
    z = yield from apply_pooled(network, pairs.transpose(0, 1).flatten(0, 1))
    p, sums = yield Pool(
        PREDICTIONS, network.predictions(z), _sums, common=True, valid=_plausible, nearest=_nearest
    )
    # The predictions for a sample have the sum 1, so the total is the number of samples.
    count = sums.sum().round().detach()
    mean, merge = sums / count, network.merge
    if merge is not None:
        p, mean = merge(p), merge(mean)
    shares = None if merge is None else merge.shares
    agreement = consistency(p) * 2 / count
    metrics = {"loss": agreement, "entropy": entropy(mean) * (len(p) / count)}
    return Objective(agreement, balance * divergence(mean, shares), metrics)


def entropy(mean: Tensor) -> Tensor:
    """Return the entropy H(p̄) = −Σ p̄ log p̄ of a mean prediction of shape (k,)."""
    return -(mean * mean.clamp(min=_LEAST).log()).sum()


def _sums(predictions: Tensor) -> Tensor:
    """Sum predictions over the batch, float64 of shape (k,)."""
    return predictions.double().sum(dim=0)


def _plausible(sums: Tensor) -> bool:
    """Return whether sums of predictions are possible: not negative."""
    return bool((sums >= 0).all())


def _nearest(sums: Tensor) -> Tensor:
    """Raise noisy sums of predictions to at least a tenth of their mean, for at least one image.

    The gradient of p̄ log p̄ is unbounded towards 0, so a single sum that noise made small or
    negative would dominate the step.
    """
    return sums.clamp(min=0.1 * max(1.0, float(sums.sum())) / len(sums))
