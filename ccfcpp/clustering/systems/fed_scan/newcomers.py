"""Continuation of a finished run with new clients, and new clusters for what only they hold.

The encoder and the known heads stay, so that known clusters keep their numbers. Before the first
step each new client clusters the images that known clusters do not explain, and sends the centres
and their sizes; new heads start there. New heads with random weights would not win their images in
a few steps, since known heads already take them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import (
    CentroidUpdate,
    centroid_format,
    check_update,
    required_centroids,
)
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import Clustering, kmeans, nearest
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
from ccfcpp.clustering.systems.fed_scan.network import MERGE
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.server import merge_as, trains_merged
from ccfcpp.core.errors import FederationError, KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    ClientWork,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.update_format import Count, UpdateFormat, Votes
from ccfcpp.models.state import ModelState

_STARTS, _ITERATIONS = 5, 25
_SOFT = 0.7
"""A new head's length, as a share of the known ones': shorter heads give way to the steps."""
_MARGIN = 1.0
"""By how much a new head's logit exceeds all known ones together, at its own centre."""


@dataclass(frozen=True)
class Grown:
    """Facts of the finished run, needed until new clusters are found.

    Attributes:
        groups: The cluster of each known head, int64 of shape (m,).
        shares: The share of images of each known head, float64 of shape (m,); None if no merge
            was trained.
        clients: Numbers of the clients that took part in it, int64.
    """

    groups: Tensor
    shares: Tensor | None
    clients: Tensor


@dataclass(frozen=True)
class GrowingState(EncoderState):
    """The state of a continued run, which is also the message to its clients.

    Attributes:
        grown: None once the new clusters are found. Before, known heads come first in the model,
            and each known cluster has a centroid.
    """

    grown: Grown | None = None


NEW_CENTRES = Exchange(
    "new clusters",
    GrowingState,
    CentroidUpdate,
    {"centroids": Votes(weights="sizes", partial=True), "sizes": Count()},
    once=True,
)


def inherited(algorithm: FedScan, last: EncoderState, randomness: Randomness) -> EncoderState:
    """Return the first state of a run with other clients that continues from a run's last state."""
    begun = algorithm.initial_state(randomness)
    # A merge would keep to shares in which clients that are gone count.
    kept = {name: own for name, own in last.model.items() if not name.startswith(MERGE)}
    return replace(begun, model=begun.model | kept, version=last.version, groups=last.groups)


class GrowingScan(FedScan):
    """Fed-SCAN that continues a finished run, and finds its new clusters before its first step."""

    state_type = GrowingState

    def initial_state(self, randomness: Randomness) -> GrowingState:
        """Return the state of a run that starts from random weights."""
        return GrowingState(**vars(super().initial_state(randomness)))

    def grown(
        self, last: EncoderState, known: Iterable[int], randomness: Randomness
    ) -> GrowingState:
        """Return the first state of a continued run, in which its new clusters are not yet found.

        Args:
            last: The last state of the finished run, whose over-clusters are merged.
            known: Numbers of the clients that took part in it.
            randomness: Source of random numbers of the new run.

        Raises:
            UsageError: There would be no new clusters.
        """
        assert last.groups is not None
        new = self.overclusters - len(last.groups)
        if new <= 0 or self.problem.clusters <= last.clusters:
            raise UsageError(
                KeyValue("clusters", self.problem.clusters),
                f" is no more than the {last.clusters} of the finished run: give more; images of "
                "its clusters need no training (ccfcpp predict)",
            )
        begun = inherited(self, last, randomness)
        heads = {n: torch.cat([h, h.new_zeros(new, *h.shape[1:])]) for n, h in _heads(last.model)}
        numbers = torch.tensor(sorted(known), device=last.groups.device)
        grown = Grown(last.groups, _shares(last.model, last.groups), numbers)
        changes = {"model": begun.model | heads, "groups": self.single_groups(), "grown": grown}
        centres = required_centroids(last.centroids)
        return GrowingState(**{**vars(begun), **changes, "centroids": centres})

    def going_on(self, number: int, state: EncoderState) -> list[AnyServerWork]:
        """Return the search for new clusters while it is due, then the merge of ``FedScan``."""
        if isinstance(state, GrowingState) and state.grown is not None:
            return [FindNewClusters(self.problem.clusters, self.problem.samples)]
        return super().going_on(number, state)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work of ``FedScan``, and the centres that new clients send."""
        side, new = super().client_side(context), TellNewClusters(self.space, context.least)
        return ClientSide({new.exchange.name: new, **side.works}, side.cohort)

    def describe(self) -> dict[str, object]:
        """Return what clients send, for the summary of the run."""
        sends = "sums of statistics and gradients; newcomers: centres of new clusters"
        return {**super().describe(), "sends": sends}


def _heads(model: ModelState) -> list[tuple[str, Tensor]]:
    return [(name, model[name]) for name in ("head.weight", "head.bias")]


def _shares(model: ModelState, groups: Tensor) -> Tensor | None:
    """Return each head's share of images, equal within a cluster; None without trained merge."""
    if not trains_merged(model):
        return None
    shares = model[f"{MERGE}.shares"].double()[groups]
    return shares / groups.bincount()[groups]


def _still_grown(state: GrowingState) -> tuple[Grown, int]:
    """Return the facts of the finished run, and the number of new heads."""
    assert state.grown is not None
    return state.grown, len(state.model["head.weight"]) - len(state.grown.groups)


