"""How well an attacker tells the images that a model was trained on from others.

The attacker has a number for each image, a *loss* that training lowers, and takes an image for one
of the training where the loss is below a threshold (Yeom, Giacomelli, Fredrikson and Jha, *Privacy
Risk in Machine Learning*, CSF 2018). No shadow model is trained: a loss is calibrated by what the
same model makes of the image's neighbours (Mattern et al., *Membership Inference Attacks against
Language Models via Neighbourhood Comparison*, ACL Findings 2023).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_FALSE_ALARMS = 0.01
_SHIFTS = tuple(
    (down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0)
)


@dataclass(frozen=True)
class Membership:
    """How well an attack does.

    Attributes:
        advantage: Share of the members that it finds, less the share of others that it takes for
            members; 0 is guessing, 1 is all. The threshold is chosen on one half of the images, and
            the advantage is that on the other half, mean of both ways.
        error: The advantage's standard error.
        auc: With this probability a member has a lower loss than another image; 0.5 is guessing.
        found: Share of the members that it finds where 1% of the others are taken for members.
    """

    advantage: float
    error: float
    auc: float
    found: float


def membership(members: Tensor, others: Tensor) -> Membership:
    """The attack by a threshold.

    Args:
        members: Losses of images of the training, of shape (at least 2,). They are in random order:
            the halves are those of even and of odd places.
        others: Losses of other images, likewise.

    Raises:
        ValueError: There are too few.
    """
    if min(len(members), len(others)) < 2:
        raise ValueError("membership needs two images of either kind at least")
    inside, outside = members.double(), others.double()
    rates = []
    for first in (0, 1):
        threshold = _best_threshold(inside[first::2], outside[first::2])
        rates.append([_below(half[1 - first :: 2], threshold) for half in (inside, outside)])
    hits, alarms = (sum(of) / 2 for of in zip(*rates, strict=True))
    error = math.sqrt(hits * (1 - hits) / len(inside) + alarms * (1 - alarms) / len(outside))
    return Membership(hits - alarms, error, _auc(inside, outside), _found(inside, outside))


def _best_threshold(members: Tensor, others: Tensor) -> float:
    """The loss below or at which an image is taken for a member."""
    losses, order = torch.cat([members, others]).sort()
    gains = torch.cat(
        [
            torch.full((len(members),), 1 / len(members), dtype=torch.float64),
            torch.full((len(others),), -1 / len(others), dtype=torch.float64),
        ]
    )[order].cumsum(0)
    # Equal losses are below a threshold together, or not at all.
    last = torch.cat([losses[1:] > losses[:-1], torch.tensor([True])])
    gains[~last] = -math.inf
    best = int(gains.argmax())
    return float(losses[best]) if float(gains[best]) > 0 else -math.inf


def _below(losses: Tensor, threshold: float) -> float:
    return float((losses <= threshold).double().mean())


def _auc(members: Tensor, others: Tensor) -> float:
    """Mann and Whitney's statistic; ties count half."""
    ordered = others.sort().values
    below = torch.searchsorted(ordered, members, side="left")
    up_to = torch.searchsorted(ordered, members, side="right")
    beaten = len(ordered) - (below + up_to).double() / 2
    return float(beaten.mean() / len(ordered))


def _found(members: Tensor, others: Tensor) -> float:
    """Of the members, those with a lower loss than all but so many of the others."""
    ordered = others.sort().values
    allowed = int(_FALSE_ALARMS * len(ordered))
    return float((members < ordered[allowed]).double().mean())


def neighbours(images: Tensor) -> Tensor:
    """Each image moved by a pixel in eight directions; its edges are repeated.

    Args:
        images: uint8 of shape (images, channels, height, width).

    Returns:
        uint8 of shape (8, images, channels, height, width).
    """
    height, width = images.shape[-2:]
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate").to(images.dtype)
    return torch.stack(
        [
            padded[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]
            for down, right in _SHIFTS
        ]
    )
