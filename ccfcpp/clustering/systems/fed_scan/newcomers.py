"""Continuation of a finished Fed-SCAN run with new clients, whose images get new clusters.

A *head* below is one output of the network's head: one over-cluster. The encoder and the known
heads stay, so that known clusters keep their numbers. Before the first step each new client
clusters those of its images that are far from known clusters, and sends the centres and their
sizes, from which the server makes new heads. With random weights, a new head would hardly be
assigned any image in the few steps of a continued run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
from ccfcpp.clustering.systems.fed_scan.server import merge_tensors, trains_merged
from ccfcpp.core.errors import FederationError, KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    EachClient,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.update_format import Count, UpdateFormat, Votes
from ccfcpp.models.state import ModelState

_RESTARTS, _ITERATIONS = 5, 25
_SOFT = 0.7
"""Length of a new head's weights relative to known ones; shorter ones change faster in training."""
_MARGIN = 1.0
"""By how much a new head's logit exceeds the log-sum-exp of all known ones, at its centre."""


@dataclass(frozen=True)
class FinishedRun:
    """Facts of the finished run, which a continued one needs until new clusters are found.

    Attributes:
        groups: The cluster of each known head (output of the network), int64 of shape (m,).
        shares: The share of images of each known head, float64 of shape (m,); None if merged
            clusters were not trained.
        clients: Numbers of the clients that took part in it, int64 of shape (clients,).
    """

    groups: Tensor
    shares: Tensor | None
    clients: Tensor


@dataclass(frozen=True)
class GrowingState(EncoderState):
    """State of a continued run; also the message to its clients.

    Attributes:
        grown: Facts of the finished run; None once the new clusters are found. Until then, known
            heads come first in the model, and ``centroids`` are those of known clusters.
    """

    grown: FinishedRun | None = None


NEW_CENTRES = Exchange(
    "new clusters",
    GrowingState,
    CentroidUpdate,
    {"centroids": Votes(weights="sizes", partial=True), "sizes": Count()},
    once=True,
)


def inherit_state(algorithm: FedScan, last: EncoderState, randomness: Randomness) -> EncoderState:
    """Return the first state of a run that continues from ``last``, another run's last state."""
    begun = algorithm.initial_state(randomness)
    # The shares of the last merge count clients that have left.
    kept = {name: own for name, own in last.model.items() if not name.startswith(MERGE)}
    return replace(begun, model=begun.model | kept, version=last.version, groups=last.groups)


class GrowingScan(FedScan):
    """Fed-SCAN that continues a finished run and first finds new clusters of new clients."""

    state_type = GrowingState

    def initial_state(self, randomness: Randomness) -> GrowingState:
        """Return the state of a run that starts from random weights."""
        return GrowingState(**vars(super().initial_state(randomness)))

    def continued_state(
        self, last: EncoderState, known: Iterable[int], randomness: Randomness
    ) -> GrowingState:
        """Return the first state of a continued run, before its new clusters are found.

        Args:
            last: The last state of the finished run, whose over-clusters are merged.
            known: Numbers of the clients that took part in the finished run.
            randomness: Source of random numbers of the new run.

        Raises:
            UsageError: ``clusters`` is not larger than in the finished run.
        """
        assert last.groups is not None
        new = self.overclusters - len(last.groups)
        if new <= 0 or self.problem.clusters <= last.clusters:
            raise UsageError(
                KeyValue("clusters", self.problem.clusters),
                f" is no more than the {last.clusters} of the finished run: give more; images of "
                "its clusters need no training (ccfcpp predict)",
            )
        begun = inherit_state(self, last, randomness)
        heads = {n: torch.cat([h, h.new_zeros(new, *h.shape[1:])]) for n, h in _heads(last.model)}
        numbers = torch.tensor(sorted(known), device=last.groups.device)
        grown = FinishedRun(last.groups, _shares(last.model, last.groups), numbers)
        changes = {"model": begun.model | heads, "groups": self.single_groups(), "grown": grown}
        centres = {"centroids": required_centroids(last.centroids)}
        return GrowingState(**vars(begun) | changes | centres)

    def continuation_exchanges(self, number: int, state: EncoderState) -> list[AnyServerWork]:
        """Return the search for new clusters, or the merge of ``FedScan`` once they are found."""
        if isinstance(state, GrowingState) and state.grown is not None:
            return [FindNewClusters(self.problem.clusters, self.problem.samples)]
        return super().continuation_exchanges(number, state)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of ``FedScan`` and of the search for new clusters."""
        new = EachClient(NEW_CENTRES, partial(self._new_clusters, context.least))
        return ClientSide.of(new, *super().client_side(context).works.values())

    def _new_clusters(
        self, least: int, message: GrowingState, client: Client, randomness: Randomness
    ) -> CentroidUpdate:
        """Return a new client's centres of at least so many images; of other clients, none."""
        known, grown = required_centroids(message.centroids), message.grown
        if grown is None or len(grown.groups) >= self.overclusters:
            raise RefusedUpdateError(f"none of the {self.overclusters} heads are new")
        if client.id in grown.clients.tolist():
            return CentroidUpdate(known[:0], known.new_zeros(0, dtype=torch.float64))
        latents, count = self.space.latents(message, client), self.overclusters - len(grown.groups)
        generator = randomness.generator("new clusters")
        clustering = cluster_unexplained(latents, known, count, generator)
        enough = clustering.sizes >= least
        return CentroidUpdate(clustering.centroids[enough], clustering.sizes[enough])

    def describe(self) -> dict[str, object]:
        """Return what a summary of the run shows: what clients send."""
        sends = "sums of statistics and gradients; newcomers: centres of new clusters"
        return {**super().describe(), "sends": sends}


