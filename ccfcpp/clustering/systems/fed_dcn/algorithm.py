"""FedDCN: deep clustering networks at the clients, then at the server, then in rounds.

Source: *FedDCN* (arXiv 2609.21829), "the paper", and its public code.

Each client trains an autoencoder, with latents near a UMAP embedding of its samples, and sends its
decoder, and centroid, deviation and size of each cluster of latents. With samples that decoders
make of latents near the centroids, and their embedding, the server trains the global autoencoder.
In later rounds clients train it on own and as many synthetic samples, and the server averages it;
then both run k-means, on latents and centroids.

A decoder memorises samples of its client, which ``ccfcpp leakage`` measures. The server can draw
any number of samples from it, and all clients get the synthetic ones. Later models give away what
any averaged autoencoder does.

The paper delivers the round of the highest accuracy. That needs labels, and is no rule here; where
there are labels, a run's summary has the best round by its scores beside the last one.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import check_near, check_update, required_centroids
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate, local_training_exchange
from ccfcpp.clustering.systems.ccfc.server import ModelAggregation
from ccfcpp.clustering.systems.fed_dcn.network import (
    LocalClusters,
    Pulls,
    Trainer,
    check_umap,
    embed,
    part_of,
)
from ccfcpp.clustering.systems.shallow.k_fed import LocalCentroids
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    ClientSide,
    EachClient,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.update_format import Rows, Spec, UpdateFormat, Votes, format_of
from ccfcpp.models.state import ModelState, random_state


@dataclass(frozen=True)
class DCNState(EncoderState):
    """State of the server, and without ``best`` the message to clients.

    ``synthetic`` are uint8 images, ``targets`` their embedding, and ``index`` is the least
    Davies-Bouldin index, of ``best``.
    """

    synthetic: Tensor | None = None
    targets: Tensor | None = None
    best: EncoderState | None = None
    index: float | None = None

    @property
    def public(self) -> Self:
        """A copy to send to clients."""
        return replace(self, best=None)


OWN_NETWORK = Exchange("own network", DCNState, LocalClusters)
TRAINING = replace(local_training_exchange("training", with_centroids=False), message=DCNState)
CENTROIDS = Exchange("centroids", DCNState, LocalCentroids, {"centroids": Votes()})


@dataclass(frozen=True)
class ServerClusters(ServerWork[DCNState, DCNState, Any]):
    """Server side of the clients' own networks, or of the centroids of a round."""

    system: "FedDCN"
    exchange: Exchange[DCNState, Any]

    def broadcast(self, state: DCNState) -> DCNState:
        """Return the message to clients."""
        return state.public

    def update_format(self, message: DCNState) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most k centroids, or clusters with a decoder."""
        rows = Rows(self.system.problem.clusters)
        form = {"centroids": Spec(torch.float32, (rows, self.system.config.latent))}
        if self.exchange is CENTROIDS:
            return form
        form |= {"sizes": Spec(torch.float64, (rows,)), "deviations": Spec(torch.float32, (rows,))}
        return form | format_of(part_of(message.model, "decoder"), "decoder/")

    def check(self, message: DCNState, update: Any, senders: Sequence[Member]) -> None:
        """Refuse clusters that cannot be those of the senders' samples."""
        check_near(update.centroids)
        if self.exchange is OWN_NETWORK:
            check_update(update, senders)

    def aggregate(
        self, state: DCNState, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[DCNState, Metrics]:
        """Train on synthetic samples, or run k-means over centroids; then judge the round."""
        if self.exchange is OWN_NETWORK:
            state = self.system.begin(state, list(updates), randomness)
        else:
            votes = torch.cat([own.centroids for own in updates])
            start, seed = required_centroids(state.centroids), randomness.integer("k-means")
            moved = kmeans(votes, len(start), seed=seed, init=start).centroids.float()
            state = replace(state, centroids=moved)
        return self.system.judge(state)


class FedDCN(ClusteringAlgorithm[DCNState]):
    """FedDCN: a global autoencoder from synthetic samples, then rounds of deep clustering."""

    state_type = DCNState

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dcn = problem, Trainer(problem)
        self.config, self.rounds = self.dcn.config, self.dcn.config.rounds
        rule = CentroidRule(CentroidConfig(), problem.clusters)
        self.average = ModelAggregation(TRAINING, rule, self.config.latent, with_centroids=False)
        self.by_decoder = lambda own, generator: next(self.dcn.decoders([own], generator))

    def initial_state(self, randomness: Randomness) -> DCNState:
        """Return random weights; refuse UMAP where it is not installed."""
        check_umap(self.config)
        drawn = randomness.generator("model")
        return DCNState(random_state(self.dcn.make_model, drawn, self.problem.device))

    def exchanges(self, number: int, state: DCNState) -> Sequence[ServerWork[Any, Any, Any]]:
        """Return the clients' own networks, or once they were sent, training and centroids."""
        later = self.average, ServerClusters(self, CENTROIDS)
        return later if state.centroids is not None else [ServerClusters(self, OWN_NETWORK)]

    def plan(self, state: DCNState) -> list[Sequence[ServerWork[Any, Any, Any]]]:
        """Return the exchanges of all rounds; clients send their own networks in the first."""
        later = replace(state, centroids=torch.empty(0))
        return [self.exchanges(n, later if n else state) for n in range(self.rounds)]

    def has_converged(self, state: DCNState) -> bool:
        """Return whether the index has not fallen for as many rounds as are waited."""
        return state.best is not None and state.version - state.best.version >= self.config.patience

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: own networks, training, and k-means."""
        check_umap(self.config)
        own, train, cluster = (
            partial(answer, context.least) for answer in (self._own, self._train, self._cluster)
        )
        works = (OWN_NETWORK, own), (TRAINING, train), (CENTROIDS, cluster)
        return ClientSide.of(*(EachClient(exchange, answer) for exchange, answer in works))

    def _own(
        self, least: int, known: DCNState, client: Client, source: Randomness
    ) -> LocalClusters | RefusedUpdateError:
        targets = embed(client.images, self.config, source.integer("embedding"))
        model, centroids = self.dcn.train(known.model, client.images, source, targets, least)
        # Of images that are alike, some clusters are empty.
        enough = self._sizes(model, client, centroids) >= max(1, least)
        if not bool(enough.any()):
            return RefusedUpdateError(f"none of its clusters has {least} images")
        return self.dcn.describe(model, client.images, centroids[enough])

    def _train(
        self, least: int, known: DCNState, client: Client, source: Randomness
    ) -> TrainingUpdate:
        (samples, to), epochs = _beside(known, client, source), self.config.local_epochs
        model, loss = self.dcn.descend(known.model, samples, epochs, source, to, least)
        return TrainingUpdate(model, len(client), loss)

    def _cluster(
        self, least: int, known: DCNState, client: Client, source: Randomness
    ) -> LocalCentroids | RefusedUpdateError:
        samples, _ = _beside(known, client, source)
        centroids = self.dcn.find(known.model, samples, source, known.centroids)
        sizes = self._sizes(known.model, client, centroids)
        enough = (sizes >= least) | (sizes == 0)  # The server knows the synthetic samples.
        if not bool(enough.any()):
            return RefusedUpdateError(f"none of its clusters has {least} images")
        return LocalCentroids(centroids[enough])

    def _sizes(self, model: ModelState, client: Client, centroids: Tensor) -> Tensor:
        """Count a client's own samples in each cluster, int64 of shape (clusters,)."""
        return nearest(self.dcn.encode(model, client.images), centroids).bincount(
            minlength=len(centroids)
        )

    def begin(self, state: DCNState, sent: Sequence[LocalClusters], source: Randomness) -> DCNState:
        """Draw synthetic samples, embed them, and train the global autoencoder on them."""
        synthetic = self.dcn.draw(sent, source.generator("synthetic samples"))
        targets = embed(synthetic, self.config, source.integer("embedding"))
        model, centroids = self.dcn.train(state.model, synthetic, source, targets)
        state = replace(state, model=model, centroids=centroids)
        return replace(state, synthetic=synthetic, targets=targets)

    def judge(self, state: DCNState) -> tuple[DCNState, Metrics]:
        """Return the state after a round, with the best one so far, and the round's index."""
        from sklearn.metrics import davies_bouldin_score

        latents = self.dcn.encode(state.model, required_centroids(state.synthetic))
        labels = nearest(latents, required_centroids(state.centroids)).cpu()
        several = 1 < len(torch.unique(labels)) < len(labels)
        index = float(davies_bouldin_score(latents.cpu(), labels)) if several else 1e9
        if self.config.stop == "last" or state.index is None or index < state.index:
            best = EncoderState(state.model, state.version, state.centroids)
            state = replace(state, best=deepcopy(best), index=index)
        return state, {"davies_bouldin": index}

    def final_state(self, state: DCNState) -> DCNState:
        """Return the state with the best round's model and centroids."""
        best = deepcopy(state.best)  # since a file of tensors holds none twice
        return replace(state, model=best.model, centroids=best.centroids) if best else state

    def represent(self, state: DCNState, client: Client) -> Tensor | None:
        """Return the latents of a client's samples; None before there are centroids."""
        return None if state.centroids is None else self.dcn.encode(state.model, client.images)

    def assign(self, state: DCNState, client: Client) -> Tensor:
        """Return the nearest centroid of each sample's latent, int64 of shape (samples,)."""
        centroids = required_centroids(state.centroids)
        return nearest(self.dcn.encode(state.model, client.images), centroids)

    def final_model(self, state: DCNState) -> DCNState:
        """Return what clients need to assign samples: the encoder and the centroids."""
        return DCNState(part_of(state.model, "encoder"), centroids=state.centroids)


def _beside(known: DCNState, client: Client, source: Randomness) -> tuple[Tensor, Pulls]:
    """Return a client's samples and as many synthetic ones, and the aims of their latents."""
    synthetic, generator = required_centroids(known.synthetic), source.generator("beside")
    drawn = torch.randint(len(synthetic), (len(client),), generator=generator).to(synthetic.device)
    targets = known.targets
    if targets is not None:
        own = targets.new_full((len(client), targets.shape[1]), torch.nan)
        targets = torch.cat([own, targets[drawn]])
    return torch.cat([client.images, synthetic[drawn]]), (known.centroids, targets)
