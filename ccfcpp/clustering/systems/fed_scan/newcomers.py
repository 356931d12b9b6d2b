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

from ccfcpp.clustering.kmeans.centroids import check_near, required_centroids
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import Clustering, kmeans, nearest
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
from ccfcpp.clustering.systems.fed_scan.network import MERGE
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.server import merge_as, trains_merged
from ccfcpp.core.errors import FederationError
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
from ccfcpp.engine.parts import Count, Form, Rows, Spec, Votes
from ccfcpp.engine.payload import check_counts
from ccfcpp.models.state import ModelState

_HEAD = ("head.weight", "head.bias")
_STARTS, _ITERATIONS = 5, 25
_SOFT = 0.7
"""A new head's length, as a share of the known ones': shorter heads give way to the steps."""
_MARGIN = 1.0
"""By how much a new head's logit exceeds all known ones together, at its own centre."""


@dataclass(frozen=True)
class Grown:
    """Heads that a run inherits from a finished one, until it has heads of its own.

    Attributes:
        weight: Of the finished run's heads, of shape (m, d).
        bias: Theirs, of shape (m,).
        groups: The cluster of each, int64 of shape (m,).
        shares: Of the images, by head, float64 of shape (m,); None where no merge was trained.
        clients: Numbers of the clients that took part in it, int64.
    """

    weight: Tensor
    bias: Tensor
    groups: Tensor
    shares: Tensor | None
    clients: Tensor


@dataclass(frozen=True)
class GrowingState(EncoderState):
    """The state of a run that goes on.

    Attributes:
        grown: None once the new clusters are found.
    """

    grown: Grown | None = None


@dataclass(frozen=True)
class KnownCentres:
    """Message with the centres of the known clusters.

    Attributes:
        model: The network's parameters and running statistics.
        version: How many steps it has come through.
        centres: Mean latents, of shape (known clusters, d).
        clients: Numbers of the clients that know no other, int64.
        new: How many new heads there are, an int64 scalar.
    """

    model: ModelState
    version: int
    centres: Tensor
    clients: Tensor
    new: Tensor


@dataclass(frozen=True)
class NewCentres:
    """Centres of what no known cluster explains, float32 (at most new, d), and sizes, float64."""

    centroids: Tensor
    sizes: Tensor


NEW_CENTRES = Exchange(
    "new clusters",
    KnownCentres,
    NewCentres,
    {"centroids": Votes(weights="sizes", partial=True), "sizes": Count()},
    once=True,
)


class GrowingScan(FedScan):
    """Fed-SCAN that goes on from a finished run, and finds its new clusters before its steps."""

    state_type = GrowingState

    def initial_state(self, randomness: Randomness) -> GrowingState:
        """That of a run that begins from nothing."""
        return GrowingState(**vars(super().initial_state(randomness)))

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


def to_grow(fresh: EncoderState, finished: EncoderState, known: Iterable[int]) -> GrowingState:
    """The state in which a run with more clusters begins, before it knows where they lie.

    Args:
        fresh: A state of the new run, with heads for all of its clusters.
        finished: The last state of the finished run, whose over-clusters are merged.
        known: Numbers of the clients that took part in it.
    """
    assert finished.groups is not None
    # Latents need no head, and the network has heads of the new number, none of them merged.
    model = {
        name: own if name in _HEAD or name.startswith(MERGE) else finished.model[name]
        for name, own in fresh.model.items()
    }
    numbers = torch.tensor(sorted(known), device=finished.groups.device)
    weight, bias = (finished.model[name] for name in _HEAD)
    groups = finished.groups.to(weight.device)
    grown = Grown(weight, bias, groups, _shares(finished.model, groups), numbers)
    centres = required_centroids(finished.centroids)
    state = replace(fresh, model=model, version=finished.version, centroids=centres)
    return GrowingState(**{**vars(state), "grown": grown})


def _shares(model: ModelState, groups: Tensor) -> Tensor | None:
    """The share of images of each head, those of a cluster alike; None where none was trained."""
    if not trains_merged(model):
        return None
    shares = model[f"{MERGE}.shares"].double()[groups]
    return shares / groups.bincount()[groups]