def _heads(model: ModelState) -> list[tuple[str, Tensor]]:
    """Return the names and tensors of the head: weight (m, d) and bias (m,)."""
    return [(name, model[name]) for name in ("head.weight", "head.bias")]


def _shares(model: ModelState, groups: Tensor) -> Tensor | None:
    """Return each over-cluster's share of images, (m,); None if merged ones were not trained."""
    if not trains_merged(model):
        return None
    shares = model[f"{MERGE}.shares"].double()[groups]
    return shares / groups.bincount()[groups]


def _known_heads(state: GrowingState) -> tuple[FinishedRun, int]:
    """Return ``state.grown``, which must not be None, and the number of new outputs (heads)."""
    assert state.grown is not None
    return state.grown, len(state.model["head.weight"]) - len(state.grown.groups)


@dataclass(frozen=True)
class FindNewClusters(ServerWork[GrowingState, GrowingState, CentroidUpdate]):
    """Server side of the search for new clusters: makes new outputs (heads) from clients' centres.

    Attributes:
        clusters: Number of clusters k, including the new ones.
        samples: Number of images of all clients.
    """

    clusters: int
    samples: int
    exchange = NEW_CENTRES

    def broadcast(self, state: GrowingState) -> GrowingState:
        """Return the message to clients: the model, known centres, and known clients' numbers."""
        return state.public

    def update_format(self, message: GrowingState) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most one centre for each new output (head)."""
        latent = required_centroids(message.centroids).shape[1]
        return centroid_format(_known_heads(message)[1], latent, least=0)

    def check(
        self, message: GrowingState, update: CentroidUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse centres that are too far from 0, of too many images, or from known clients."""
        known = _known_heads(message)[0].clients.tolist()
        if len(update.sizes) and any(each.id in known for each in senders):
            raise RefusedUpdateError("it took part before, and has no new clusters")
        check_update(update, senders)

    def aggregate(
        self, state: GrowingState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[GrowingState, Metrics]:
        """Add outputs (heads) for the new clusters, and assign each output to a cluster.

        Raises:
            FederationError: The new clients sent fewer distinct centres than there are new heads.
        """
        received, (grown, new) = list(updates), _known_heads(state)
        points = torch.cat([update.centroids for update in received])
        sizes = torch.cat([update.sizes for update in received])
        centres = cluster_centres(points, sizes, new, randomness.integer("new clusters"))
        if len(centres) < new:
            raise FederationError(
                f"newcomers that are there hold images for {len(centres)} of the {new} new heads "
                f"that clusters = {self.clusters} asks for: begin again, with fewer clusters or "
                "when they are there, and another --out"
            )
        known = [(name, head[: len(grown.groups)]) for name, head in _heads(state.model)]
        added = heads_for(centres, *(head for _, head in known))
        heads = {n: torch.cat([own, more]) for (n, own), more in zip(known, added, strict=True)}
        model, clusters = state.model | heads, int(grown.groups.max()) + 1
        new_clusters = cluster_centres(centres, torch.ones(new), self.clusters - clusters, seed=0)
        groups = torch.cat([grown.groups, clusters + nearest(centres, new_clusters)])
        if grown.shares is not None:
            of_each = sizes.new_zeros(new).index_add(0, nearest(points, centres), sizes)
            of_known = (self.samples - of_each.sum()) * grown.shares
            model |= merge_tensors(groups, torch.cat([of_known, of_each]), model)
        # A new version, since clients load a model only if its version has changed.
        version = state.version + 1
        return GrowingState(model, version, descent=state.descent, groups=groups), {}


def cluster_unexplained(
    latents: Tensor, known: Tensor, count: int, generator: torch.Generator
) -> Clustering:
    """Run Lloyd's k-means on latents: known centres stay, and new ones are added beside them.

    Args:
        latents: Tensor of shape (samples, d).
        known: Centres of the known clusters, of shape (k, d).
        count: Largest number of new centres.
        generator: Draws the initial new centres by k-means++.

    Returns:
        The new centres that have images, and their sizes, from the best of several runs.
    """
    clusterings = [_add_centres(latents, known, count, generator) for _ in range(_RESTARTS)]
    return min(clusterings, key=lambda each: each.inertia)


def _add_centres(
    latents: Tensor, known: Tensor, count: int, generator: torch.Generator
) -> Clustering:
    """Run ``cluster_unexplained`` once, from one random initialisation."""
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


def cluster_centres(points: Tensor, sizes: Tensor, count: int, seed: int) -> Tensor:
    """Run k-means on weighted centres (n, d); return new centres of shape (at most count, d)."""
    if len(points) == 0:
        return points
    return kmeans(points, count, seed=seed, weights=sizes).centroids.to(points)


def heads_for(centres: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of new outputs (heads), each with the largest logit at its centre.

    Args:
        centres: Centres of the new heads in the space of latents, of shape (new, d).
        weight: Weight of the known heads, of shape (m, d).
        bias: Bias of the known heads, of shape (m,).

    Returns:
        Weight of shape (new, d) and bias of shape (new,).
    """
    length = _SOFT * weight.norm(dim=1).mean()
    new = length * centres / centres.norm(dim=1, keepdim=True)
    known = (centres @ weight.T + bias).logsumexp(dim=1)
    return new, known - (centres * new).sum(dim=1) + _MARGIN
