"""SCAN's objective, in sums over clients.

Source: Van Gansbeke et al., *SCAN: Learning to Classify Images without Labels* (ECCV 2020, arXiv
2005.12320), Eq. (2): for an image x and one of its neighbours x′, with p = softmax(head(z)),

    L = −mean log⟨p(x), p(x′)⟩ − λ H(p̄),

where p̄ is the mean prediction and H the entropy. The first term is a mean over pairs, of which each
client has some. The second couples all images through the k numbers of p̄ alone: its gradient at a
prediction is λ log p̄ / n, but for a constant, which no gradient of a softmax sees.
"""

import torch
from torch import Tensor

_LEAST = 1e-9
"""Below which a probability counts as this, so that its logarithm is finite."""


def consistency(predictions: Tensor) -> Tensor:
    """−Σ log⟨p, p′⟩ over pairs.

    Args:
        predictions: p of shape (2 · pairs, k): of the images, then of their neighbours.

    Returns:
        A scalar.
    """
    pairs = len(predictions) // 2
    first, second = predictions[:pairs], predictions[pairs:]
    return -(first * second).sum(dim=1).clamp(min=_LEAST).log().sum()


def entropy(mean: Tensor) -> Tensor:
    """H(p̄) = −Σ p̄ log p̄ of a mean prediction of shape (k,), a scalar."""
    return -(mean * mean.clamp(min=_LEAST).log()).sum()


def share_of_loss(
    predictions: Tensor, mean: Tensor, count: int, balance: float
) -> tuple[Tensor, Tensor]:
    """A client's share of the loss, as a function whose gradient is the loss's.

    Args:
        predictions: p of shape (2 · pairs, k) of the client's pairs.
        mean: p̄ over all clients, of shape (k,), a constant.
        count: n, the predictions of all clients.
        balance: λ.

    Returns:
        Two scalars: what is to be differentiated, and the client's share of the consistency loss.
    """
    share = consistency(predictions) * 2 / count
    slope = balance * mean.clamp(min=_LEAST).log() / count
    return share + (predictions * slope).sum(), share.detach()


def predictions(logits: Tensor) -> Tensor:
    """P = softmax(logits), of their shape (batch, k)."""
    return torch.softmax(logits, dim=1)