@dataclass(frozen=True)
class FindNewClusters(ServerWork[GrowingState, KnownCentres, NewCentres]):
    """New heads begin where newcomers hold what no known cluster explains.

    Attributes:
        clusters: k, with the new ones.
        samples: Images of all clients.
    """

    clusters: int
    samples: int
    exchange = NEW_CENTRES

    def is_due(self, state: GrowingState) -> bool:
        """Whether it has not been done."""
        return state.grown is not None

    def broadcast(self, state: GrowingState) -> KnownCentres:
        """The model, the known centres, and who knows them."""
        assert state.grown is not None
        centres = required_centroids(state.centroids)
        new = torch.tensor(_new_heads(state))
        return KnownCentres(state.model, state.version, centres, state.grown.clients, new)

    def form(self, message: KnownCentres) -> Form:
        """Return the form of as many centres as there are new heads, or fewer."""
        rows = Rows(int(message.new), least=0)
        centres = Spec(torch.float32, (rows, message.centres.shape[1]))
        return {"centroids": centres, "sizes": Spec(torch.float64, (rows,))}

    def check(self, message: KnownCentres, update: NewCentres, senders: Sequence[Member]) -> None:
        """Refuse centres that are far off, of more images than there are, or of who has none."""
        if len(update.sizes) and {each.id for each in senders} & set(message.clients.tolist()):
            raise RefusedUpdateError("it took part before, and has no new clusters")
        check_near(update.centroids)
        check_counts(update.sizes, senders)

    def aggregate(
        self, state: GrowingState, updates: Iterable[NewCentres], randomness: Randomness
    ) -> tuple[GrowingState, Figures]:
        """Heads of all clusters, and the cluster of each.

        Raises:
            FederationError: Newcomers hold too few images.
        """
        found, new = list(updates), _new_heads(state)
        points, sizes = (
            torch.cat(p) for p in zip(*((u.centroids, u.sizes) for u in found), strict=True)
        )
        starts = gathered(points, sizes, new, randomness.integer("new clusters"))
        if len(starts) < new:
            raise FederationError(
                f"newcomers that are there hold images for {len(starts)} of the {new} new heads "
                f"that clusters = {self.clusters} asks for: begin again, with fewer clusters or "
                "when they are there, and another --out"
            )
        grown = state.grown
        assert grown is not None
        added = heads_at(starts, grown.weight, grown.bias)
        heads = (torch.cat(pair) for pair in zip((grown.weight, grown.bias), added, strict=True))
        model = state.model | dict(zip(_HEAD, heads, strict=True))
        known = int(grown.groups.max()) + 1
        apart = gathered(starts, torch.ones(new), self.clusters - known, seed=0)
        groups = torch.cat([grown.groups.to(starts.device), known + nearest(starts, apart)])
        if grown.shares is not None:
            of_each = sizes.new_zeros(new).index_add(0, nearest(points, starts), sizes)
            of_known = (self.samples - of_each.sum()) * grown.shares
            model |= merge_as(groups, torch.cat([of_known, of_each]), model)
        # Clients load a model whose version they do not have.
        version = state.version + 1
        return GrowingState(model, version, descent=state.descent, groups=groups), {}


def _new_heads(state: GrowingState) -> int:
    assert state.grown is not None
    return len(state.model[_HEAD[0]]) - len(state.grown.weight)


@dataclass(frozen=True)
class TellNewClusters(ClientWork[KnownCentres, NewCentres]):
    """A newcomer clusters what known centres do not explain; the others tell nothing.

    Attributes:
        space: Gives latents.
        least: The fewest images of which a client tells the centre.
    """

    space: LatentSpace
    least: int
    exchange = NEW_CENTRES

    def local_updates(
        self, task: Task, message: KnownCentres, clients: Sequence[Client], randomness: Randomness
    ) -> list[NewCentres]:
        """Each newcomer's centres."""
        return [self._of(message, one, randomness.of_client(one.id)) for one in clients]

    def _of(self, message: KnownCentres, client: Client, randomness: Randomness) -> NewCentres:
        known, heads = message.centres, self.space.network.head.out_features
        if not 0 < int(message.new) <= heads:
            raise RefusedUpdateError(f"{int(message.new)} new heads are more than the {heads}")
        if client.id in message.clients.tolist():
            return NewCentres(known[:0], torch.zeros(0, dtype=torch.float64, device=known.device))
        latents, generator = (
            self.space.latents(message, client),
            randomness.generator("new clusters"),
        )
        found = unexplained(latents, known, int(message.new), generator)
        enough = found.sizes >= self.least
        return NewCentres(found.centroids[enough], found.sizes[enough])


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
