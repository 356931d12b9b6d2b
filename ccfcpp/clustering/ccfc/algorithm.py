"""CCFC and CCFC++: cluster-contrastive federated clustering.

Source: Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation*, Section III. CCFC is CCFC++ with η = 0.

A run has two phases. In the pre-training rounds (which the paper leaves out and the authors' code
has) clients learn from random views, without clusters. In each cluster-contrastive round a client

1. labels its images with the nearest global centroid of the global model's representations,
2. trains on Eq. (10) with these pseudo-labels,
3. clusters its representations into k local centroids;

the server averages the models by the clients' sizes and clusters all local centroids into k global
ones.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ccfcpp.clustering.ccfc.centroids import CentroidRule, required_centroids
from ccfcpp.clustering.ccfc.exchanges import (
    CCFCState,
    GlobalEncoderCentroids,
    LloydStep,
    Training,
)
from ccfcpp.clustering.ccfc.local_training import LocalTrainer
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.core.config import ClusterConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Exchange
from ccfcpp.engine.client import Client
from ccfcpp.models.initialisation import build
from ccfcpp.models.stack.layout import ModelState


class CCFC:
    """The algorithm.

    Args:
        config: The run's configuration.
        make_model: Builds the network, without weights.
        clusters: Number of clusters k, at the clients and at the server.
        cohort: How many clients are trained together at most.
        device: Where the computation runs.
    """

    state_type = CCFCState

    def __init__(
        self,
        config: ClusterConfig,
        make_model: Callable[[], ContrastiveModel],
        clusters: int,
        cohort: int,
        device: torch.device,
    ) -> None:
        self.config = config
        self.make_model = make_model
        self.cohort = cohort
        self.rule = CentroidRule(config.centroids, clusters)
        self.trainer = LocalTrainer(make_model, config, cohort, device)

    @property
    def rounds(self) -> int:
        """Pre-training and cluster-contrastive rounds together."""
        return self.config.training.pretrain_rounds + self.config.training.rounds

    def has_converged(self, state: CCFCState) -> bool:
        """Never: all rounds are run."""
        return False

    def delivery(self, state: CCFCState) -> CCFCState:
        """The global model and the global centroids."""
        return state

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {"pretrain_rounds": self.config.training.pretrain_rounds, "cohort": self.cohort}

    def initial_state(self, randomness: Randomness) -> CCFCState:
        """A model with random weights, without centroids."""
        return CCFCState(self._random_model(randomness))

    def exchanges(self, number: int, state: CCFCState) -> Sequence[Exchange[CCFCState]]:
        """Training, then (as the configuration has it) centroids and their refinement."""
        pretrain_rounds = self.config.training.pretrain_rounds
        from_global = self.config.centroids.encoder == "global"
        # The last pre-training round gives the centroids that the first cluster round needs.
        centroids_due = number >= pretrain_rounds - 1
        find = GlobalEncoderCentroids(self.trainer, self.rule)
        refine = LloydStep(self.trainer, self.rule)
        train = Training(
            "pre-training" if number < pretrain_rounds else "cluster contrast",
            self.trainer,
            self.rule,
            self._pretrain if number < pretrain_rounds else self._contrast,
            with_centroids=centroids_due and not from_global,
        )
        exchanges: list[Exchange[CCFCState]] = []
        if number >= pretrain_rounds and state.centroids is None:
            # Without pre-training, or where nobody delivered centroids in its last round.
            exchanges.append(find)
        exchanges.append(train)
        if centroids_due and from_global:
            exchanges.append(find)
        if centroids_due:
            exchanges += [refine] * self.config.centroids.refine_steps
        return exchanges

    def assign(self, state: CCFCState, holder: Client) -> Tensor:
        """The cluster of each image by the global model and the global centroids.

        Args:
            state: A state with centroids.
            holder: Who holds the images. What the model makes of them is computed once for each of
                its versions, and kept in the holder's scratch.

        Returns:
            int64 tensor of shape (samples,).
        """
        seen = self.trainer.global_model.representations(state.model, state.version, holder)
        return self.rule.assign(seen.latents, required_centroids(state.centroids))

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        return self.config.centroids.assignment == "cosine"

    def represent(self, state: CCFCState, holder: Client) -> Tensor:
        """The global model's latents z, of shape (samples, latent)."""
        return self.trainer.global_model.representations(state.model, state.version, holder).latents

    def represent_by(self, model: ModelState, images: Tensor) -> Tensor:
        """A local model's latents z of images, of shape (images, latent)."""
        return self.trainer.global_model.of_other(model, images)

    def _random_model(self, randomness: Randomness) -> ModelState:
        model = build(self.make_model, randomness.generator("model"))
        # Counters stay on the CPU, where they are counted.
        return {
            name: entry.to(self.trainer.device) if entry.is_floating_point() else entry
            for name, entry in model.state_dict().items()
        }

    def _pretrain(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[float | None]:
        starts = [message.model] * len(clients)
        if message.version == 0 and self.config.model.initialization == "separate":
            starts = [self._random_model(randomness.of_client(client.id)) for client in clients]
        return self.trainer.pretrain(starts, message.model, message.version, clients, randomness)

    def _contrast(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> list[float | None]:
        centroids = required_centroids(message.centroids)
        model = self.trainer.global_model
        seen = [model.representations(message.model, message.version, c) for c in clients]
        labels = [self.rule.assign(own.latents, centroids) for own in seen]
        return self.trainer.contrast(
            message.model, seen, labels, len(centroids), clients, randomness
        )
