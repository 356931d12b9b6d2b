"""Attacks on a finished run's model, and on averages of images that clients have sent.

*Membership*: how well an attacker can tell a model's training images from others. The attacker has
a number for each image, a *loss* that training lowers, and takes an image for a training image if
the loss is below a threshold (Yeom, Giacomelli, Fredrikson and Jha, *Privacy Risk in Machine
Learning*, CSF 2018). No shadow model is trained: a loss is calibrated by the same model's losses
of the image's neighbours (Mattern et al., *Membership Inference Attacks against Language Models via
Neighbourhood Comparison*, ACL Findings 2023).

A client's decoder has such losses of images, and its graph of pairs of samples that may be alike.

*Inversion*: what an average of pixels reveals of the images in it. An average of one image is that
image.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Losses = NDArray[np.float64]
_FALSE_ALARMS = 0.01
_SHIFTS = [(down, right) for down in (0, 1, 2) for right in (0, 1, 2) if (down, right) != (1, 1)]
"""Offsets of the eight shifted copies; the image itself is at (1, 1) of the padded image."""


_STEPS, _RATE = 100, 0.1
"""Steps of Adam by which a latent moves, and its rate as a share of the latents' deviation."""
_EXACT = 1e-3
"""An image counts as revealed if an average differs from it by less than this share of its norm."""
SIZES = ((1, 1), (2, 4), (5, 9), (10, 19), (20, None))
"""Groups of averages, by how many images are in them."""


@dataclass(frozen=True)
class Membership:
    """Metrics of a membership inference attack.

    Attributes:
        advantage: Share of the members that the attack finds, less the share of others that it
            takes for members; 0 is guessing, 1 is perfect. The threshold is chosen on one half of
            the images and applied to the other half, and the two ways to do so are averaged.
        error: The advantage's standard error.
        auc: Probability that a member has a lower loss than another image; 0.5 is guessing.
        found: Share of the members that the attack finds if it takes 1% of the others for members.
    """

    advantage: float
    error: float
    auc: float
    found: float


def measure_membership(members: Tensor, others: Tensor) -> Membership:
    """Measure a membership inference attack that thresholds losses.

    Args:
        members: Losses of training images, of shape (at least 2,). They are in random order:
            the halves are the even and the odd positions.
        others: Losses of other images, likewise.

    Raises:
        ValueError: There are fewer than two losses of either.
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
    auc = float(roc_auc_score(*_truth_and_scores(inside, outside)))
    allowed = int(_FALSE_ALARMS * len(outside))
    found = float((inside < np.sort(outside)[allowed]).mean())
    return Membership(hits - alarms, error, auc, found)


def _truth_and_scores(members: Losses, others: Losses) -> tuple[Losses, Losses]:
    """Return, for all images, 1 for members and 0 for others, and scores: the negative losses."""
    truth = np.repeat([1.0, 0.0], [len(members), len(others)])
    return truth, -np.concatenate([members, others])


def _best_threshold(members: Losses, others: Losses) -> float:
    """Return the loss up to which an image is taken for a member; −∞ if no threshold helps."""
    from sklearn.metrics import roc_curve

    alarms, hits, scores = roc_curve(*_truth_and_scores(members, others), drop_intermediate=False)
    # Rounded, so that the first of equal gains is taken.
    return -float(scores[(hits - alarms).round(12).argmax()])


def shift_images(images: Tensor) -> Tensor:
    """Shift each image by one pixel in each of eight directions, repeating its edges.

    Args:
        images: uint8 of shape (images, channels, height, width).

    Returns:
        uint8 of shape (8, images, channels, height, width).
    """
    height, width = images.shape[-2:]
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate").to(images.dtype)
    moved = [padded[..., down : down + height, right : right + width] for down, right in _SHIFTS]
    return torch.stack(moved)


def reconstruction_losses(
    network: Callable[[Tensor], tuple[Tensor, ...]], latents: Tensor, points: Tensor
) -> Tensor:
    """Return the distance of each point, (points, pixels), from the nearest output of a decoder.

    Of ``latents``, (latents, dimensions), that of the nearest output moves by gradients (white-box
    attack of Chen, Yu, Zhang and Fritz, *GAN-Leaks*, CCS 2020).
    """
    least, which = torch.cdist(points, network(latents)[0]).min(dim=1)
    moved = latents[which].clone().requires_grad_()
    optimizer = torch.optim.Adam([moved], _RATE * float(latents.std(dim=0).mean()))
    for _ in range(_STEPS):
        distances = (network(moved)[0] - points).norm(dim=1)
        least = torch.minimum(least, distances.detach())
        (moved.grad,) = torch.autograd.grad(distances.square().sum(), moved)
        optimizer.step()
    return least


def path_losses(graph: Tensor) -> Tensor:
    """Return a loss of each pair of n records, (n, n): the less, the more paths of 4 edges join it.

    A path counts for the product of its weights, each over the roots of its ends' sums of weights.
    """
    ends = graph.sum(dim=1).clamp(min=1e-300).rsqrt()
    paths: Tensor = torch.linalg.matrix_power(ends.unsqueeze(1) * graph * ends, 4)
    return -paths


@dataclass(frozen=True)
class Inversion:
    """Metrics of inversion: how near averages of similarly many images are to single images.

    Attributes:
        least: Smallest number of images in one of these averages.
        most: Largest number of images in one of them; None: any number.
        averages: Number of averages that clients have sent.
        exact: Number of averages that equal an image of the client, up to rounding.
        distance: Median distance from an average to the client's nearest image, as a share of that
            image's norm.
    """

    least: int
    most: int | None
    averages: int
    exact: int
    distance: float


def measure_inversion(sent: Sequence[tuple[Tensor, Tensor]]) -> list[Inversion]:
    """Measure how near the averages that clients have sent are to single images.

    Args:
        sent: For each client its averages, of shape (averages, pixels), and its images as points,
            of shape (images, pixels). An image counts as part of the average nearest to it.

    Returns:
        Metrics for each range of numbers of images in ``SIZES`` into which an average falls.
    """
    sizes, distances = [], []
    for averages, points in sent:
        far = torch.cdist(averages.double(), points.double())
        sizes.append(torch.bincount(far.argmin(dim=0), minlength=len(averages)))
        nearest, which = far.min(dim=1)
        distances.append(nearest / points.double()[which].norm(dim=1).clamp(min=1e-12))
    size, distance = torch.cat(sizes), torch.cat(distances)
    metrics = []
    for least, most in SIZES:
        here = (size >= least) & (size <= (len(size) + int(size.max()) if most is None else most))
        if bool(here.any()):
            near = distance[here]
            exact = int((near < _EXACT).sum())
            median = float(near.quantile(0.5))
            metrics.append(Inversion(least, most, int(here.sum()), exact, median))
    return metrics
