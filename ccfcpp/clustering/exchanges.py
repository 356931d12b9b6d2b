"""The exchanges of CCFC and CCFC++: what goes down, what clients do, what comes up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.centroids import CentroidRule, CentroidUpdate
from ccfcpp.clustering.local_training import LocalTrainer
from ccfcpp.engine.aggregation import ModelState, average_models
from ccfcpp.engine.algorithm import RefusedUpdateError
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import check_same_shapes
from ccfcpp.errors import FederationError
from ccfcpp.randomness import Randomness


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
    train: Callable[[CCFCState, Client, Randomness], float | None]
    with_centroids: bool

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model and the global centroids."""
        return state

    def local_update(
        self, message: CCFCState, client: Client, randomness: Randomness
    ) -> TrainingUpdate:
        """Train, and cluster the trained model's representations where that is asked for."""
        loss = self.train(message, client, randomness)
        local = None
        if self.with_centroids:
            latents = self.trainer.local_representations(client).latents
            local = self.rule.local_centroids(latents, randomness)
        return TrainingUpdate(self.trainer.trained_model(), len(client), loss, local)

    def check(self, message: CCFCState, update: TrainingUpdate) -> None:
        """Refuse a model or centroids of other shapes than the global ones."""
        check_same_shapes(message.model, update.model, "model entry")
        if update.samples < 1:
            raise RefusedUpdateError(f"it claims {update.samples} samples")
        if self.with_centroids:
            if update.local is None:
                raise RefusedUpdateError("the local centroids are missing")
            self.rule.check_centroids(update.local, self.trainer.config.model.latent)

    def aggregate(
        self, state: CCFCState, updates: Sequence[TrainingUpdate], randomness: Randomness
    ) -> CCFCState:
        """Average the models by size; cluster the centroids where there are any."""
        sizes = [update.samples for update in updates]
        model = average_models([update.model for update in updates], sizes)
        centroids = state.centroids
        if self.with_centroids:
            local = [update.local for update in updates if update.local is not None]
            centroids = self.rule.global_centroids(local, randomness)
        return CCFCState(model, state.version + 1, centroids)

    def summarise(self, updates: Sequence[TrainingUpdate]) -> dict[str, float]:
        """Mean loss over the samples of the clients that trained."""
        trained = [(u.samples, u.loss) for u in updates if u.loss is not None]
        total = sum(samples for samples, _ in trained)
        return {"loss": sum(n * loss for n, loss in trained) / total} if total else {}


@dataclass(frozen=True)
class GlobalEncoderCentroids:
    """The exchange in which clients cluster the *global* model's representations."""

    trainer: LocalTrainer
    rule: CentroidRule
    name: str = "centroids"

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model; the old centroids are of no use."""
        return replace(state, centroids=None)

    def local_update(
        self, message: CCFCState, client: Client, randomness: Randomness
    ) -> CentroidUpdate:
        """k-means on what the global model makes of the client's images."""
        seen = self.trainer.global_representations(message.model, message.version, client)
        return self.rule.local_centroids(seen.latents, randomness)

    def check(self, message: CCFCState, update: CentroidUpdate) -> None:
        """Refuse centroids of a wrong shape."""
        self.rule.check_centroids(update, self.trainer.config.model.latent)

    def aggregate(
        self, state: CCFCState, updates: Sequence[CentroidUpdate], randomness: Randomness
    ) -> CCFCState:
        """k-means over all local centroids."""
        return replace(state, centroids=self.rule.global_centroids(updates, randomness))

    def summarise(self, updates: Sequence[CentroidUpdate]) -> dict[str, float]:
        """Nothing to report."""
        return {}


@dataclass(frozen=True)
class LloydStep:
    """One step of Lloyd's k-means over all clients' samples, exact as if they lay in one place."""

    trainer: LocalTrainer
    rule: CentroidRule
    name: str = "refinement"

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model and the centroids to refine."""
        return state

    def local_update(
        self,
        message: CCFCState,
        client: Client,
        randomness: Randomness,
    ) -> LloydUpdate:
        """Sum and count the client's representations for each global centroid."""
        centroids = required_centroids(message.centroids)
        seen = self.trainer.global_representations(message.model, message.version, client)
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
        self,
        state: CCFCState,
        updates: Sequence[LloydUpdate],
        randomness: Randomness,
    ) -> CCFCState:
        """Each centroid becomes the mean of its members; one without members stays as it is."""
        centroids = required_centroids(state.centroids)
        sums = torch.stack([update.sums for update in updates]).sum(dim=0)
        counts = torch.stack([update.counts for update in updates]).sum(dim=0).unsqueeze(1)
        means = (sums / counts.clamp(min=1)).to(centroids.dtype)
        return replace(state, centroids=torch.where(counts > 0, means, centroids))

    def summarise(self, updates: Sequence[LloydUpdate]) -> dict[str, float]:
        """Nothing to report."""
        return {}


def required_centroids(centroids: Tensor | None) -> Tensor:
    """The centroids, where some client has delivered them.

    Raises:
        FederationError: None has.
    """
    if centroids is None:
        raise FederationError(
            "no client has delivered centroids that can be used: see the refused updates above"
        )
    return centroids
