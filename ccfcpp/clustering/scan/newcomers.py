"""A finished run goes on with newcomers, and with clusters for what they alone hold.

Encoder and known heads stay, so that known clusters keep their numbers. Each newcomer clusters what
these do not explain, and sends the centres and their sizes; new heads begin there. With random
heads new clusters do not find their images in a few steps, since known ones have taken them.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.server import Clustering, kmeans, nearest
from ccfcpp.clustering.scan.algorithm import FedScan
from ccfcpp.clustering.scan.messages import ScanState
from ccfcpp.clustering.scan.server import snapshot
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client

_HEAD = ("head.weight", "head.bias")
_STARTS, _ITERATIONS = 5, 25
_SOFT = 0.7
"""A new head's length, as a share of the known ones': shorter heads give way to the steps."""
_MARGIN = 1.0
"""By how much a new head's logit exceeds all known ones together, at its own centre."""


def extended(
    algorithm: FedScan,
    state: ScanState,
    newcomers: Sequence[Client],
    least: int,
    randomness: Randomness,
) -> ScanState:
    """Make the state with which a run with more clusters goes on.

    Args:
        algorithm: Of the new run.
        state: The last one of a finished run.
        newcomers: The clients that may hold new clusters.
        least: A newcomer sends no centre of fewer images.
        randomness: Of the new run.

    Raises:
        UsageError: The finished run has as many clusters or more, or the newcomers hold too few
            images for so many.
    """
    known = snapshot(state)
    more = algorithm.problem.clusters - known.clusters
    new = algorithm.overclusters - len(known.groups)
    if min(more, new) <= 0:
        raise UsageError(
            f"clusters = {algorithm.problem.clusters} is no more than the {known.clusters} of the "
            "finished run: give more; images of its clusters need no training (ccfcpp predict)"
        )
    fresh = algorithm.initial_state(randomness)
    # Latents need no head, and the network one of its own size.
    model = {n: own if n in _HEAD else known.model[n] for n, own in fresh.model.items()}
    grown = replace(fresh, model=model, version=state.version)
    centres = required_centroids(state.centroids)
    found = [
        unexplained(
            algorithm.space.latents(grown, one),
            centres,
            new,
            randomness.of_client(one.id).generator("new clusters"),
        )
        for one in newcomers
    ]
    starts = gathered(found, new, least, randomness.integer("new clusters"))
    if len(starts) < new:
        raise UsageError(
            f"newcomers hold images for {len(starts)} of the {new} new heads that clusters = "
            f"{algorithm.problem.clusters} asks for: give fewer clusters"
        )
    heads = heads_at(starts, *(known.model[name] for name in _HEAD))
    for name, added in zip(_HEAD, heads, strict=True):
        model[name] = torch.cat([known.model[name], added])
    groups = known.clusters + torch.arange(new, device=known.groups.device) % more
    return ScanState(
        model, state.version, algorithm.descent.begin(model), torch.cat([known.groups, groups])
    )


def unexplained(
    latents: Tensor, known: Tensor, count: int, generator: torch.Generator
) -> Clustering:
    """Lloyd's k-means of a newcomer's latents, in which the known centres stay where they are.

    Args:
        latents: Of shape (samples, d).
        known: Centres of the known clusters, of shape (k, d).
        count: How many new centres there are at most.
        generator: Draws the starts, each by k-means++ beside the known centres.

    Returns:
        New centres and their sizes, of the start with the smallest inertia; those without images
        are left out.
    """
    found = [_grown(latents, known, count, generator) for _ in range(_STARTS)]
    return min(found, key=lambda each: each.inertia)


def _grown(latents: Tensor, known: Tensor, count: int, generator: torch.Generator) -> Clustering:
    centres = known
    for _ in range(count):
        far = torch.cdist(latents, centres).amin(dim=1).square().cpu()
        if not bool(far.any()):
            break
        drawn = torch.multinomial(far, 1, generator=generator)
        centres = torch.cat([centres, latents[drawn]])
    for _ in range(_ITERATIONS):
        labels = nearest(latents, centres)
        before, centres = centres, centres.clone()
        for new in range(len(known), len(centres)):
            if bool((labels == new).any()):
                centres[new] = latents[labels == new].mean(dim=0)
        if torch.equal(before, centres):
            break
    sizes = nearest(latents, centres).bincount(minlength=len(centres))[len(known) :].double()
    inertia = float(torch.cdist(latents, centres).amin(dim=1).square().sum())
    return Clustering(centres[len(known) :][sizes > 0], sizes[sizes > 0], inertia)


def gathered(found: Sequence[Clustering], count: int, least: int, seed: int) -> Tensor:
    """Centres of new clusters from those of all newcomers, of shape (at most count, d).

    A newcomer sends no centre of fewer than ``least`` images.
    """
    told = [
        (each.centroids[each.sizes >= least], each.sizes[each.sizes >= least]) for each in found
    ]
    centres, sizes = (torch.cat(parts) for parts in zip(*told, strict=True))
    if len(centres) == 0:
        return centres
    return kmeans(centres, count, seed=seed, weights=sizes).centroids.to(centres)


def heads_at(centres: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Heads that prefer new clusters at their centres.

    Args:
        centres: Latents of shape (new, d).
        weight: Of the known heads, of shape (m, d).
        bias: Theirs, of shape (m,).

    Returns:
        Weight of shape (new, d) and bias of shape (new,).
    """
    length = _SOFT * weight.norm(dim=1).mean()
    new = length * centres / centres.norm(dim=1, keepdim=True)
    known = (centres @ weight.T + bias).logsumexp(dim=1)
    return new, known - (centres * new).sum(dim=1) + _MARGIN
