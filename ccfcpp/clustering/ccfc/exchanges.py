"""The exchanges of CCFC and CCFC++: what goes down, what clients do, what comes up."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.ccfc.centroids import (
    CentroidRule,
    CentroidUpdate,
    check_update,
    required_centroids,
)
from ccfcpp.clustering.ccfc.local_training import LocalTrainer
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.engine.algorithm import Figures, RefusedUpdateError
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import check_same_shapes
from ccfcpp.models.stack.layout import ModelState


@dataclass(frozen=True)
class CCFCState:
    """What the server knows.

    Attributes:
        model: The global model.
        version: How often the global model has changed.
        centroids: Global centroids of shape (at most k, latent); None before the first ones.
    """

    model: ModelState
    version: int = 0
    centroids: Tensor | None = None


@dataclass(frozen=True)
class TrainingUpdate:
    """What comes up after local training.

    Attributes:
        model: The local model.
        samples: Number of the client's samples, its weight in the average.
        loss: Mean training loss; None where the client could not train.
        local: Local centroids, where this exchange asks for them.
    """

    model: ModelState
    samples: int
    loss: float | None = None
    local: CentroidUpdate | None = None


@dataclass(frozen=True)
class LloydUpdate:
    """Sums that a server may add up without seeing a single client's.

    Attributes:
        sums: float64 of shape (k, latent): sum of the representations assigned to each centroid.
        counts: float64 of shape (k,): how many they are.
    """

    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Training:
    """The exchange in which clients train: pre-training, or cluster-contrastive training."""

    name: str
    trainer: LocalTrainer
    rule: CentroidRule
    train: Callable[[CCFCState, Sequence[Client], Randomness], list[float | None]]
    with_centroids: bool
    uses_memory = True
    travels = True

    @property
    def cohort(self) -> int:
        """As many clients as the trainer takes at a time."""
        return self.trainer.cohort

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model and the global centroids."""
        return state

    def local_updates(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[TrainingUpdate | RefusedUpdateError]:
        """Train, and cluster the trained models' representations where that is asked for."""
        losses = self.train(message, clients, randomness)
        models = [self.trainer.trained_model(index) for index in range(len(clients))]
        local = self._local_centroids(clients, randomness)
        return [
            found
            if isinstance(found, RefusedUpdateError)
            else TrainingUpdate(model, len(client), loss, found)
            for client, model, loss, found in zip(clients, models, losses, local, strict=True)
        ]

    def _local_centroids(
        self, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[CentroidUpdate | RefusedUpdateError | None]:
        if not self.with_centroids:
            return [None] * len(clients)
        latents = [
            self.trainer.local_representations(index, client).latents
            for index, client in enumerate(clients)
        ]
        sources = [randomness.of_client(client.id) for client in clients]
        return self.rule.local_centroids(latents, sources)

    def check(self, message: CCFCState, update: TrainingUpdate) -> None:
        """Refuse a model or centroids of other shapes than the global ones."""
        check_same_shapes(message.model, update.model, "model entry")
        if update.samples < 1:
            raise RefusedUpdateError(f"it claims {update.samples} samples")
        if self.with_centroids:
            if update.local is None:
                raise RefusedUpdateError("the local centroids are missing")
            check_update(update.local, self.rule.clusters, self.trainer.config.model.latent)

    def aggregate(
        self, state: CCFCState, updates: Iterable[TrainingUpdate], randomness: Randomness
    ) -> tuple[CCFCState, Figures]:
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
        return CCFCState(average.result(), state.version + 1, centroids), figures


@dataclass(frozen=True)
class GlobalEncoderCentroids:
    """The exchange in which clients cluster the *global* model's representations."""

    trainer: LocalTrainer
    rule: CentroidRule
    name: str = "centroids"
    cohort = 256  # their k-means goes side by side
    uses_memory = False
    travels = True

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model; the old centroids are of no use."""
        return replace(state, centroids=None)

    def local_updates(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[CentroidUpdate | RefusedUpdateError]:
        """k-means on what the global model makes of each client's images."""
        model = self.trainer.global_model
        latents = [
            model.representations(message.model, message.version, client).latents
            for client in clients
        ]
        sources = [randomness.of_client(client.id) for client in clients]
        return self.rule.local_centroids(latents, sources)

    def check(self, message: CCFCState, update: CentroidUpdate) -> None:
        """Refuse centroids of a wrong shape."""
        check_update(update, self.rule.clusters, self.trainer.config.model.latent)

    def aggregate(
        self, state: CCFCState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[CCFCState, Figures]:
        """k-means over all local centroids."""
        centroids = self.rule.global_centroids(list(updates), randomness)
        return replace(state, centroids=centroids), {}


@dataclass(frozen=True)
class LloydStep:
    """One step of Lloyd's k-means over all clients' samples, exact as if they lay in one place."""

    trainer: LocalTrainer
    rule: CentroidRule
    name: str = "refinement"
    cohort = 1
    uses_memory = False
    travels = True

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model and the centroids to refine."""
        return state

    def local_updates(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[LloydUpdate]:
        """Sum and count each client's representations for each global centroid."""
        return [self._sums(message, client) for client in clients]

    def _sums(self, message: CCFCState, client: Client) -> LloydUpdate:
        centroids = required_centroids(message.centroids)
        model = self.trainer.global_model
        seen = model.representations(message.model, message.version, client)
        labels = self.rule.assign(seen.latents, centroids)
        members = F.one_hot(labels, len(centroids)).double()
        points = self.rule.points(seen.latents).double()
        return LloydUpdate(members.T @ points, members.sum(dim=0))

    def check(self, message: CCFCState, update: LloydUpdate) -> None:
        """Refuse sums of a wrong shape."""
        centroids = required_centroids(message.centroids)
        expected = LloydUpdate(centroids.double(), centroids[:, 0].double())
        check_same_shapes(expected, update, "refinement")

    def aggregate(
        self, state: CCFCState, updates: Iterable[LloydUpdate], randomness: Randomness
    ) -> tuple[CCFCState, Figures]:
        """Each centroid becomes the mean of its members; one without members stays as it is."""
        centroids = required_centroids(state.centroids)
        sums = torch.zeros_like(centroids, dtype=torch.float64)
        counts = sums.new_zeros(len(centroids))
        for update in updates:
            sums += update.sums
            counts += update.counts
        means = (sums / counts.clamp(min=1).unsqueeze(1)).to(centroids.dtype)
        moved = torch.where(counts.unsqueeze(1) > 0, means, centroids)
        return replace(state, centroids=moved), {}
