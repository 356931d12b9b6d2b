"""The server's robust k-means over centroids of clients, some of which are hostile.

Clients whose centroids are farthest from most others' are left out. Each other client has one vote
for each centre: the mean of its centroids that are nearest to it, whatever their sizes. A centre is
a robust mean of its votes. The initial centres are the centroids of the client that agrees most
with the others, so that a point on which hostile clients agree gets no centre.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.robust.estimators import Estimator

_MOST_STEPS = 50


def robust_kmeans(
    local: Sequence[Tensor], estimate: Estimator, hostile: int
) -> tuple[Tensor, list[Tensor]]:
    """Run Lloyd's k-means over clients' centroids, with one vote of each client for a centre.

    Args:
        local: Each client's centroids, of shape (at most k, dimensions); one client at least.
        estimate: Computes a centre from its votes.
        hostile: Number of clients without a vote; fewer than there are.

    Returns:
        Centres, of shape (most centroids of a voting client, dimensions); and for each client the
        index of the nearest centre of each of its centroids, int64.
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
        new = [_nearest(own, centres) for own in voters]
        if all(torch.equal(a, b) for a, b in zip(new, labels, strict=True)):
            break
        labels = new
    return centres, [_nearest(own, centres) for own in local]


def disagreement(local: Sequence[Tensor]) -> Tensor:
    """Compute each client's median distance to the other clients, float64 of shape (clients,).

    The distance of two clients is the mean distance from a centroid of one to the nearest of the
    other, added up for both directions.
    """
    if len(local) == 1:
        return torch.zeros(1, dtype=torch.float64)
    far = torch.stack([torch.stack([_distance(one, other) for other in local]) for one in local])
    others = ~torch.eye(len(local), dtype=torch.bool, device=far.device)
    return far[others].view(len(local), -1).quantile(0.5, dim=1).cpu()


def _distance(one: Tensor, other: Tensor) -> Tensor:
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
    """Return the new centre ``number``, estimated from its votes; without votes, the old one."""
    votes = [
        own[label == number].mean(dim=0)
        for own, label in zip(local, labels, strict=True)
        if bool((label == number).any())
    ]
    return estimate(torch.stack(votes)) if votes else centres[number]
