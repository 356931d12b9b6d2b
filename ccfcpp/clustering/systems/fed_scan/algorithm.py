"""Fed-SCAN: clustering by neighbours within each client, in steps over all clients together.

The objective is SCAN's (``objective``). Images are coupled through a few
sums alone: mean and variance of the latents, and the mean prediction. Clients add these up in each
step (``ccfcpp.engine.synchronised``), so that a step is the centralised step over the union of all
batches, for every partition. The partition decides only which images can be neighbours, and
neighbours within a client are purer the more a client's images are alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem, describe_chosen_number
from ccfcpp.clustering.kmeans.lloyd import EncoderState, SumMembers
from ccfcpp.clustering.systems.fed_scan.clients import Pairs, SumTransitions
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig, VectorViewsConfig
from ccfcpp.clustering.systems.fed_scan.merging import FOLDS, OVERCLUSTERS
from ccfcpp.clustering.systems.fed_scan.messages import CENTRES, OF_NEIGHBOURS
from ccfcpp.clustering.systems.fed_scan.neighbours import OF_IMAGES
from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork, ScanNetwork
from ccfcpp.clustering.systems.fed_scan.objective import PREDICTIONS, program
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.server import FindCentres, MergeOverclusters, snapshot
from ccfcpp.clustering.systems.fed_scan.views import AnyViews, VectorViews, Views
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig, PrecisionConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, AnyServerWork, ClientSide
from ccfcpp.engine.synchronised.contract import D
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.optimizers import Adam, Muon, cosine_decay
from ccfcpp.engine.synchronised.server import StepExchange
from ccfcpp.engine.synchronised.tape import Lags
from ccfcpp.models.pooled import Norm, Program, rounding_dtype
from ccfcpp.models.state import random_state

_HEAD = ("head.weight",)
"""Matrices that are no hidden layers, which Muon is for."""

_TRIES = 5
"""Rounds in a row in which a merge is tried again. If clients come and go, centres are found in
as many rounds at the end."""


def config_of(problem: Problem) -> ScanConfig:
    """Return the section ``scan``, with over-clusters as an unknown number of clusters needs."""
    config = problem.config.section(ScanConfig)
    return config.model_copy(update={"overclustering": OVERCLUSTERS}) if problem.fewest else config


class FedScan(ClusteringAlgorithm[EncoderState]):
    """Fed-SCAN: a clustering network trained on pairs of neighbours, in steps over all clients.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        make_network: Builds another network than ``ScanNetwork``.

    Raises:
        UsageError: The first neighbours are by what vectors do not have.
    """

    state_type = EncoderState

    def __init__(
        self, problem: Problem, make_network: Callable[[], ClusterNetwork] | None = None
    ) -> None:
        self.problem = problem
        self.config = config_of(problem)
        first = self.config.first_neighbours
        if problem.has_vectors and first in OF_IMAGES:
            raise UsageError(
                KeyValue("scan.first_neighbours", first),
                " looks at images, and the data are vectors: take pixels or centred",
            )
        self.views = _views(problem)
        self.rounds = self.config.rounds
        self.scored_every = self.config.period
        make: Callable[[], ClusterNetwork] = make_network or partial(
            ScanNetwork,
            self.config,
            problem.image_shape,
            problem.clusters,
            rounding_dtype(problem.config.section(PrecisionConfig).precision, problem.device),
        )
        self.make_network: Callable[[], ClusterNetwork] = (
            (lambda: make().with_merge()) if self._trains_merged() else make
        )
        self.space = LatentSpace(self.make_network, problem.device)
        self.overclusters = self.space.network.head.out_features
        self.merges = self.overclusters != problem.clusters
        self.folds = FOLDS if problem.fewest else 1
        self.descent = Descent(
            "step",
            self.space.network,
            self._rehearsal,
            self._optimizer(),
            self.config.batch,
            problem.samples,
            self._largest(),
            precision=torch.bfloat16 if self.config.precision == "bfloat16" else None,
            lags=self._lags(),
            exact_steps=self.config.exact_steps,
            uses_memory=True,
            # To and fro at each normalisation, the predictions, and the gradient of the model. To
            # rehearse a step before the first one would make runs start slowly.
            known_trips=2 * sum(isinstance(m, Norm) for m in self.space.network.modules()) + 2,
        )

    def _trains_merged(self) -> bool:
        """Return whether training goes on with merged clusters, which needs a known k."""
        several = self.config.overclustering > 1 and not self.problem.fewest
        return several and self.config.merged_from < 1

    def _largest(self) -> dict[str, float] | str:
        """Return how much one image can add to a sum; or why that has no bound."""
        if self.config.pairs != "views" or self.merges:
            return OF_NEIGHBOURS
        # The predictions of all views of an image.
        return {f"sums/{PREDICTIONS}": 2.0 * self.config.pairs_each}

    def _lags(self) -> Lags:
        if not self.config.lagged:
            return Lags()
        norm = self.space.network.latent_norm
        return Lags(frozenset({PREDICTIONS}), frozenset({norm} if norm else ()))

    def _rehearsal(self) -> Program:
        images = torch.zeros(2, 2, *self.problem.image_shape, device=self.problem.device)
        return program(self.space.network, self.config.balance, images)

    def _optimizer(self) -> Adam | Muon:
        adam = Adam(self.config.learning_rate)
        if self.config.optimizer == "adam":
            return adam
        return Muon(self.config.matrix_rate, adam, _HEAD)

    def initial_state(self, randomness: Randomness) -> EncoderState:
        """Return random weights, without moments and statistics."""
        generator = randomness.generator("model")
        model = random_state(self.make_network, generator, self.problem.device)
        descent, groups = self.descent.begin(model), self.single_groups()
        return EncoderState(model, descent=descent, groups=groups)

    def single_groups(self) -> Tensor | None:
        """Return each over-cluster as its own cluster; None if they have to be merged."""
        return None if self.merges else torch.arange(self.overclusters)

    def exchanges(self, number: int, state: EncoderState) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round: its steps, and in the last round the centres.

        If clients may miss the last round, earlier rounds compute the centres, too.
        """
        works = [*self.going_on(number, state), *self.training(number)]
        varies = self.problem.config.availability.varies and not self.problem.protected
        if number + (_TRIES if varies else 1) >= self.rounds:
            works.append(FindCentres(self.config.latent, early=number + 1 < self.rounds))
        return works

    def going_on(self, number: int, state: EncoderState) -> list[AnyServerWork]:
        """Return a merge if this is the first round of a run that continues a finished one."""
        begins = self.merges and number == 0 and state.version > 0
        return [self._merge(self._trains_merged())] if begins else []

    def training(self, number: int) -> list[AnyServerWork]:
        """Return the steps and merges of a round, for any state with this network in training.

        Over-clusters are merged whenever neighbours are searched again, and at the end. If a merge
        could not be trained because clients were absent, the next rounds try it again.
        """
        per_round, steps = self.config.steps_per_round, self.config.steps
        tries = 0 if self.problem.protected else _TRIES * per_round
        works: list[AnyServerWork] = []
        for step in range(number * per_round, min((number + 1) * per_round, steps)):
            works += self._trips(step)
            done = step + 1
            since = done % self.config.mine_every
            late = self.config.merged_from * steps <= done - since and since < done < steps
            trained = self._trains_merged() and late
            again = trained and 0 < since <= tries and done % per_round == 0
            if self.merges and (since == 0 or done == steps or again):
                works.append(self._merge(trained, again))
        return works

    def _merge(self, trained: bool, again: bool = False) -> MergeOverclusters[Any]:
        k, fewest, rule = self.problem.clusters, self.problem.fewest, self.config.merge
        return MergeOverclusters(k, self.overclusters, self.folds, fewest, rule, trained, again)

    def _trips(self, step: int) -> list[StepExchange[D]]:
        rate = cosine_decay(step / self.config.steps)
        return self.descent.server_works(range(step, step + 1), lambda _: rate)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: steps, and sums for merges and for the centres."""
        centres = SumMembers(CENTRES, self._members, context)
        return ClientSide.of(*self.client_works(context), centres)

    def client_works(self, context: ClientContext) -> list[AnyClientWork]:
        """Return the clients' work for each exchange of a step, and for merges."""
        pairs = self._pairs()
        merging = [SumTransitions(pairs, context.least)] if self.merges else []
        steps = self.descent.client_works(pairs, context.bounding, context.least, context.alone)
        return [*merging, *steps]

    def _members(self, message: EncoderState, client: Client) -> tuple[Tensor, Tensor, int]:
        """Return a client's latents, the cluster of each, and the number of clusters."""
        latents = self.space.latents(message, client)
        return latents, self.assign_by_model(message, client), message.clusters

    def _pairs(self) -> Pairs:
        return Pairs(self.config, self.views, self.space, self.folds)

    def knows_clusters(self, state: EncoderState) -> bool:
        """Return whether the head can assign images: after the first step, or the first merge."""
        return state.version > 0 and state.groups is not None

    def probabilities(self, known: EncoderState, client: Client) -> Tensor:
        """Return the head's probabilities, of shape (samples, k).

        Raises:
            FederationError: No step was made yet, or over-clusters have not been merged.
        """
        return self.space.probabilities(snapshot(known), client)

    def assign(self, state: EncoderState, client: Client) -> Tensor:
        """Return the head's cluster of each image, int64 of shape (samples,).

        Raises:
            FederationError: No step was made yet, or over-clusters have not been merged.
        """
        return self.assign_by_model(snapshot(state), client)

    def represent(self, state: EncoderState, client: Client) -> Tensor:
        """Return the normalised latents z, of shape (samples, d)."""
        return self.space.latents(state, client)

    def final_model(self, state: EncoderState) -> EncoderState:
        """Return what clients need to assign images: the model, and the centre of each cluster."""
        return replace(snapshot(state), centroids=state.centroids)

    def assign_by_model(self, final_model: EncoderState, client: Client) -> Tensor:
        """Return the head's cluster of each image, int64 of shape (samples,)."""
        return self.probabilities(final_model, client).argmax(dim=1)

    def summarize(self, state: EncoderState) -> dict[str, object]:
        """Return the number of clusters, and the evidence for it, if k was not given."""
        if state.groups is None or state.evidence is None:
            return {}
        return describe_chosen_number(state.evidence, self.problem.fewest, state.clusters)


def _views(problem: Problem) -> AnyViews:
    section = problem.config.section
    if problem.has_vectors:
        return VectorViews(section(VectorViewsConfig), problem.image_shape[0])
    return Views(section(AffineViewsConfig), section(IntensityViewsConfig))