@dataclass(frozen=True)
class FindNewClusters(ServerWork[GrowingState, GrowingState, CentroidUpdate]):
    """New heads, started at the centres that new clients send.

    Attributes:
        clusters: k, with the new ones.
        samples: Number of images of all clients.
    """

    clusters: int
    samples: int
    exchange = NEW_CENTRES

    def broadcast(self, state: GrowingState) -> GrowingState:
        """Return the message to clients: model, known centres, known clients' numbers."""
        return state.public

    def update_format(self, message: GrowingState) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most one centre for each new head."""
        latent = required_centroids(message.centroids).shape[1]
        return centroid_format(_still_grown(message)[1], latent, least=0)

    def check(
        self, message: GrowingState, update: CentroidUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse centres that are too far off, of too many images, or from known clients."""
        known = _still_grown(message)[0].clients.tolist()
        if len(update.sizes) and any(each.id in known for each in senders):
            raise RefusedUpdateError("it took part before, and has no new clusters")
        check_update(update, senders)

    def aggregate(
        self, state: GrowingState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[GrowingState, Metrics]:
        """Add heads for the new clusters, and assign all heads to clusters.

        Raises:
            FederationError: The new clients hold too few images.
        """
        found, (grown, new) = list(updates), _still_grown(state)
        points = torch.cat([update.centroids for update in found])
        sizes = torch.cat([update.sizes for update in found])
        starts = gathered(points, sizes, new, randomness.integer("new clusters"))
        if len(starts) < new:
            raise FederationError(
                f"newcomers that are there hold images for {len(starts)} of the {new} new heads "
                f"that clusters = {self.clusters} asks for: begin again, with fewer clusters or "
                "when they are there, and another --out"
            )
        known = [(name, head[: len(grown.groups)]) for name, head in _heads(state.model)]
        added = heads_at(starts, *(head for _, head in known))
        heads = {n: torch.cat([own, more]) for (n, own), more in zip(known, added, strict=True)}
        model, clusters = state.model | heads, int(grown.groups.max()) + 1
        apart = gathered(starts, torch.ones(new), self.clusters - clusters, seed=0)
        groups = torch.cat([grown.groups, clusters + nearest(starts, apart)])
        if grown.shares is not None:
            of_each = sizes.new_zeros(new).index_add(0, nearest(points, starts), sizes)
            of_known = (self.samples - of_each.sum()) * grown.shares
            model |= merge_as(groups, torch.cat([of_known, of_each]), model)
        # Clients load a model whose version they do not have.
        version = state.version + 1
        return GrowingState(model, version, descent=state.descent, groups=groups), {}


@dataclass(frozen=True)
class TellNewClusters(ClientWork[GrowingState, CentroidUpdate]):
    """The new clients' k-means of images that known clusters do not explain; others send nothing.

    Attributes:
        space: Computes latents.
        least: The fewest images of a centre that a client sends.
    """

    space: LatentSpace
    least: int
    exchange = NEW_CENTRES

    def local_updates(
        self, task: Task, message: GrowingState, clients: Sequence[Client], randomness: Randomness
    ) -> list[CentroidUpdate]:
        """Return the centres of each new client, and none of other clients."""
        return [self._of(message, one, randomness.of_client(one.id)) for one in clients]

    def _of(self, message: GrowingState, client: Client, randomness: Randomness) -> CentroidUpdate:
        known, grown = required_centroids(message.centroids), message.grown
        heads = self.space.network.head.out_features
        if grown is None or len(grown.groups) >= heads:
            raise RefusedUpdateError(f"none of the {heads} heads are new")
        if client.id in grown.clients.tolist():
            return CentroidUpdate(
                known[:0], torch.zeros(0, dtype=torch.float64, device=known.device)
            )
        latents = self.space.latents(message, client)
        generator = randomness.generator("new clusters")
        found = unexplained(latents, known, heads - len(grown.groups), generator)
        enough = found.sizes >= self.least
        return CentroidUpdate(found.centroids[enough], found.sizes[enough])


def unexplained(
    latents: Tensor, known: Tensor, count: int, generator: torch.Generator
) -> Clustering:
    """Run Lloyd's k-means on a client's latents with the centres of known clusters held fixed.

    Args:
        latents: Tensor of shape (samples, d).
        known: Centres of the known clusters, of shape (k, d).
        count: Largest number of new centres.
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


def gathered(points: Tensor, sizes: Tensor, count: int, seed: int) -> Tensor:
    """Run k-means on the centres of all new clients, to centres of shape (at most count, d)."""
    if len(points) == 0:
        return points
    return kmeans(points, count, seed=seed, weights=sizes).centroids.to(points)


def heads_at(centres: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return heads that prefer new clusters at given centres.

    Args:
        centres: Latents of shape (new, d).
        weight: Weight of the known heads, of shape (m, d).
        bias: Bias of the known heads, of shape (m,).

    Returns:
        Weight of shape (new, d) and bias of shape (new,).
    """
    length = _SOFT * weight.norm(dim=1).mean()
    new = length * centres / centres.norm(dim=1, keepdim=True)
    known = (centres @ weight.T + bias).logsumexp(dim=1)
    return new, known - (centres * new).sum(dim=1) + _MARGIN
