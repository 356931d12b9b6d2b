"""FedDCN: deep clustering networks at the clients, then at the server, then in rounds.

Source: *FedDCN* (arXiv 2609.21829), "the paper", and its public code.

1. Each client trains an autoencoder on its own samples, first by reconstruction, then with the loss
   of k-means. It sends the decoder, and of each centroid the place in latent space, a standard
   deviation and a number of points.
2. The server draws latents near these centroids and decodes them. With these synthetic samples it
   trains the global autoencoder, which also learns their embedding by UMAP, and finds centroids.
3. In each round clients train the global autoencoder on own and as many synthetic samples, and the
   server averages it; then clients run k-means on the latents, and the server on their centroids.

What that gives away: a decoder can memorise its client's samples. The server can draw any number of
samples from it, and near a centroid of one point that very sample. All clients get the synthetic
samples, hence what they show of the others. A round's models and centroids are those of any
averaged autoencoder.
"""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import check_near
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.fed_dcn.network import Space, part_of
from ccfcpp.clustering.systems.fed_dcn.synthesis import (
    LocalClusters,
    davies_bouldin,
    draw,
    embed,
    spreads,
)
from ccfcpp.clustering.systems.fed_dcn.training import Known, Trainer
from ccfcpp.data.images import to_float
from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.engine.payload import check_samples
from ccfcpp.engine.threads import choose_threads, threaded
from ccfcpp.models.state import random_state
from ccfcpp.plugin import (
    AnyServerWork,
    Client,
    ClientContext,
    ClientSide,
    ClientWork,
    ClusteringAlgorithm,
    ComputeConfig,
    Count,
    Exchange,
    FederationError,
    KeyValue,
    Mean,
    Member,
    Metrics,
    ModelState,
    Opaque,
    Problem,
    Randomness,
    RefusedUpdateError,
    Rows,
    ServerWork,
    Spec,
    Task,
    UpdateFormat,
    UsageError,
    Votes,
    assign_points,
    check_counts,
    format_of,
    required_centroids,
)  # fmt: skip


@dataclass(frozen=True)
class DCNState:
    """State of the server: what samples are assigned by, and what the next round goes on with.

    Attributes:
        model: Weights of the autoencoder that is delivered.
        centroids: Its centroids; None before the server's training.
        known: The last round's; None before the server's training.
        index: Davies-Bouldin index of the model that is delivered; None if it does not count.
        stalled: Number of rounds since then.
    """

    model: ModelState
    centroids: Tensor | None = None
    known: Known | None = None
    index: float | None = None
    stalled: int = 0


@dataclass(frozen=True)
class TrainedModel:
    """A client's autoencoder after a round, its number of samples, and its mean loss."""

    model: ModelState
    samples: int
    loss: float


@dataclass(frozen=True)
class LocalCentroids:
    """Centroids of a client's own and synthetic latents, float32 of shape (at most k, latent)."""

    centroids: Tensor


OWN_NETWORK = Exchange(
    "own network",
    Known,
    LocalClusters,
    {name: Opaque() for name in ("decoder", "centroids", "deviations", "counts")},
)
TRAINING = Exchange(
    "training",
    Known,
    TrainedModel,
    {"model": Mean("samples"), "samples": Count(), "loss": Mean("samples", report=True)},
)
CENTROIDS = Exchange("centroids", Known, LocalCentroids, {"centroids": Votes()})

Sent = TypeVar("Sent")


@dataclass(frozen=True)
class LocalWork(ClientWork[Known, Sent]):
    """Client side of an exchange, in which each client answers by itself."""

    exchange: Exchange[Known, Sent]
    answer: Callable[[Known, Client, Randomness], Sent]

    def local_updates(
        self, task: Task, message: Known, clients: Sequence[Client], randomness: Randomness
    ) -> list[Sent | RefusedUpdateError]:
        """Return each client's answer, or the reason why it has none."""

        def answer(client: Client) -> Sent | RefusedUpdateError:
            try:
                return self.answer(message, client, randomness.of_client(client.id))
            except RefusedUpdateError as refusal:
                return refusal

        return [answer(client) for client in clients]


@dataclass(frozen=True)
class _Work(ServerWork[DCNState, Known, Sent]):
    """Base class of the server side of the exchanges."""

    system: "FedDCN"

    def is_due(self, state: DCNState) -> bool:
        """Return whether the server has trained its network: rounds need it."""
        return state.known is not None

    def broadcast(self, state: DCNState) -> Known:
        """Return the last round's model, centroids and synthetic samples."""
        return state.known or Known(state.model)


