"""The server's k-means over centroids of clients, some of which are hostile.

Clients whose centroids lie farthest from most others' are left out. Each other one has one vote for
each centre, for any number of centroids near it and any size that it claims; and a
centre is a robust mean of its votes. It starts with the centroids of the client that others agree
with most, so that a point on which hostile clients agree gets no centre.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.robust.estimators import Estimator

_MOST_STEPS = 50


def robust_kmeans(
    local: Sequence[Tensor], estimate: Estimator, hostile: int
) -> tuple[Tensor, list[Tensor]]:
    """Run Lloyd's k-means in which clients vote.

    Args:
        local: Each client's centroids, of shape (at most k, dimensions); one client at least.
        estimate: Computes a centre from its votes.
        hostile: Number of clients without a vote; fewer than there are.

    Returns:
        Centres, as many as the most that a voting client has sent, in the order of the client's
        that it starts with; and the centre of each client's centroids, int64.
    """
    scores = disagreement(local)
    voters = [
        local[i] for i in sorted(scores.argsort(stable=True)[: len(local) - hostile].tolist())
    ]
    # The first has the lowest score of those with as many centroids as any voter.
    most = max(map(len, voters))
    centres = local[
        min((float(scores[i]), i) for i, own in enumerate(local) if len(own) == most)[1]
    ]
    labels = [_nearest(own, centres) for own in voters]
    for _ in range(_MOST_STEPS):
        centres = torch.stack(
            [_centre(voters, labels, number, centres, estimate) for number in range(len(centres))]
        )
        moved = [_nearest(own, centres) for own in voters]
        if all(torch.equal(a, b) for a, b in zip(moved, labels, strict=True)):
            break
        labels = moved
    return centres, [_nearest(own, centres) for own in local]


def disagreement(local: Sequence[Tensor]) -> Tensor:
    """Compute each client's distance to most others, float64 of shape (clients,).

    The distance of two clients is the mean distance of a centroid of either to the nearest of the
    other; a client's score is the median over all others.
    """
    if len(local) == 1:
        return torch.zeros(1, dtype=torch.float64)
    far = torch.stack([torch.stack([_apart(one, other) for other in local]) for one in local])
    others = ~torch.eye(len(local), dtype=torch.bool, device=far.device)
    return far[others].view(len(local), -1).quantile(0.5, dim=1).cpu()


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
    """Compute a centre from its votes; without any it stays."""
    votes = [
        own[label == number].mean(dim=0)
        for own, label in zip(local, labels, strict=True)
        if bool((label == number).any())
    ]
    return estimate(torch.stack(votes)) if votes else centres[number]
