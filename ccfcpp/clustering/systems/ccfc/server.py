"""The server's work in CCFC and CCFC++: averaging models and clustering centroids."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ccfcpp.clustering.kmeans.centroids import (
    CentroidUpdate,
    ClusterSums,
    centroid_format,
    check_update,
)
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.messages import CENTROIDS, TrainingUpdate
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.fed_scan.server import FindCentres
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Metrics, ServerWork
from ccfcpp.engine.payload import check_samples
from ccfcpp.engine.update_format import Spec, UpdateFormat, format_of
from ccfcpp.models.state import ModelState, random_state


@dataclass(frozen=True)
class ModelAggregation(ServerWork[EncoderState, EncoderState, TrainingUpdate]):
    """The server's averaging of local models and clustering of local centroids."""

    exchange: Exchange[EncoderState, TrainingUpdate]
    rule: CentroidRule
    latent: int
    with_centroids: bool

    def broadcast(self, state: EncoderState) -> EncoderState:
        """Return the message to clients: the global model and the global centroids."""
        return state.public

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a model, and centroids if requested."""
        form = format_of(message.model, "model/")
        form |= {"samples": Spec(torch.int64), "loss": Spec(torch.float64, optional=True)}
        if self.with_centroids:
            local = centroid_format(self.rule.clusters, self.latent)
            form |= {f"local/{name}": spec for name, spec in local.items()}
        return form

    def check(
        self, message: EncoderState, update: TrainingUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse an update whose number of samples is not the senders'."""
        check_samples(update.samples, senders)
        if update.local is not None:
            check_update(update.local, senders)

    def aggregate(
        self, state: EncoderState, updates: Iterable[TrainingUpdate], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Average the models by size, cluster the centroids, and report the mean loss."""
        average = ModelAverage()
        local: list[CentroidUpdate] = []
        trained, total_loss = 0, 0.0
        for update in updates:
            with section("average"):
                average.add(update.model, update.samples)
            if update.local is not None:
                local.append(update.local)
            if update.loss is not None:
                trained += update.samples
                total_loss += update.samples * update.loss
        centroids = self.rule.global_centroids(local, randomness) if local else state.centroids
        # Over the samples of the clients that could train.
        figures = {"loss": total_loss / trained} if trained else {}
        after = replace(
            state, model=average.result(), version=state.version + 1, centroids=centroids
        )
        return after, figures

    def local_model(self, update: TrainingUpdate) -> ModelState:
        """Return the client's model."""
        return update.model


@dataclass(frozen=True)
class CentroidAggregation(ServerWork[EncoderState, EncoderState, CentroidUpdate]):
    """The server's clustering of local centroids of the *global* model's representations."""

    rule: CentroidRule
    latent: int
    exchange = CENTROIDS

    def broadcast(self, state: EncoderState) -> EncoderState:
        """Return the message to clients: the global model without the old centroids."""
        return replace(state.public, centroids=None)

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most k centroids and their sizes."""
        return centroid_format(self.rule.clusters, self.latent)

    def check(
        self, message: EncoderState, update: CentroidUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse centroids that cannot be those of the senders' images."""
        check_update(update, senders)

    def aggregate(
        self, state: EncoderState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Run k-means over all local centroids; the first centroids end pre-training."""
        centroids = self.rule.global_centroids(list(updates), randomness)
        descent = None if state.centroids is None else state.descent
        return replace(state, centroids=centroids, descent=descent), {}


@dataclass(frozen=True)
class HeadCentroids(FindCentres[EncoderState]):
    """Mean latents of the head's clusters, computed after pre-training by neighbours.

    The head has served, and the contrastive model gets a predictor.
    """

    make_model: Callable[[], ContrastiveModel] = field(kw_only=True)

    def aggregate(
        self, state: EncoderState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Set the first centroids and drop the head, which ends pre-training."""
        found, figures = super().aggregate(state, updates, randomness)
        device = state.model["head.weight"].device
        fresh = random_state(self.make_model, randomness.generator("model"), device)
        model = {name: state.model.get(name, entry) for name, entry in fresh.items()}
        return replace(found, model=model, version=state.version + 1, descent=None), figures
