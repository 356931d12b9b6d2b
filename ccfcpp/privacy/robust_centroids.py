"""The server's k-means over the centroids of clients of which some are hostile.

Each client has one vote for each centre, however many of its centroids lie there and whatever it
says of their sizes; and a centre is a robust mean of its votes. It begins with the centroids of a
client that most others agree with, so that a point on which hostile clients agree gets no centre.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.privacy.estimators import Estimator

_MOST_STEPS = 50


def robust_kmeans(local: Sequence[Tensor], estimate: Estimator) -> tuple[Tensor, list[Tensor]]:
    """Lloyd's k-means in which clients vote.

    Args:
        local: Each client's centroids, of shape (at most k, dimensions); one client at least.
        estimate: What a centre is of its votes.

    Returns:
        Centres, as many as the most that a client has sent, in the order of the client's that it
        begins with; and the centre of each client's centroids, int64.
    """
    centres = local[most_agreed(local)]
    labels = [_nearest(own, centres) for own in local]
    for _ in range(_MOST_STEPS):
        centres = torch.stack(
            [_centre(local, labels, number, centres, estimate) for number in range(len(centres))]
        )
        moved = [_nearest(own, centres) for own in local]
        if all(torch.equal(a, b) for a, b in zip(moved, labels, strict=True)):
            break
        labels = moved
    return centres, labels


def most_agreed(local: Sequence[Tensor]) -> int:
    """The client whose centroids lie nearest to those of most others.

    Two clients are as far apart as the mean distance of a centroid of either to the nearest of the
    other; a client's score is the median over all others. Of clients with as many centroids as any.
    """
    most = max(map(len, local))
    far = torch.stack([torch.stack([_apart(one, other) for other in local]) for one in local])
    scores = [
        (float(torch.cat([row[:i], row[i + 1 :]]).quantile(0.5)) if len(local) > 1 else 0.0, i)
        for i, row in enumerate(far)
        if len(local[i]) == most
    ]
    return min(scores)[1]


def _apart(one: Tensor, other: Tensor) -> Tensor:
    distances = torch.cdist(one.double(), other.double())
    return distances.amin(dim=1).mean() + distances.amin(dim=0).mean()


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    return torch.cdist(points.double(), centres.double()).argmin(dim=1)


def _centre(
    local: Sequence[Tensor],
    labels: Sequence[Tensor],
    number: int,
    centres: Tensor,
    estimate: Estimator,
) -> Tensor:
    """A centre of its votes; where there is none, it stays."""
    votes = [
        own[label == number].mean(dim=0)
        for own, label in zip(local, labels, strict=True)
        if bool((label == number).any())
    ]
    return estimate(torch.stack(votes)) if votes else centres[number]
