"""The parts that server and clients both build from a run's description: algorithm and counts.

Scores need classes, which only clients have. So clients count their images by class and cluster, in
an exchange that both sides know.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.mahalanobis import FinalMessage
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.exchange import Exchange
from supervised.algorithm import FederatedClassification
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.setup import classifier_maker

COUNTS = "counts"
"""Name of the exchange. Clients receive the server's model and may answer with a table."""


@dataclass(frozen=True)
class Counts:
    """A client's contingency table: its images by class and cluster, or predicted class.

    Attributes:
        table: int64 of shape (classes, clusters or predicted classes). Its shape is (0, 0) if the
            client has no labels or does not send them.
    """

    table: Tensor


NO_COUNTS = Counts(torch.zeros(0, 0, dtype=torch.int64))
"""The table of a client that does not send counts."""


Built = ClusteringAlgorithm[Any] | FederatedClassification
"""The algorithm of a run, of either kind."""


def counts_exchange(algorithm: Built) -> Exchange[Any, Counts]:
    """Return the exchange in which clients receive the model and count."""
    if isinstance(algorithm, FederatedClassification):
        # Parts of a personalised classifier are in the clients' memories.
        personal = CLASSIFIERS[algorithm.config.method].personal
        return Exchange(COUNTS, algorithm.state_type, Counts, uses_memory=personal)
    return Exchange(COUNTS, FinalMessage.of(algorithm.final_model_type), Counts)


def clustering_problem(config: ClusterConfig, spec: RunSpec, device: torch.device) -> Problem:
    """Return the clustering problem that a run describes."""
    noisy = config.privacy.level != "none"
    rest = config.fewest_clusters, config.grows, config.privacy.is_on, noisy
    return Problem(config, spec.image_shape, spec.clusters, device, spec.samples, *rest)


def classification(
    config: ClassifyConfig, spec: RunSpec, device: torch.device
) -> FederatedClassification:
    """Return the algorithm of classification that a run describes."""
    shape, classes = spec.image_shape, len(spec.classes)
    make_model = classifier_maker(config, shape, classes)
    return FederatedClassification(config, make_model, shape, classes, spec.clients, device)
