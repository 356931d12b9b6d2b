"""Small clustering runs on the digits: of CCFC++, and of every system."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.ccfc.algorithm import CCFC
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, parse_assignments, resolve, validate
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError, Task, Update
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.transport import InProcess
from tests.support.federation import CPU, federated

SMALL: Tree = {
    "model": {"widths": [6, 8], "projector_width": 16, "latent": 12, "predictor_width": 4},
    "training": {"rounds": 2, "pretrain_rounds": 2, "batch_size": 32},
    "loss": {"lam": 0.5, "eta": 0.3, "pretrain_eta": 0.2},
    "centroids": {"restarts": 2, "iterations": 10},
    "compute": {"cohort": 2},
}
"""A network and a run of a few hundred milliseconds, with every loss term at work."""

TINY: Tree = {
    "preset": "published",
    "model": {"widths": [4, 6], "projector_width": 12, "latent": 8, "predictor_width": 4},
    "training": {"rounds": 1, "pretrain_rounds": 1},
    "centroids": {"restarts": 2, "iterations": 10, "refine_steps": 1},
    "fuzzy": {"iterations": 5, "restarts": 2},
    "ffcm": {"rounds": 3},
    "feddp": {"points": 20},
    "means": {"rounds": 3},
    "mixture": {"rounds": 3},
    "gan": {
        "noise": 5, "generator_width": 16, "generator_channels": [6, 4], "batch_size": 16,
        "discriminator_channels": [4, 6], "discriminator_width": 8, "epochs": 3,
    },
    "dcn": {
        "widths": [16], "latent": 4, "pretrain_epochs": 2, "epochs": 2, "embedding": "none",
        "synthetic": 30, "rounds": 3, "local_epochs": 1,
    },
    "scan": {
        "stem": 0, "widths": [8], "hidden": 8, "latent": 6, "steps": 6, "steps_per_round": 3,
        "batch": 20, "neighbours": 3, "mine_every": 2,
    },
    "crops": {
        "widths": [8, 8], "hidden": 8, "latent": 6, "steps": 4, "steps_per_round": 4, "batch": 20,
        "each": 2,
    },
    "orchestra": {
        "rounds": 2, "widths": [4, 6], "latent": 8, "epochs": 1, "local_clusters": 4,
        "global_clusters": 12, "server_steps": 20,
    },
}  # fmt: skip
"""Of every system a run of a tenth of a second or two."""


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(data.target.astype(np.int64))


def small_config(*settings: str) -> ClusterConfig:
    return validate(ClusterConfig, merge(SMALL, parse_assignments(settings)))


def small_algorithm(config: ClusterConfig, clusters: int = 3, device: torch.device = CPU) -> CCFC:
    return CCFC(Problem(config, (1, 8, 8), clusters, device))


def clients_of_sizes(*sizes: int) -> list[Client]:
    images, _ = digits()
    parts = torch.split(images[: sum(sizes)], list(sizes))
    return [Client(number, f"client {number}", part) for number, part in enumerate(parts)]


def small_federation(
    config: ClusterConfig, clients: Sequence[Client], device: torch.device = CPU
) -> Federation[EncoderState, InProcess]:
    algorithm = small_algorithm(config, device=device)
    there = [Client(client.id, client.name, client.images.to(device)) for client in clients]
    return federated(config.method, algorithm, there, config.seed)


Result = tuple[EncoderState, list[RoundReport]]


def run_small(
    config: ClusterConfig, clients: Sequence[Client], device: torch.device = CPU
) -> Result:
    """A whole run: the last state, and a report of each round."""
    federation = small_federation(config, clients, device)
    initial = federation.algorithm.initial_state(federation.randomness)
    rounds = list(federation.run(initial))
    return rounds[-1][0], [report for _, report in rounds]


def answers(
    algorithm: Algorithm[Any],
    exchange: Exchange[Any, Update],
    message: object,
    clients: Sequence[Client],
    randomness: Randomness,
    least: int = 0,
) -> list[Update | RefusedUpdateError]:
    """What a cohort of clients makes of a message, in the round of ``randomness``."""
    work = algorithm.client_side(ClientContext.of(clients, least=least)).works[exchange.name]
    task = Task("test", exchange.name, randomness.round, 0)
    return list(work.local_updates(task, message, clients, randomness))


# --- any system ---------------------------------------------------------------------------------


def tiny(method: str, *trees: Tree) -> ClusterConfig:
    """A system's configuration, and other settings."""
    tree = TINY
    for other in ({"method": method}, *trees):
        tree = merge(tree, other)
    return resolve(ClusterConfig, "cluster", {}, tree)


def made(
    config: ClusterConfig, clusters: int = 3, device: torch.device = CPU, samples: int = 100
) -> ClusteringAlgorithm[Any]:
    """A system for the digits."""
    fewest = config.fewest_clusters
    problem = Problem(config, (1, 8, 8), clusters, device, samples, fewest)
    return METHODS[config.method].make(problem)


def run_tiny(
    config: ClusterConfig,
    clients: Sequence[Client],
    availability: Availability | None = None,
    device: torch.device = CPU,
) -> tuple[Any, list[RoundReport], Tensor]:
    """State, reports, and the clusters of some images, after all rounds."""
    there = [Client(client.id, client.name, client.images.to(device)) for client in clients]
    algorithm = made(config, device=device, samples=sum(map(len, clients)))
    federation = federated(config.method, algorithm, there, 0, availability)
    state, reports = algorithm.initial_state(federation.randomness), []
    for after, report in federation.run(state):
        state = after
        reports.append(report)
    probe = Client(-1, "probe", digits()[0][:200].to(device))
    return state, reports, algorithm.assign(state, probe).cpu()
