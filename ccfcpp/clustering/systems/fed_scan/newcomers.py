"""A finished run goes on with newcomers, and with clusters for what they alone hold.

Encoder and known heads stay, so that known clusters keep their numbers. Before the first step each
newcomer clusters what these do not explain, and sends the centres and their sizes; new heads begin
there. With random heads new clusters do not find their images in a few steps, since known ones have
taken them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import (
    CentroidUpdate,
    centroid_form,
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
    Figures,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.parts import Count, Form, Votes
from ccfcpp.models.state import ModelState

_STARTS, _ITERATIONS = 5, 25
_SOFT = 0.7
"""A new head's length, as a share of the known ones': shorter heads give way to the steps."""
_MARGIN = 1.0
"""By how much a new head's logit exceeds all known ones together, at its own centre."""


@dataclass(frozen=True)
class Grown:
    """Facts of the finished run, until there are new clusters.

    Attributes:
        groups: The cluster of each known head, int64 of shape (m,).
        shares: Of the images, by known head, float64 of shape (m,); None where no merge was
            trained.
        clients: Numbers of the clients that took part in it, int64.
    """

    groups: Tensor
    shares: Tensor | None
    clients: Tensor


@dataclass(frozen=True)
class GrowingState(EncoderState):
    """The state of a run that goes on; and the message to its clients, with known centres.

    Attributes:
        grown: None once the new clusters are found. Before, known heads come first in the model,
            and each cluster of theirs has a centroid.
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
    """Return the state in which a run with other clients begins, from the last one of a run."""
    begun = algorithm.initial_state(randomness)
    # A merge would keep to shares in which clients that are gone count.
    kept = {name: own for name, own in last.model.items() if not name.startswith(MERGE)}
    return replace(begun, model=begun.model | kept, version=last.version, groups=last.groups)


class GrowingScan(FedScan):
    """Fed-SCAN that goes on from a finished run, and finds its new clusters before its steps."""

    state_type = GrowingState

    def initial_state(self, randomness: Randomness) -> GrowingState:
        """That of a run that begins from nothing."""
        return GrowingState(**vars(super().initial_state(randomness)))

    def grown(
        self, last: EncoderState, known: Iterable[int], randomness: Randomness
    ) -> GrowingState:
        """Return the state in which a run begins, before it knows where its new clusters lie.

        Args:
            last: The last state of the finished run, whose over-clusters are merged.
            known: Numbers of the clients that took part in it.
            randomness: Of the new run.

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
        """Until there are new clusters these, which are merged as they begin."""
        if isinstance(state, GrowingState) and state.grown is not None:
            return [FindNewClusters(self.problem.clusters, self.problem.samples)]
        return super().going_on(number, state)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Fed-SCAN's, and what newcomers tell."""
        side, new = super().client_side(context), TellNewClusters(self.space, context.least)
        return ClientSide({new.exchange.name: new, **side.works}, side.cohort)

    def describe(self) -> dict[str, object]:
        """Return what leaves a client."""
        sends = "sums of statistics and gradients; newcomers: centres of new clusters"
        return {**super().describe(), "sends": sends}


def _heads(model: ModelState) -> list[tuple[str, Tensor]]:
    return [(name, model[name]) for name in ("head.weight", "head.bias")]


def _shares(model: ModelState, groups: Tensor) -> Tensor | None:
    """The share of images of each head, those of a cluster alike; None where none was trained."""
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
    """New heads begin where newcomers hold what no known cluster explains.

    Attributes:
        clusters: k, with the new ones.
        samples: Images of all clients.
    """

    clusters: int
    samples: int
    exchange = NEW_CENTRES

    def broadcast(self, state: GrowingState) -> GrowingState:
        """The model, the known centres, and who knows them."""
        return state.public

    def form(self, message: GrowingState) -> Form:
        """Return the form of as many centres as there are new heads, or fewer."""
        latent = required_centroids(message.centroids).shape[1]
        return centroid_form(_still_grown(message)[1], latent, least=0)

    def check(
        self, message: GrowingState, update: CentroidUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse centres that are far off, of more images than there are, or of who has none."""
        known = _still_grown(message)[0].clients.tolist()
        if len(update.sizes) and any(each.id in known for each in senders):
            raise RefusedUpdateError("it took part before, and has no new clusters")
        check_update(update, senders)

    def aggregate(
        self, state: GrowingState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[GrowingState, Figures]:
        """Heads of all clusters, and the cluster of each.

        Raises:
            FederationError: Newcomers hold too few images.
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
    """A newcomer clusters what known centres do not explain; the others tell nothing.

    Attributes:
        space: Gives latents.
        least: The fewest images of which a client tells the centre.
    """

    space: LatentSpace
    least: int
    exchange = NEW_CENTRES

    def local_updates(
        self, task: Task, message: GrowingState, clients: Sequence[Client], randomness: Randomness
    ) -> list[CentroidUpdate]:
        """Each newcomer's centres."""
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


def gathered(points: Tensor, sizes: Tensor, count: int, seed: int) -> Tensor:
    """Centres of new clusters from those of all newcomers, of shape (at most count, d)."""
    if len(points) == 0:
        return points
    return kmeans(points, count, seed=seed, weights=sizes).centroids.to(points)


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
