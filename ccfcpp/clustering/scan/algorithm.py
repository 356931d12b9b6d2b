"""Fed-SCAN: clustering by neighbours inside each client, in steps over all clients together.

The objective is SCAN's (``ccfcpp.clustering.scan.objective``). Images are coupled through a few
sums alone: mean and variance of the latents, and the mean prediction. Clients add these up in every
step, so that a step is the centralised step over the union of their batches, for every partition.
What depends on the partition is who can be whose neighbour, and neighbours inside a client are
purer the more a client's images are alike.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.scan.clients import (
    Backpropagate,
    Differentiate,
    Predict,
    Process,
    ShowPairs,
    SumLatents,
)
from ccfcpp.clustering.scan.config import AffineViewsConfig, ScanConfig
from ccfcpp.clustering.scan.messages import ScanState, Snapshot
from ccfcpp.clustering.scan.network import ScanNetwork
from ccfcpp.clustering.scan.representations import LatentSpace
from ccfcpp.clustering.scan.server import (
    FindCentres,
    MoveModel,
    PoolGradients,
    PoolPredictions,
    PoolStatistics,
    snapshot,
)
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Crew
from ccfcpp.engine.exchange import ClientSide, ServerWork
from ccfcpp.models.initialisation import random_state


class FedScan(ClusteringAlgorithm[ScanState]):
    """The algorithm.

    Args:
        problem: What it is made for.
    """

    state_type = ScanState

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.config = problem.config.section(ScanConfig)
        self.rounds = -(-self.config.steps // self.config.steps_per_round)
        self.make_network = partial(ScanNetwork, self.config, problem.image_shape, problem.clusters)
        self.space = LatentSpace(self.make_network, problem.device)

    def initial_state(self, randomness: Randomness) -> ScanState:
        """Random weights; no moments and no statistics yet."""
        generator = randomness.generator("model")
        model = random_state(self.make_network, generator, self.problem.device)
        zeros = torch.zeros(self.config.latent, device=self.problem.device)
        nothing = {name: torch.zeros_like(entry) for name, entry in model.items()}
        return ScanState(model, zeros, torch.ones_like(zeros), 0, nothing, nothing)

    def exchanges(self, number: int, state: ScanState) -> Sequence[ServerWork[ScanState, Any, Any]]:
        """The steps of a round, four exchanges each; in the last round the centres, too."""
        left = self.config.steps - number * self.config.steps_per_round
        step: list[ServerWork[ScanState, Any, Any]] = [
            PoolStatistics(),
            PoolPredictions(self.problem.clusters),
            PoolGradients(self.config.latent),
            MoveModel(self.config, state.model),
        ]
        works = step * min(left, self.config.steps_per_round)
        return [*works, FindCentres(self.problem.clusters)] if number == self.rounds - 1 else works

    def client_side(self, crew: Crew) -> ClientSide:
        """The four works of a step, and the sums for the centres."""
        views = self.problem.config.section(AffineViewsConfig)
        process = Process(self.config, views, self.space, self.problem.samples, self.problem.device)
        return ClientSide.of(
            ShowPairs(process),
            Predict(process),
            Differentiate(process),
            Backpropagate(process),
            SumLatents(self.space),
        )

    def knows_clusters(self, state: ScanState) -> bool:
        """Always: the head assigns from the first round on."""
        return True

    def assign(self, state: ScanState, holder: Client) -> Tensor:
        """The head's cluster of each image, int64 of shape (samples,)."""
        return self.space.clusters(state, holder)

    def represent(self, state: ScanState, holder: Client) -> Tensor:
        """Normalised latents z, of shape (samples, d)."""
        return self.space.latents(state, holder)

    def delivery(self, state: ScanState) -> Snapshot:
        """The model with its statistics."""
        return snapshot(state)
