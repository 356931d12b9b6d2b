"""SCAN's objective, over the images of all clients.

Source: Van Gansbeke et al., *SCAN: Learning to Classify Images without Labels* (ECCV 2020, arXiv
2005.12320), Eq. (2): for an image x and one of its neighbours x′, with p = softmax(head(z)),

    L = −mean log⟨p(x), p(x′)⟩ − λ H(p̄),

where p̄ is the mean prediction and H the entropy. If over-clusters are merged, p and p̄ are of the
clusters, and in place of −H(p̄) there is the divergence KL(p̄ ‖ s) from the shares s that the merge
found: with equal ones that is log k − H(p̄). The first term is a mean over pairs, of which each
client has some. The second couples all images through the k numbers of p̄ alone.
"""

from torch import Tensor

from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork
from ccfcpp.models.pooled import Objective, Pool, Program, apply_pooled

_LEAST = 1e-9
"""Below which a probability counts as this, so that its logarithm is finite."""

PREDICTIONS = "predictions"
"""The pool of the mean prediction."""


def consistency(predictions: Tensor) -> Tensor:
    """Return −Σ log⟨p, p′⟩ over pairs.

    Args:
        predictions: p of shape (2 · pairs, k): of the images, then of their neighbours.
    """
    first, second = predictions.chunk(2)
    return -(first * second).sum(dim=-1).clamp(min=_LEAST).log().sum()


def divergence(mean: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return the KL divergence of a mean prediction (k,) from shares; equal ones: log k − H(p̄)."""
    wanted = 1 / len(mean) if shares is None else shares
    return (mean * (mean.clamp(min=_LEAST) / wanted).log()).sum()


def program(network: ClusterNetwork, balance: float, pairs: Tensor) -> Program:
    """Compute SCAN's loss on pairs of views, with sums over all clients for what couples images.

    Args:
        network: The network.
        pairs: Shape (images, 2 · pairs of each, channels, height, width): views of the image,
            then as many of neighbours.
        balance: Weight λ of the entropy term.

    Returns:
        The objective. Its metrics are ``loss``, the first term, and ``entropy``, H(p̄).
    """
    # Of all images, then of all neighbours.
    z = yield from apply_pooled(network, pairs.transpose(0, 1).flatten(0, 1))
    p, sums = yield Pool(
        PREDICTIONS, network.predictions(z), _sums, common=True, valid=_plausible, nearest=_nearest
    )
    # The predictions for a sample have the sum 1: their sums say how many samples.
    count = sums.sum().round().detach()
    mean, merge = sums / count, network.merge
    if merge is not None:
        p, mean = merge(p), merge(mean)
    shares = None if merge is None else merge.shares
    agreement = consistency(p) * 2 / count
    figures = {"loss": agreement, "entropy": entropy(mean) * (len(p) / count)}
    return Objective(agreement, balance * divergence(mean, shares), figures)


def entropy(mean: Tensor) -> Tensor:
    """Return the entropy H(p̄) = −Σ p̄ log p̄ of a mean prediction of shape (k,)."""
    return -(mean * mean.clamp(min=_LEAST).log()).sum()


def _sums(predictions: Tensor) -> Tensor:
    """Return Σp, float64 of shape (k,)."""
    return predictions.double().sum(dim=0)


def _plausible(sums: Tensor) -> bool:
    """Return whether sums of predictions could be those of a batch."""
    return bool((sums >= 0).all())


def _nearest(sums: Tensor) -> Tensor:
    """Project sums on those of at least one image, each no less than a tenth of their mean.

    The gradient of p̄ log p̄ is unbounded towards 0, so a single sum that noise made small or
    negative would outweigh all images.
    """
    return sums.clamp(min=0.1 * max(1.0, float(sums.sum())) / len(sums))
