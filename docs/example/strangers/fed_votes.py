"""Clients move centroids by themselves, and the server makes k-means of all that they send.

What the server needs of each client is no sum, so that this is a system in full.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ccfcpp.plugin import (
    AnyServerWork,
    CentroidState,
    Client,
    ClientContext,
    ClientSide,
    ClientWork,
    Count,
    Exchange,
    Member,
    Metrics,
    PixelClustering,
    PixelsConfig,
    Positive,
    PositiveShare,
    Problem,
    Randomness,
    Section,
    ServerWork,
    System,
    Task,
    Unused,
    UpdateFormat,
    Votes,
    assign_points,
    check_counts,
    format_of,
    pack,
    require,
    required_centroids,
    sum_by_group,
)


class VotesConfig(Section):
    """The section `votes` of the configuration: `--set votes.start=grey`."""

    rounds: Positive = 10
    steps: Positive = 5
    """Steps of k-means, at the clients and at the server."""
    start: Literal["uniform", "grey"] = "uniform"
    """Where centroids start: anywhere, or near a grey image."""
    spread: PositiveShare = 0.1
    """How far from grey they start."""

    def unused(self) -> Unused:
        """Yield what has no effect, and what it needs."""
        if self.start != "grey":
            yield "votes.spread", [require("votes.start", "grey")]


@dataclass(frozen=True)
class LocalCentroids:
    """What a client sends: its centroids, and how many points each has."""

    centroids: Tensor
    counts: Tensor


VOTES = Exchange(
    "votes",
    message=CentroidState,
    update=LocalCentroids,
    parts={"centroids": Votes(weights="counts"), "counts": Count()},
)


def moved(points: Tensor, weights: Tensor, centroids: Tensor, steps: int) -> LocalCentroids:
    """Move centroids by steps of Lloyd's k-means; one without points stays."""
    counts = torch.zeros(len(centroids), 1, dtype=torch.float64)
    for _ in range(steps):
        labels = assign_points(points, centroids)
        counts = sum_by_group(labels, weights.unsqueeze(1), len(centroids))
        sums = sum_by_group(labels, weights.unsqueeze(1) * points, len(centroids))
        means = (sums / counts.clamp(min=1)).to(centroids)
        centroids = torch.where(counts > 0, means, centroids)
    return LocalCentroids(centroids, counts.flatten())


@dataclass(frozen=True)
class SendCentroids(ClientWork[CentroidState, LocalCentroids]):
    """What clients do."""

    system: "FedVotes"
    exchange = VOTES

    def local_updates(
        self, task: Task, message: CentroidState, clients: Sequence[Client], randomness: Randomness
    ) -> list[LocalCentroids]:
        """Move the centroids by the samples of each client."""
        return [self._of(required_centroids(message.centroids), client) for client in clients]

    def _of(self, centroids: Tensor, client: Client) -> LocalCentroids:
        points = self.system.rule.points(client.images)
        ones = torch.ones(len(points), dtype=torch.float64, device=points.device)
        return moved(points, ones, centroids, self.system.config.steps)


class FedVotes(
    PixelClustering[CentroidState], ServerWork[CentroidState, CentroidState, LocalCentroids]
):
    """The algorithm, and what the server does in its exchange."""

    state_type = CentroidState
    exchange = VOTES

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.config = problem.config.section(VotesConfig)
        self.rounds = self.config.rounds

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Draw the first centroids."""
        shape = (self.problem.clusters, self.rule.dimensions)
        drawn = torch.rand(shape, generator=randomness.generator("centroids"))
        if self.config.start == "grey":
            drawn = 0.5 + self.config.spread * (drawn - 0.5)
        return CentroidState(drawn.to(self.problem.device))

    def exchanges(self, number: int, state: CentroidState) -> Sequence[AnyServerWork]:
        """Return one exchange a round."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return what clients do in it."""
        return ClientSide.of(SendCentroids(self))

    def broadcast(self, state: CentroidState) -> CentroidState:
        """Broadcast the centroids."""
        return CentroidState(required_centroids(state.centroids))

    def update_format(self, message: CentroidState) -> UpdateFormat:
        """Return the form of an update: a centroid and a number for each that went down."""
        centroids = required_centroids(message.centroids)
        return format_of(pack(LocalCentroids(centroids, centroids[:, 0].double())))

    def check(
        self, message: CentroidState, update: LocalCentroids, senders: Sequence[Member]
    ) -> None:
        """Refuse numbers of points that a client cannot hold."""
        check_counts(update.counts, senders)

    def aggregate(
        self, state: CentroidState, updates: Iterable[LocalCentroids], randomness: Randomness
    ) -> tuple[CentroidState, Metrics]:
        """Move the centroids by those of all clients, each with the weight of its points."""
        before, received = required_centroids(state.centroids), list(updates)
        votes = torch.cat([update.centroids for update in received])
        weights = torch.cat([update.counts for update in received])
        after = moved(votes, weights, before, self.config.steps).centroids
        return CentroidState(after), {"moved": float((after - before).abs().max())}


FED_VOTES = System(
    title="Fed-Votes",
    sends="centroids of each client",
    kinds=("pixels",),
    make=FedVotes,
    sections={"pixels": PixelsConfig, "votes": VotesConfig},
    fixed={"pixels": {"normalise": False}},
    ignores=("privacy.smallest_count",),
    rounds="votes.rounds",
    takes=("images", "vectors"),
    summary="k-means of the clients' centroids",
)
