"""Server side of CCFC and CCFC++: averaging models and clustering centroids."""

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
from ccfcpp.engine.synchronised.contract import current_version
from ccfcpp.engine.update_format import Spec, UpdateFormat, format_of
from ccfcpp.models.state import ModelState, random_state


@dataclass(frozen=True)
class ModelAggregation(ServerWork[EncoderState, EncoderState, TrainingUpdate]):
    """Server side of local training: averages models, and clusters local centroids if any."""

    exchange: Exchange[EncoderState, TrainingUpdate]
    rule: CentroidRule
    latent: int
    with_centroids: bool

    def broadcast(self, state: EncoderState) -> EncoderState:
        """Return the message to clients: the global model and the global centroids."""
        return state.public

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a model, and centroids if requested."""
        fields = format_of(message.model, "model/")
        fields |= {"samples": Spec(torch.int64), "loss": Spec(torch.float64, optional=True)}
        if self.with_centroids:
            local = centroid_format(self.rule.clusters, self.latent)
            fields |= {f"local/{name}": spec for name, spec in local.items()}
        return fields

    def check(
        self, message: EncoderState, update: TrainingUpdate, senders: Sequence[Member]
    ) -> None:
        """Refuse an update with a wrong number of samples, or with impossible centroids."""
        check_samples(update.samples, senders)
        if update.local is not None:
            check_update(update.local, senders)

    def aggregate(
        self, state: EncoderState, updates: Iterable[TrainingUpdate], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Average the models weighted by samples, cluster the centroids, report the mean loss."""
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
        # The mean is over the samples of clients that could train.
        metrics = {"loss": total_loss / trained} if trained else {}
        after = replace(
            state, model=average.result(), version=state.version + 1, centroids=centroids
        )
        return after, metrics

    def local_model(self, update: TrainingUpdate) -> ModelState:
        """Return the trained local model that a client's update holds."""
        return update.model


@dataclass(frozen=True)
class CentroidAggregation(ServerWork[EncoderState, EncoderState, CentroidUpdate]):
    """Server side of clustering by the *global* model: k-means over the clients' centroids."""

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
        """Run k-means over all local centroids; the first time, drop the optimizer's state, too."""
        centroids = self.rule.global_centroids(list(updates), randomness)
        if state.centroids is None:
            state = replace(state, version=current_version(state), descent=None)
        return replace(state, centroids=centroids), {}


@dataclass(frozen=True)
class HeadCentroids(FindCentres[EncoderState]):
    """Server side of the first centroids after pre-training by neighbours.

    They are the mean latents of the clusters that the classification head assigns. A predictor
    then replaces the head.
    """

    make_model: Callable[[], ContrastiveModel] = field(kw_only=True)

    def aggregate(
        self, state: EncoderState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Set the first centroids, and replace the head by a predictor with random weights."""
        after, metrics = super().aggregate(state, updates, randomness)
        device = state.model["head.weight"].device
        fresh = random_state(self.make_model, randomness.generator("model"), device)
        model = {name: state.model.get(name, entry) for name, entry in fresh.items()}
        version = current_version(state) + 1
        return replace(after, model=model, version=version, descent=None), metrics