class Synthesis(_Work[LocalClusters]):
    """Server side of the clients' own networks: synthetic samples, and training on them."""

    exchange = OWN_NETWORK

    def is_due(self, state: DCNState) -> bool:
        """Return True: it needs no network."""
        return True

    def update_format(self, message: Known) -> UpdateFormat:
        """Return an update's shapes and dtypes: a decoder, and at most k centroids."""
        rows = Rows(self.system.problem.clusters)
        return format_of(part_of(message.model, "decoder"), "decoder/") | {
            "centroids": Spec(torch.float32, (rows, self.system.config.latent)),
            "deviations": Spec(torch.float32, (rows,)),
            "counts": Spec(torch.float64, (rows,)),
        }

    def check(self, message: Known, update: LocalClusters, senders: Sequence[Member]) -> None:
        """Refuse points that are too far, and counts that a client cannot hold."""
        check_near(update.centroids)
        check_near(update.deviations)
        check_counts(update.counts, senders)

    def aggregate(
        self, state: DCNState, updates: Iterable[LocalClusters], randomness: Randomness
    ) -> tuple[DCNState, Metrics]:
        """Draw synthetic samples, embed them, and train the global autoencoder on them."""
        system, config = self.system, self.system.config
        drawn = randomness.generator("synthetic")
        synthetic = draw(list(updates), config.synthetic, system.space.decode, drawn)
        embedded = None
        if config.embedding == "umap":
            points = to_float(synthetic).flatten(1)
            embedded = embed(points, config.latent, config, randomness.integer("embedding"))
        try:
            trained = Trainer(system.problem).fit(state.model, synthetic, randomness, embedded)
        except RefusedUpdateError as refusal:
            raise FederationError(f"the server: {refusal}") from refusal
        return system.judge(state, Known(*trained, synthetic))


class Averaging(_Work[TrainedModel]):
    """Server side of a round's training: the mean of the models (FedAvg)."""

    exchange = TRAINING

    def update_format(self, message: Known) -> UpdateFormat:
        """Return an update's shapes and dtypes: a model and two numbers."""
        numbers = {"samples": Spec(torch.int64), "loss": Spec(torch.float64)}
        return format_of(message.model, "model/") | numbers

    def check(self, message: Known, update: TrainedModel, senders: Sequence[Member]) -> None:
        """Refuse a number of samples that is not the client's."""
        check_samples(update.samples, senders)

    def aggregate(
        self, state: DCNState, updates: Iterable[TrainedModel], randomness: Randomness
    ) -> tuple[DCNState, Metrics]:
        """Average the models, each with the weight of its samples."""
        assert state.known is not None
        average, samples, loss = ModelAverage(), 0, 0.0
        for update in updates:
            average.add(update.model, update.samples)
            samples, loss = samples + update.samples, loss + update.samples * update.loss
        known = replace(state.known, model=average.result())
        return replace(state, known=known), {"loss": loss / samples}

    def local_model(self, update: TrainedModel) -> ModelState:
        """Return the trained local model that a client's update holds."""
        return update.model


class MoveCentroids(_Work[LocalCentroids]):
    """Server side of a round's centroids: k-means over those of all clients."""

    exchange = CENTROIDS

    def update_format(self, message: Known) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most k centroids."""
        shape = (Rows(self.system.problem.clusters), self.system.config.latent)
        return {"centroids": Spec(torch.float32, shape)}

    def check(self, message: Known, update: LocalCentroids, senders: Sequence[Member]) -> None:
        """Refuse centroids that are too far from 0."""
        check_near(update.centroids)

    def aggregate(
        self, state: DCNState, updates: Iterable[LocalCentroids], randomness: Randomness
    ) -> tuple[DCNState, Metrics]:
        """Run k-means over the clients' centroids, from the global ones."""
        assert state.known is not None
        before = required_centroids(state.known.centroids)
        votes = torch.cat([update.centroids for update in updates])
        seed = randomness.integer("k-means")
        after = kmeans(votes, len(before), seed=seed, init=before).centroids.to(before)
        return self.system.judge(state, replace(state.known, centroids=after))


