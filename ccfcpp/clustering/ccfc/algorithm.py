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

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, ModelComparison, Problem
from ccfcpp.clustering.ccfc.centroids import CentroidRule
from ccfcpp.clustering.ccfc.clients import (
    ClusterContrast,
    GlobalEncoderCentroids,
    LloydSums,
    Pretraining,
)
from ccfcpp.clustering.ccfc.config import ModelConfig, TrainingConfig
from ccfcpp.clustering.ccfc.local_training import ContrastiveTrainer
from ccfcpp.clustering.ccfc.messages import CLUSTER_CONTRAST, PRETRAINING, CCFCState
from ccfcpp.clustering.ccfc.network import model_maker
from ccfcpp.clustering.ccfc.representations import GlobalModel
from ccfcpp.clustering.ccfc.schedule import Schedule
from ccfcpp.clustering.ccfc.server import CentroidAggregation, LloydAggregation, ModelAggregation
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Crew
from ccfcpp.engine.exchange import ClientSide, ServerWork
from ccfcpp.models.initialisation import random_state
from ccfcpp.models.stack.capacity import cohort_size
from ccfcpp.models.stack.stacked import ModelStack, training_bytes


class CCFC(ClusteringAlgorithm[CCFCState]):
    """The algorithm.

    Args:
        problem: What it is made for.
    """

    state_type = CCFCState

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        self.problem = problem
        self.training = config.section(TrainingConfig)
        self.centroids = config.section(CentroidConfig)
        self.schedule = Schedule(self.training, self.centroids.encoder == "global")
        self.rounds = self.schedule.rounds
        self.make_model = model_maker(config.section(ModelConfig), problem.image_shape)
        self.rule = CentroidRule(self.centroids, problem.clusters)
        # The global model's representations serve the scores and the clients of this process.
        precision = config.compute.precision
        self.global_model = GlobalModel(
            ModelStack(self.make_model, 1, problem.device, trained=False, precision=precision)
        )
        self.by_angle = self.centroids.assignment == "cosine"
        self.comparison = ModelComparison[CCFCState](
            lambda state: state.model, self.global_model.of_other
        )

    def delivery(self, state: CCFCState) -> CCFCState:
        """The global model and the global centroids."""
        return state

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {"pretrain_rounds": self.training.pretrain_rounds}

    def initial_state(self, randomness: Randomness) -> CCFCState:
        """A model with random weights, without centroids."""
        generator = randomness.generator("model")
        return CCFCState(random_state(self.make_model, generator, self.problem.device))

    def exchanges(self, number: int, state: CCFCState) -> Sequence[ServerWork[CCFCState, Any, Any]]:
        """Training, then (as the configuration has it) centroids and their refinement."""
        latent = self.problem.config.section(ModelConfig).latent
        pretrains = self.schedule.pretrains(number)
        find = CentroidAggregation(self.rule, latent)
        train = ModelAggregation(
            PRETRAINING if pretrains else CLUSTER_CONTRAST,
            self.rule,
            latent,
            self.schedule.trained_give_centroids(number),
        )
        works: list[ServerWork[CCFCState, Any, Any]] = []
        if not pretrains and state.centroids is None:
            # Without pre-training, or where nobody delivered centroids in its last round.
            works.append(find)
        works.append(train)
        if self.schedule.ends_with_centroids(number):
            works += [find] if self.schedule.from_global else []
            works += [LloydAggregation()] * self.centroids.refine_steps
        return works

    def client_side(self, crew: Crew) -> ClientSide:
        """Both kinds of training, centroids, and sums for their refinement."""
        cohort = self._cohort(crew)
        trainer = ContrastiveTrainer(
            self.make_model, self.problem.config, cohort, self.problem.device, self.global_model
        )
        return ClientSide.of(
            Pretraining(trainer, self.rule, self.schedule),
            ClusterContrast(trainer, self.rule, self.schedule),
            GlobalEncoderCentroids(self.global_model, self.rule),
            LloydSums(self.global_model, self.rule),
            cohort=cohort,
        )

    def _cohort(self, crew: Crew) -> int:
        problem = self.problem
        batch = min(self.training.batch_size, crew.largest)
        views = 2 if self.training.pretrain_rounds else 1
        bytes_of_one = training_bytes(self.make_model, problem.image_shape, batch, views)
        wanted = problem.config.compute.cohort
        return cohort_size(wanted, crew.together, bytes_of_one, problem.device)

    def assign(self, state: CCFCState, holder: Client) -> Tensor:
        """The cluster of each image by the global model and the global centroids.

        Args:
            state: A state with centroids.
            holder: Who holds the images. What the model makes of them is computed once for each of
                its versions, and kept in the holder's scratch.

        Returns:
            int64 tensor of shape (samples,).
        """
        seen = self.global_model.representations(state.model, state.version, holder)
        return self.rule.assign(seen.latents, required_centroids(state.centroids))

    def represent(self, state: CCFCState, holder: Client) -> Tensor:
        """The global model's latents z, of shape (samples, latent)."""
        return self.global_model.representations(state.model, state.version, holder).latents
