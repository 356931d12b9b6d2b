from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.clustering.ccfc import CCFC
from ccfcpp.clustering.exchanges import CCFCState
from ccfcpp.config import ClusterConfig
from ccfcpp.config_layers import Tree, merge, parse_assignments, validate
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.randomness import Randomness
from ccfcpp.setup import model_maker

SMALL: Tree = {
    "model": {"widths": [6, 8], "projector_width": 16, "latent": 12, "predictor_width": 4},
    "training": {"rounds": 2, "pretrain_rounds": 2, "batch_size": 32},
    "loss": {"lam": 0.5, "eta": 0.3, "pretrain_eta": 0.2},
    "centroids": {"restarts": 2, "iterations": 10},
}
"""A network and a run of a few hundred milliseconds, with every loss term at work."""


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(data.target.astype(np.int64))


def small_config(*settings: str) -> ClusterConfig:
    return validate(ClusterConfig, merge(SMALL, parse_assignments(settings)))


CPU = torch.device("cpu")


def small_algorithm(config: ClusterConfig, clusters: int = 3) -> CCFC:
    cohort = 2 if config.compute.cohort == "auto" else config.compute.cohort
    return CCFC(config, model_maker(config.model, (1, 8, 8)), clusters, cohort, CPU)


def clients_of_sizes(*sizes: int) -> list[Client]:
    images, _ = digits()
    parts = torch.split(images[: sum(sizes)], list(sizes))
    return [Client(number, f"client {number}", part) for number, part in enumerate(parts)]


def small_federation(config: ClusterConfig, clients: Sequence[Client]) -> Federation[CCFCState]:
    memories = ClientMemories(CPU, budget=10**9)
    algorithm, randomness = small_algorithm(config), Randomness(config.seed)
    return Federation(algorithm, clients, Availability(), randomness, memories)


Result = tuple[CCFCState, list[RoundReport]]
RunSmall = Callable[[ClusterConfig, Sequence[Client]], Result]


@pytest.fixture
def run_small() -> RunSmall:
    def run(config: ClusterConfig, clients: Sequence[Client]) -> Result:
        federation = small_federation(config, clients)
        initial = federation.algorithm.initial_state(federation.randomness)
        rounds = list(federation.run(initial))
        return rounds[-1][0], [report for _, report in rounds]

    return run
