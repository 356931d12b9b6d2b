"""CCFC and CCFC++: cluster-contrastive federated clustering.

Source: Yan, Liu, Ning and Zhang, *CCFC++: Enhancing Federated Clustering through Feature
Decorrelation*, Section III. CCFC is CCFC++ with η = 0.

A run has two phases. In the pre-training rounds (not in the paper, but in the authors' code)
clients learn from random views of images, without clusters. In each cluster-contrastive round a
client

1. labels its images with the nearest global centroid of the global model's representations,
2. trains on Eq. (10) with these pseudo-labels,
3. clusters its representations into k local centroids;

the server averages the models by the clients' sizes and clusters all local centroids into k global
ones.

That is the default, local steps. In synchronised steps (module ``synchronised``) each loss is over
the batches of all clients. Pre-training may also be that of Fed-SCAN, on pairs of neighbours.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState, MoveCentroids, SumMembers
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.clients import GlobalEncoderCentroids, TrainingWithCentroids
from ccfcpp.clustering.systems.ccfc.config import ModelConfig
from ccfcpp.clustering.systems.ccfc.local_training import ContrastiveTrainer
from ccfcpp.clustering.systems.ccfc.messages import local_training_exchange, refinement_exchange
from ccfcpp.clustering.systems.ccfc.network import NeighbourModel, make_model
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel
from ccfcpp.clustering.systems.ccfc.schedule import Schedule, training_settings
from ccfcpp.clustering.systems.ccfc.server import (
    CentroidAggregation,
    HeadCentroids,
    ModelAggregation,
)
from ccfcpp.clustering.systems.ccfc.starts import (
    STARTS,
    FineCentroids,
    SumStarts,
    fine_rule,
    start_works,
)
from ccfcpp.clustering.systems.ccfc.synchronised import SynchronisedTraining
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan, scan_settings
from ccfcpp.clustering.systems.fed_scan.messages import CENTRES
from ccfcpp.core.config import ComputeConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, AnyServerWork, ClientSide
from ccfcpp.engine.threads import Cohort, choose_cohort, choose_threads, threaded
from ccfcpp.models.network import FlatNetwork, training_bytes
from ccfcpp.models.pooled import rounding_dtype
from ccfcpp.models.state import random_state


class CCFC(ClusteringAlgorithm[EncoderState]):
    """CCFC and CCFC++, which differ in η, the weight of the loss term that decorrelates latents."""

    state_type = EncoderState

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        self.problem = problem
        self.training = training_settings(config)
        self.centroids = config.section(CentroidConfig)
        self.sends_centroids = self.centroids.search == "k-means"
        # With synchronised steps, or sums instead of centroids, all clients have the global model.
        local = self.training.steps == "local" and self.centroids.encoder == "local"
        one_model = not (local and self.sends_centroids)
        first = self.centroids.first_encoder == "global"
        self.schedule = Schedule(self.training, from_global=one_model, first_from_global=first)
        self.rounds = self.schedule.rounds
        self.model = config.section(ModelConfig)
        self.make_model = partial(make_model, config, problem.image_shape)
        self.rule = CentroidRule(self.centroids, problem.clusters * self._centroids_per_cluster())
        with_centroids = not self.schedule.from_global
        self.pretraining = local_training_exchange("pre-training", with_centroids)
        self.contrast = local_training_exchange("cluster contrast", with_centroids)
        self.refinement = refinement_exchange(self.rule.unit_length)
        # The clients of this process and the computation of scores share these representations.
        precision = config.section(ComputeConfig).precision
        self.global_model = GlobalModel(
            FlatNetwork(self.make_model, problem.device, trained=False, precision=precision)
        )
        by_neighbours = self.training.pretraining == "neighbours"
        self.scored_every = scan_settings(problem).period if by_neighbours else 1
        self.by_angle = self.centroids.assignment == "cosine"
        self.by_model = self.global_model.latents_by

    def _centroids_per_cluster(self) -> int:
        """Return the number of centroids per cluster: 1, or the over-clusters per cluster."""
        # k-means would find new centroids in each round, without a merge.
        if self.training.pretraining == "siamese" or self.sends_centroids:
            return 1
        return scan_settings(self.problem).overclustering

    @cached_property
    def neighbour_pretraining(self) -> FedScan | None:
        """Fed-SCAN, which does the pre-training by neighbours; None with siamese pre-training."""
        if self.training.pretraining == "siamese":
            return None
        precision = rounding_dtype(
            self.problem.config.section(ComputeConfig).precision, self.problem.device
        )
        clusters = self.rule.clusters
        return FedScan(self.problem, lambda: NeighbourModel(self.make_model(), clusters, precision))

    @cached_property
    def synchronised(self) -> SynchronisedTraining | None:
        """Object that trains in synchronised steps over all clients; None with local steps."""
        if self.training.steps == "local":
            return None
        return SynchronisedTraining(self.problem, self.make_model, self.rule, self.global_model)

    def final_model(self, state: EncoderState) -> EncoderState:
        """Return what clients need to assign images: the global model and the global centroids."""
        return state.public

    def describe(self) -> dict[str, object]:
        """Return what a summary of the run shows: pre-training rounds, and what clients send."""
        shown: dict[str, object] = {"pretrain_rounds": self.training.pretrain_rounds}
        if self.synchronised and not self.sends_centroids:
            shown["sends"] = "sums of statistics and gradients"
        return shown

    def summarize(self, state: EncoderState) -> dict[str, object]:
        """Return the number of clusters that pre-training chose; nothing if k was given."""
        return self.neighbour_pretraining.summarize(state) if self.neighbour_pretraining else {}

    def initial_state(self, randomness: Randomness) -> EncoderState:
        """Return the state before the first round: random weights, and no centroids."""
        scan, generator = self.neighbour_pretraining, randomness.generator("model")
        make = scan.make_network if scan else self.make_model
        model = random_state(make, generator, self.problem.device)
        return EncoderState(model, groups=scan.single_groups() if scan else None)

    def _head(self, state: EncoderState) -> FedScan | None:
        """Return Fed-SCAN if the model has the classification head of its pre-training."""
        return self.neighbour_pretraining if "head.weight" in state.model else None

    def knows_clusters(self, state: EncoderState) -> bool:
        """Return whether images can be assigned: by centroids, or by the head of pre-training."""
        head = self._head(state)
        return head.knows_clusters(state) if head else state.centroids is not None

    def exchanges(self, number: int, state: EncoderState) -> Sequence[AnyServerWork]:
        """Return a round's exchanges: training, then centroids and refinement if configured."""
        pretrains = self.schedule.is_pretraining(number)
        works: list[AnyServerWork] = []
        if not pretrains and state.centroids is None:
            # There was no pre-training, or no client sent centroids in its last round.
            works += self._centroid_search(self._head(state) is not None, first=True)
        works += self._training(number)
        if self.schedule.ends_with_centroids(number):
            by_head = pretrains and self.neighbour_pretraining is not None
            searches = self.sends_centroids or (pretrains and self.centroids.starts > 1)
            by_model = self.schedule.global_model_gives_centroids(number) and searches
            if by_head or by_model:
                works += self._centroid_search(by_head, first=pretrains)
            works += [MoveCentroids(self.refinement)] * self.centroids.refine_steps
        return works

    def plan(self, state: EncoderState) -> list[Sequence[AnyServerWork]]:
        """Return the exchanges of every round of a run in which nothing fails."""
        first, later = state, replace(state, centroids=torch.empty(0))
        return [self.exchanges(n, later if n else first) for n in range(self.rounds)]

    def _training(self, number: int) -> Sequence[AnyServerWork]:
        """Return the training exchanges of a round."""
        pretrains = self.schedule.is_pretraining(number)
        if pretrains and self.neighbour_pretraining:
            return self.neighbour_pretraining.training_exchanges(number)
        if self.synchronised:
            works = self.synchronised
            return works.pretraining_works() if pretrains else works.contrast_works(number)
        exchange = self.pretraining if pretrains else self.contrast
        with_centroids = self.schedule.local_models_give_centroids(number)
        return [ModelAggregation(exchange, self.rule, self.model.latent, with_centroids)]

    def _centroid_search(self, by_head: bool, first: bool) -> list[AnyServerWork]:
        """Return the exchanges for centroids: cluster means if ``by_head``, else k-means.

        For the ``first`` centroids, several starts of k-means may be compared.
        """
        latent = self.model.latent
        if by_head:
            return [HeadCentroids(latent, self.rule.clusters, make_model=self.make_model)]
        if first and self.centroids.starts > 1:
            return start_works(self.rule, latent)
        return [CentroidAggregation(self.rule, latent)]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: training, centroids, and sums that refine them."""
        works: list[AnyClientWork] = [SumMembers(self.refinement, context, self._members)]
        searches: list[GlobalEncoderCentroids] = []
        if self.sends_centroids:
            searches.append(GlobalEncoderCentroids(self.global_model, self.rule, context.least))
        if self.centroids.starts > 1:
            searches.append(FineCentroids(self.global_model, fine_rule(self.rule), context.least))
            works.append(SumStarts(STARTS, context, self._points))
        wanted, device = self.problem.config.section(ComputeConfig).cohort, self.problem.device
        count = choose_threads(wanted, context.together, device)
        works += [threaded([search] * count) for search in searches]
        if self.neighbour_pretraining:
            works += self.neighbour_pretraining.client_works(context)
            works.append(SumMembers(CENTRES, context, self._members_by_head))
        if self.synchronised:
            return ClientSide.of(*works, *self.synchronised.client_works(context))
        cohort = self._cohort(context)
        parts = self.problem, self.make_model, self.global_model, self.rule
        threads = [
            [ContrastiveTrainer(*parts, context.least) for _ in range(cohort.together)]
            for _ in range(cohort.threads)
        ]
        shared = self.rule, self.schedule, context.least, self.problem.device
        pretraining = [
            TrainingWithCentroids(self.pretraining, [own.pretrain for own in thread], *shared)
            for thread in threads
        ]
        contrast = [
            TrainingWithCentroids(self.contrast, [own.contrast for own in thread], *shared)
            for thread in threads
        ]
        return ClientSide.of(
            *works, threaded(pretraining), threaded(contrast), cohort=cohort.clients
        )

    def _points(self, message: EncoderState, client: Client) -> Tensor:
        return self.rule.points(self.represent(message, client))

    def _members(self, message: EncoderState, client: Client) -> tuple[Tensor, Tensor, int]:
        """Return a client's points (samples, d), the centroid of each, and how many there are."""
        latents = self.represent(message, client)
        centroids = required_centroids(message.centroids)
        return self.rule.points(latents), self.rule.assign(latents, centroids), len(centroids)

    def _members_by_head(self, message: EncoderState, client: Client) -> tuple[Tensor, Tensor, int]:
        """Return a client's latents, the head's over-cluster of each, and their number."""
        assert self.neighbour_pretraining
        latents = self.neighbour_pretraining.space.latents(message, client)
        clusters = self.neighbour_pretraining.space.predictions(message, client).argmax(dim=1)
        return latents, clusters, self.rule.clusters

    def _cohort(self, context: ClientContext) -> Cohort:
        """Return how many clients are trained at the same time, and in how many threads."""
        problem = self.problem
        batch = min(self.training.batch_size, context.largest)
        views = 2 if self.training.pretrain_rounds else 1
        bytes_of_one = training_bytes(self.make_model, problem.image_shape, batch, views)
        wanted = problem.config.section(ComputeConfig).cohort
        return choose_cohort(wanted, context.together, bytes_of_one, problem.device)

    def centres(self, state: EncoderState) -> Tensor | None:
        """Return the mean of each cluster's centroids, (k, latent); None if there are none yet."""
        if state.centroids is None or state.groups is None:
            return state.centroids
        groups = state.groups.to(state.centroids.device)
        numbers = groups.bincount()
        sums = torch.zeros(len(numbers), self.model.latent).to(state.centroids)
        sums.index_add_(0, groups, state.centroids)
        return sums / numbers.clamp(min=1).unsqueeze(1)

    def probabilities(self, known: EncoderState, client: Client) -> Tensor | None:
        """Return the head's probabilities (samples, k); None if the model has no head."""
        head = self._head(known)
        return head.probabilities(known, client) if head else None

    def assign(self, state: EncoderState, client: Client) -> Tensor:
        """Return each image's cluster, by the head or the nearest centroid: int64 (samples,)."""
        if head := self._head(state):
            return head.assign(state, client)
        seen = self.global_model.representations(state, client)
        labels = self.rule.assign(seen.latents, required_centroids(state.centroids))
        return labels if state.groups is None else state.groups.to(labels.device)[labels]

    def represent(self, state: EncoderState, client: Client) -> Tensor:
        """Return the global model's latents z of a client's images, of shape (samples, latent)."""
        if head := self._head(state):
            return head.represent(state, client)
        return self.global_model.representations(state, client).latents
