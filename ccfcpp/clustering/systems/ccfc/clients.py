"""Client side of CCFC and CCFC++: local training and local centroids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ccfcpp.clustering.kmeans.centroids import CentroidUpdate
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.local_training import TrainingResult
from ccfcpp.clustering.systems.ccfc.messages import CENTROIDS, TrainingUpdate
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel
from ccfcpp.clustering.systems.ccfc.schedule import Schedule
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, Exchange, RefusedUpdateError, Task
from ccfcpp.models.steps import Training, train_side_by_side


@dataclass(frozen=True)
class TrainingWithCentroids(ClientWork[EncoderState, TrainingUpdate]):
    """Client side of local training, followed by k-means on the trained models' representations.

    Attributes:
        exchange: Pre-training, or cluster contrast.
        beginnings: One function for each client of a cohort (the clients that are trained at the
            same time). It prepares the client's training; its last argument tells whether the
            training also returns latents.
        rule: Maps representations to centroids.
        schedule: Tells which rounds end with centroids.
        least: Smallest number of images of a cluster whose centroid is sent.
        device: Device of the training.
    """

    exchange: Exchange[EncoderState, TrainingUpdate]
    beginnings: Sequence[
        Callable[[EncoderState, Client, Randomness, bool], Training[TrainingResult]]
    ]
    rule: CentroidRule
    schedule: Schedule
    least: int
    device: torch.device

    @property
    def cohort(self) -> int:  # type: ignore[override] # a constant in the base class
        """Number of clients that are trained side by side."""
        return len(self.beginnings)

    def local_updates(
        self, task: Task, message: EncoderState, clients: Sequence[Client], randomness: Randomness
    ) -> list[TrainingUpdate | RefusedUpdateError]:
        """Train each client; if the round asks for it, cluster its latents by the new model."""
        with_centroids = self.schedule.local_models_give_centroids(task.round)
        begun = [
            train(message, client, randomness, with_centroids)
            for train, client in zip(self.beginnings, clients, strict=False)
        ]
        trained = train_side_by_side(begun, self.device)
        local: Sequence[CentroidUpdate | RefusedUpdateError | None] = [None] * len(clients)
        if with_centroids:
            latents = [own.latents for own in trained if own.latents is not None]
            sources = [randomness.of_client(client.id) for client in clients]
            local = self.rule.local_centroids(latents, sources, self.least)
        return [
            centroids
            if isinstance(centroids, RefusedUpdateError)
            else TrainingUpdate(own.model, len(client), own.loss, centroids)
            for client, own, centroids in zip(clients, trained, local, strict=True)
        ]


@dataclass(frozen=True)
class GlobalEncoderCentroids(ClientWork[EncoderState, CentroidUpdate]):
    """Client side of local k-means on representations by the *global* model."""

    model: GlobalModel
    rule: CentroidRule
    least: int
    exchange = CENTROIDS

    def local_updates(
        self, task: Task, message: EncoderState, clients: Sequence[Client], randomness: Randomness
    ) -> list[CentroidUpdate | RefusedUpdateError]:
        """Run k-means on the global model's representations of each client's images."""
        latents = [self.model.representations(message, client).latents for client in clients]
        sources = [randomness.of_client(client.id) for client in clients]
        return self.rule.local_centroids(latents, sources, self.least)