class FedDCN(ClusteringAlgorithm[DCNState]):
    """FedDCN: a global autoencoder from synthetic samples, then rounds of deep clustering."""

    state_type = DCNState

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.config = problem.config.section(FedDCNConfig)
        self.rounds = self.config.rounds
        self.space = Space(problem)

    def initial_state(self, randomness: Randomness) -> DCNState:
        """Return random weights.

        Raises:
            UsageError: UMAP is wanted, and not installed.
        """
        if self.config.embedding == "umap" and importlib.util.find_spec("umap") is None:
            raise UsageError(
                KeyValue("feddcn.embedding", "umap"),
                " needs umap-learn, which is not installed: pip install '.[umap]', or give "
                "feddcn.embedding = none",
            )
        generator = randomness.generator("model")
        return DCNState(random_state(self.space.make_model, generator, self.problem.device))

    def exchanges(self, number: int, state: DCNState) -> Sequence[AnyServerWork]:
        """Return training and centroids, after the clients' own networks if there are none yet."""
        works: list[AnyServerWork] = [Averaging(self), MoveCentroids(self)]
        return works if state.known else [Synthesis(self), *works]

    def plan(self, state: DCNState) -> list[Sequence[AnyServerWork]]:
        """Return the exchanges of every round of a run in which nothing fails."""
        later = replace(state, known=Known(state.model))
        return [self.exchanges(n, later if n else state) for n in range(self.rounds)]

    def has_converged(self, state: DCNState) -> bool:
        """Return whether the index has not fallen for as many rounds as are waited."""
        return state.stalled >= self.config.patience

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: own networks, training, and k-means."""
        wanted = self.problem.config.section(ComputeConfig).cohort
        threads = choose_threads(wanted, context.together, self.problem.device)
        trainers = [Trainer(self.problem) for _ in range(threads)]

        def work(
            exchange: Exchange[Known, Sent],
            answer: Callable[[Trainer, Known, Client, Randomness], Sent],
        ) -> ClientWork[Known, Sent]:
            return threaded([LocalWork(exchange, partial(answer, own)) for own in trainers])

        return ClientSide.of(
            work(OWN_NETWORK, self._own_network),
            work(TRAINING, self._train),
            work(CENTROIDS, self._cluster),
            cohort=threads,
        )

    def _own_network(
        self, trainer: Trainer, known: Known, client: Client, own: Randomness
    ) -> LocalClusters:
        """Train a network on a client's samples alone; describe its clusters."""
        if len(client) < 2:
            raise RefusedUpdateError("it holds one sample, which its decoder would show")
        model, centroids = trainer.fit(known.model, client.images, own)
        latents = trainer.space.encode(model, client.images)
        described = spreads(latents, centroids, self.config.counts == "near")
        return LocalClusters(part_of(model, "decoder"), centroids, *described)

    def _train(
        self, trainer: Trainer, known: Known, client: Client, own: Randomness
    ) -> TrainedModel:
        """Train the global model on a client's samples, and on as many synthetic ones."""
        model, loss = trainer.refine(known, client.images, own)
        return TrainedModel(model, len(client), loss)

    def _cluster(
        self, trainer: Trainer, known: Known, client: Client, own: Randomness
    ) -> LocalCentroids:
        """Run k-means on the latents of a client's samples, and of as many synthetic ones."""
        samples = known.beside(client.images, own.generator("synthetic"))
        return LocalCentroids(trainer.cluster(known.model, samples, own, known.centroids))

    def judge(self, state: DCNState, known: Known) -> tuple[DCNState, Metrics]:
        """Return the state after new centroids, and their index if it decides on the model."""
        assert known.synthetic is not None
        centroids, index = required_centroids(known.centroids), None
        if self.config.stop == "davies-bouldin":
            index = davies_bouldin(self.space.encode(known.model, known.synthetic), centroids)
        metrics = {} if index is None else {"davies_bouldin": index}
        if index is not None and state.index is not None and index >= state.index:
            return replace(state, known=known, stalled=state.stalled + 1), metrics
        # Copies, since a file of tensors holds none twice.
        model = {name: entry.clone() for name, entry in known.model.items()}
        return DCNState(model, centroids.clone(), known, index), metrics

    def represent(self, state: DCNState, client: Client) -> Tensor | None:
        """Return the latents of a client's samples; None before there are centroids."""
        if state.centroids is None:
            return None
        return self.space.encode(state.model, client.images)

    def assign(self, state: DCNState, client: Client) -> Tensor:
        """Return the nearest centroid of each sample's latent, int64 of shape (samples,)."""
        latents = self.space.encode(state.model, client.images)
        return assign_points(latents, required_centroids(state.centroids))

    def final_model(self, state: DCNState) -> DCNState:
        """Return what clients need to assign samples: the encoder and the centroids."""
        encoder = {n: entry for n, entry in state.model.items() if n.startswith("encoder.")}
        return DCNState(encoder, state.centroids)
