"""Attacks on a finished run's model and on averages that clients have sent.

*Membership*: how well an attacker can tell a model's training images from others. It has a number
for each image, a *loss* that training lowers, and takes an image for a training image
if the loss is below a threshold (Yeom, Giacomelli, Fredrikson and Jha, *Privacy Risk in Machine
Learning*, CSF 2018). No shadow model is trained: a loss is calibrated by the same model's losses
of the image's neighbours (Mattern et al., *Membership Inference Attacks against Language Models via
Neighbourhood Comparison*, ACL Findings 2023).

*Inversion*: what an average of pixels reveals of the images in it. An average of one image is it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Losses = NDArray[np.float64]
_FALSE_ALARMS = 0.01
_SHIFTS = [(down, right) for down in (0, 1, 2) for right in (0, 1, 2) if (down, right) != (1, 1)]
"""Offsets of the eight neighbours; an image itself is at (1, 1) once its edges are repeated."""


_EXACT = 1e-3
"""An image is known if the average differs from it by less than so much of its length."""
SIZES = ((1, 1), (2, 4), (5, 9), (10, 19), (20, None))
"""Groups of averages, by how many images are in them."""


@dataclass(frozen=True)
class Membership:
    """Metrics of a membership inference attack.

    Attributes:
        advantage: Share of the members that it finds, less the share of others that it takes for
            members; 0 is guessing, 1 is all. The threshold is chosen on one half of the images, and
            the advantage is that on the other half, averaged over both ways.
        error: The advantage's standard error.
        auc: Probability that a member has a lower loss than another image; 0.5 is guessing.
        found: Share of the members that it finds if 1% of the others are taken for members.
    """

    advantage: float
    error: float
    auc: float
    found: float


def membership(members: Tensor, others: Tensor) -> Membership:
    """Measure a membership inference attack that thresholds losses.

    Args:
        members: Losses of training images, of shape (at least 2,). They are in random order:
            the halves are those of even and of odd places.
        others: Losses of other images, likewise.

    Raises:
        ValueError: There are too few.
    """
    # Imported where it is needed: it is slow to import.
    from sklearn.metrics import roc_auc_score

    if min(len(members), len(others)) < 2:
        raise ValueError("membership needs two images of either kind at least")
    inside, outside = members.double().numpy(), others.double().numpy()
    rates = []
    for first in (0, 1):
        threshold = _best_threshold(inside[first::2], outside[first::2])
        rates.append([(half[1 - first :: 2] <= threshold).mean() for half in (inside, outside)])
    hits, alarms = (float(sum(of)) / 2 for of in zip(*rates, strict=True))
    error = math.sqrt(hits * (1 - hits) / len(inside) + alarms * (1 - alarms) / len(outside))
    auc = float(roc_auc_score(*_told_apart(inside, outside)))
    allowed = int(_FALSE_ALARMS * len(outside))
    found = float((inside < np.sort(outside)[allowed]).mean())
    return Membership(hits - alarms, error, auc, found)


def _told_apart(members: Losses, others: Losses) -> tuple[Losses, Losses]:
    """Return whether each image is a member, and its score, which is the negative loss."""
    truth = np.repeat([1.0, 0.0], [len(members), len(others)])
    return truth, -np.concatenate([members, others])


def _best_threshold(members: Losses, others: Losses) -> float:
    """Return the loss up to which an image is taken for a member; −∞ if no loss helps."""
    from sklearn.metrics import roc_curve

    alarms, hits, scores = roc_curve(*_told_apart(members, others), drop_intermediate=False)
    # Of gains that are alike but for rounding the first counts.
    return -float(scores[(hits - alarms).round(12).argmax()])


def neighbours(images: Tensor) -> Tensor:
    """Shift each image by a pixel in eight directions, with its edges repeated.

    Args:
        images: uint8 of shape (images, channels, height, width).

    Returns:
        uint8 of shape (8, images, channels, height, width).
    """
    height, width = images.shape[-2:]
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate").to(images.dtype)
    moved = [padded[..., down : down + height, right : right + width] for down, right in _SHIFTS]
    return torch.stack(moved)


@dataclass(frozen=True)
class Inversion:
    """Result of inversion for averages of similar numbers of images.

    Attributes:
        least: The fewest images in an average.
        most: The most images; None: any number.
        averages: Number of averages that clients have sent.
        exact: How many of them are an image of the client, up to rounding.
        distance: From an average to the client's nearest image, as a share of that image's length;
            the median.
    """

    least: int
    most: int | None
    averages: int
    exact: int
    distance: float


def inverted(sent: Sequence[tuple[Tensor, Tensor]]) -> list[Inversion]:
    """Measure the distance of averages from images.

    Args:
        sent: For each client its averages, of shape (averages, pixels), and its images as points,
            of shape (images, pixels). An image is in the average nearest to it.

    Returns:
        A result for each of ``SIZES`` with an average.
    """
    sizes, distances = [], []
    for averages, points in sent:
        far = torch.cdist(averages.double(), points.double())
        sizes.append(torch.bincount(far.argmin(dim=0), minlength=len(averages)))
        nearest, which = far.min(dim=1)
        distances.append(nearest / points.double()[which].norm(dim=1).clamp(min=1e-12))
    size, distance = torch.cat(sizes), torch.cat(distances)
    found = []
    for least, most in SIZES:
        here = (size >= least) & (size <= (len(size) + int(size.max()) if most is None else most))
        if bool(here.any()):
            near = distance[here]
            exact = int((near < _EXACT).sum())
            found.append(Inversion(least, most, int(here.sum()), exact, float(near.quantile(0.5))))
    return found
