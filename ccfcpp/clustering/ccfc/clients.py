"""What the clients of CCFC and CCFC++ are asked for."""

from abc import abstractmethod
from collections.abc import Sequence

from ccfcpp.clustering.ccfc.centroids import CentroidRule, CentroidUpdate
from ccfcpp.clustering.ccfc.config import ModelConfig
from ccfcpp.clustering.ccfc.local_training import ContrastiveTrainer, Trained
from ccfcpp.clustering.ccfc.messages import CENTROIDS, CCFCState, TrainingUpdate
from ccfcpp.clustering.ccfc.representations import GlobalModel
from ccfcpp.clustering.ccfc.schedule import Schedule
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, Exchange, RefusedUpdateError, Task
from ccfcpp.models.initialisation import random_state
from ccfcpp.models.state import ModelState


class _Training(ClientWork[CCFCState, TrainingUpdate]):
    """Local training, and the centroids of what the trained models make of the images.

    Args:
        exchange: Pre-training, or cluster contrast.
        trainer: What trains.
        rule: How representations become centroids.
        schedule: Which rounds end with such centroids.
        least: The fewest images over which a client sends a centroid.
    """

    def __init__(
        self,
        exchange: Exchange[CCFCState, TrainingUpdate],
        trainer: ContrastiveTrainer,
        rule: CentroidRule,
        schedule: Schedule,
        least: int,
    ) -> None:
        self.exchange = exchange
        self.trainer = trainer
        self.rule = rule
        self.schedule = schedule
        self.least = least
        self.cohort = trainer.cohort

    @abstractmethod
    def train(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness, see: bool
    ) -> list[Trained]:
        """Train a cohort; with ``see`` also see what the models then make of the images."""

    def local_updates(
        self, task: Task, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[TrainingUpdate | RefusedUpdateError]:
        """Train, and cluster the trained models' representations where that is asked for."""
        with_centroids = self.schedule.trained_give_centroids(task.round)
        trained = self.train(message, clients, randomness, with_centroids)
        local: Sequence[CentroidUpdate | RefusedUpdateError | None] = [None] * len(clients)
        if with_centroids:
            latents = [own.latents for own in trained if own.latents is not None]
            local = self.rule.local_centroids(latents, _sources(clients, randomness), self.least)
        return [
            found
            if isinstance(found, RefusedUpdateError)
            else TrainingUpdate(own.model, len(client), own.loss, found)
            for client, own, found in zip(clients, trained, local, strict=True)
        ]


class Pretraining(_Training):
    """Contrastive pre-training on random views."""

    def train(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness, see: bool
    ) -> list[Trained]:
        """Train from the global model; at first from weights of each client's own."""
        starts = [message.model] * len(clients)
        separate = self.trainer.config.section(ModelConfig).initialization == "separate"
        if message.version == 0 and separate:
            starts = [self._random_model(source) for source in _sources(clients, randomness)]
        return self.trainer.pretrain(
            starts, message.model, message.version, clients, randomness, see
        )

    def _random_model(self, randomness: Randomness) -> ModelState:
        generator = randomness.generator("model")
        return random_state(self.trainer.make_model, generator, self.trainer.device)


class ClusterContrast(_Training):
    """Cluster-contrastive training with pseudo-labels, Eqs. (1) and (10) of the paper."""

    def train(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness, see: bool
    ) -> list[Trained]:
        """Label the images by the global centroids, and train on these labels."""
        centroids = required_centroids(message.centroids)
        model = self.trainer.global_model
        seen = [model.representations(message.model, message.version, c) for c in clients]
        labels = [self.rule.assign(own.latents, centroids) for own in seen]
        return self.trainer.contrast(
            message.model, seen, labels, len(centroids), clients, randomness, see
        )


class GlobalEncoderCentroids(ClientWork[CCFCState, CentroidUpdate]):
    """Clients cluster the *global* model's representations.

    Args:
        model: The global model.
        rule: How representations become centroids.
        least: The fewest images over which a client sends a centroid.
    """

    exchange = CENTROIDS

    def __init__(self, model: GlobalModel, rule: CentroidRule, least: int) -> None:
        self.model = model
        self.rule = rule
        self.least = least

    def local_updates(
        self, task: Task, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[CentroidUpdate | RefusedUpdateError]:
        """k-means on what the global model makes of each client's images."""
        latents = [
            self.model.representations(message.model, message.version, client).latents
            for client in clients
        ]
        return self.rule.local_centroids(latents, _sources(clients, randomness), self.least)


def _sources(clients: Sequence[Client], randomness: Randomness) -> list[Randomness]:
    return [randomness.of_client(client.id) for client in clients]
