"""Fed-SCAN: a clustering network trained on pairs of neighbours, in steps over all clients.

The objective is SCAN's (module ``objective``). It depends on the other images of a batch only
through a few sums, for the mean and the variance of the latents and the mean prediction, which
clients pool in each step (``ccfcpp.engine.synchronised``). So a step is the centralised one over
all batches together. The partition only decides which images can be neighbours: images of the same
client. The fewer classes a client has, the more of its neighbours are of one class.
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
from ccfcpp.clustering.systems.fed_scan.messages import CENTRES, OF_NEIGHBOURS, TRANSITIONS
from ccfcpp.clustering.systems.fed_scan.neighbours import OF_IMAGES
from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork, ScanNetwork
from ccfcpp.clustering.systems.fed_scan.objective import PREDICTIONS, scan_program
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.server import FindCentres, MergeOverclusters, snapshot
from ccfcpp.clustering.systems.fed_scan.views import AnyViews, VectorViews, Views
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig, PrecisionConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, AnyServerWork, ClientSide
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.optimizers import Adam, Muon, cosine_decay
from ccfcpp.engine.synchronised.tape import Lags
from ccfcpp.models.pooled import Norm, Program, rounding_dtype
from ccfcpp.models.state import random_state

_HEAD = ("head.weight",)
"""Matrices that Adam trains if the optimizer is Muon, which is meant for hidden layers."""

_TRIES = 5
"""Number of rounds in which a failed merge is tried again; and of last rounds that compute centres
if clients may be absent."""


def scan_settings(problem: Problem) -> ScanConfig:
    """Return the section ``scan``; if k is unknown, with the over-clusters its choice needs."""
    config = problem.config.section(ScanConfig)
    return config.model_copy(update={"overclustering": OVERCLUSTERS}) if problem.fewest else config


class FedScan(ClusteringAlgorithm[EncoderState]):
    """Fed-SCAN: a clustering network trained on pairs of similar images, in steps over all clients.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        make_network: Builds the network; None for ``ScanNetwork``.

    Raises:
        UsageError: ``scan.first_neighbours`` needs images, and the data are vectors.
    """

    state_type = EncoderState

    def __init__(
        self, problem: Problem, make_network: Callable[[], ClusterNetwork] | None = None
    ) -> None:
        self.problem = problem
        self.config = scan_settings(problem)
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
        adam = Adam(self.config.learning_rate)
        self.descent = Descent(
            "step",
            self.space.network,
            self._rehearsal,
            adam if self.config.optimizer == "adam" else Muon(self.config.matrix_rate, adam, _HEAD),
            self.config.batch,
            problem.samples,
            self._largest(),
            precision=torch.bfloat16 if self.config.precision == "bfloat16" else None,
            lags=self._lags(),
            exact_steps=self.config.exact_steps,
            uses_memory=True,
            # Two for each normalisation, one for the predictions, one for the gradients. Counted
            # here, since rehearsing a step would delay the start of a run.
            known_trips=2 * sum(isinstance(m, Norm) for m in self.space.network.modules()) + 2,
        )

    def _trains_merged(self) -> bool:
        """Return whether the last steps train merged over-clusters; not if k is unknown."""
        several = self.config.overclustering > 1 and not self.problem.fewest
        return several and self.config.merged_from < 1

    def _largest(self) -> dict[str, float] | str:
        """Return bounds on what an image adds to each sum; or the reason why there is none."""
        if self.config.pairs != "views" or self.merges:
            return OF_NEIGHBOURS
        # The probabilities of one view have the sum 1.
        return {f"sums/{PREDICTIONS}": 2.0 * self.config.pairs_each}

    def _lags(self) -> Lags:
        """Return which values a step takes from the step before, instead of exchanging new ones."""
        if not self.config.lagged:
            return Lags()
        norm = self.space.network.latent_norm
        return Lags(frozenset({PREDICTIONS}), frozenset({norm} if norm else ()))

    def _rehearsal(self) -> Program:
        """Return a trial step on two empty images, which shows the exchanges that a step takes."""
        images = torch.zeros(2, 2, *self.problem.image_shape, device=self.problem.device)
        return scan_program(self.space.network, self.config.balance, images)

    def initial_state(self, randomness: Randomness) -> EncoderState:
        """Return the state before the first round: random weights, and a fresh optimizer."""
        generator = randomness.generator("model")
        model = random_state(self.make_network, generator, self.problem.device)
        descent, groups = self.descent.begin(model), self.single_groups()
        return EncoderState(model, descent=descent, groups=groups)

    def single_groups(self) -> Tensor | None:
        """Return the cluster of each output of the head, 0 to k − 1; None if outputs are merged."""
        return None if self.merges else torch.arange(self.overclusters)

    def exchanges(self, number: int, state: EncoderState) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round: its steps; the last round also computes the centres.

        If clients may miss the last round, a few rounds before it compute the centres, too.
        """
        works = [*self.continuation_exchanges(number, state), *self.training_exchanges(number)]
        varies = self.problem.config.availability.varies and not self.problem.protected
        if number + (_TRIES if varies else 1) >= self.rounds:
            works.append(FindCentres(self.config.latent, early=number + 1 < self.rounds))
        return works

    def continuation_exchanges(self, number: int, state: EncoderState) -> list[AnyServerWork]:
        """Return the first merge of a run that continues a finished one; else nothing."""
        begins = self.merges and number == 0 and state.version > 0
        return [self._merge(self._trains_merged())] if begins else []

    def training_exchanges(self, number: int) -> list[AnyServerWork]:
        """Return the training steps of a round, and the merges between them.

        Over-clusters are merged at each new search for neighbours, and at the end. If absent
        clients kept merged clusters from being trained, the next rounds repeat the merge.
        """
        per_round, steps = self.config.steps_per_round, self.config.steps
        tries = 0 if self.problem.protected else _TRIES * per_round
        works: list[AnyServerWork] = []
        for step in range(number * per_round, min((number + 1) * per_round, steps)):
            one = range(step, step + 1)
            works += self.descent.server_works(one, lambda number: cosine_decay(number / steps))
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

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of all exchanges: steps, merges and centres."""
        centres = SumMembers(CENTRES, context, self._members)
        return ClientSide.of(*self.client_works(context), centres)

    def client_works(self, context: ClientContext) -> list[AnyClientWork]:
        """Return the client side of steps and merges."""
        pairs = Pairs(self.config, self.views, self.space, self.folds)
        merging = [SumTransitions(TRANSITIONS, context, pairs)] if self.merges else []
        steps = self.descent.client_works(pairs, context.bounding, context.least, context.alone)
        return [*merging, *steps]

    def _members(self, message: EncoderState, client: Client) -> tuple[Tensor, Tensor, int]:
        """Return a client's latents, the cluster of each, and the number of clusters."""
        latents = self.space.latents(message, client)
        return latents, self.assign(message, client), message.clusters

    def knows_clusters(self, state: EncoderState) -> bool:
        """Return whether the head can assign images: after a step, and a merge if there is one."""
        return state.version > 0 and state.groups is not None

    def probabilities(self, known: EncoderState, client: Client) -> Tensor:
        """Return the probability of each cluster for a client's samples, of shape (samples, k).

        Raises:
            FederationError: No step was made yet, or over-clusters have not been merged.
        """
        return self.space.probabilities(snapshot(known), client)

    def assign(self, state: EncoderState, client: Client) -> Tensor:
        """Return the most probable cluster of each of a client's samples: int64 (samples,)."""
        return self.probabilities(state, client).argmax(dim=1)

    def represent(self, state: EncoderState, client: Client) -> Tensor:
        """Return the latents of a client's samples, of shape (samples, d)."""
        return self.space.latents(state, client)

    def final_model(self, state: EncoderState) -> EncoderState:
        """Return what clients need to assign images: the model, and the clusters' centres."""
        return replace(snapshot(state), centroids=state.centroids)

    def summarize(self, state: EncoderState) -> dict[str, object]:
        """Return the chosen number of clusters, and the evidence for it; nothing if k was given."""
        if state.groups is None or state.evidence is None:
            return {}
        return describe_chosen_number(state.evidence, self.problem.fewest, state.clusters)


def _views(problem: Problem) -> AnyViews:
    section = problem.config.section
    if problem.has_vectors:
        return VectorViews(section(VectorViewsConfig), problem.image_shape[0])
    return Views(section(AffineViewsConfig), section(IntensityViewsConfig))
