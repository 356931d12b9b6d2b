"""Small classification runs on the digits."""

from collections.abc import Sequence

import torch
from torch import nn

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, parse_assignments, validate
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import InProcess
from supervised.algorithm import FederatedClassification
from supervised.config import ClassifyConfig
from supervised.messages import ServerState
from supervised.setup import classifier_maker
from tests.support.clustering import digits
from tests.support.federation import CPU, federated

SHAPE, CLASSES = (1, 8, 8), 10

SMALL: Tree = {
    "model": {"widths": [4, 6], "representation": 9},
    "training": {
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 8,
        "learning_rate": 0.05,
        "weight_decay": 1e-3,
    },
    "fedprox": {"mu": 0.3},
    "fedsam": {"radius": 0.2},
    "fedlc": {"temperature": 1.0},
    "moon": {"temperature": 0.5},
    "compute": {"cohort": 2},
}
"""A network and a run of a tenth of a second, with every term large enough to be seen."""

SIZES = (19, 16, 12, 9, 2, 1)
"""With batches of 8: last batches of 3 and 4, one of a single sample, and one that cannot train."""


def small_config(*settings: str) -> ClassifyConfig:
    return validate(ClassifyConfig, merge(SMALL, parse_assignments(settings)))


def labelled_clients(*sizes: int) -> list[Client]:
    """Clients of the digits of which each holds few classes."""
    images, labels = digits()
    order = (labels[:120] // 3).argsort(stable=True)[: sum(sizes)]
    return [
        Client(number, f"client {number}", images[part], labels[part])
        for number, part in enumerate(torch.split(order, list(sizes)))
    ]


def normalisations(model: nn.Module) -> set[str]:
    """Names of the entries of a model that are batch normalisations'."""
    return {
        f"{name}.{entry}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def small_algorithm(config: ClassifyConfig, population: int) -> FederatedClassification:
    make_model = classifier_maker(config, SHAPE, CLASSES)
    return FederatedClassification(config, make_model, SHAPE, CLASSES, population, CPU)


def small_federation(
    config: ClassifyConfig, clients: Sequence[Client], memories: ClientMemories | None = None
) -> Federation[ServerState, InProcess]:
    algorithm = small_algorithm(config, len(clients))
    availability = Availability(**config.availability.model_dump())
    return federated(config.method, algorithm, clients, config.seed, availability, memories)
