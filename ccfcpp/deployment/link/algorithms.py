"""Objects that server and clients both build for a run: its algorithm, and the exchange ``counts``.

Scores need class labels, which only clients have. So in the exchange ``counts`` each client counts
its images by class and cluster, and sends the contingency table.
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
"""Name of the exchange in which clients receive the model and may send a contingency table."""


@dataclass(frozen=True)
class Counts:
    """Update with a client's contingency table of classes and clusters, or predicted classes.

    Attributes:
        table: Number of images by class and cluster or predicted class, int64 of shape (classes,
            clusters or predicted classes); of shape (0, 0) if the client has no labels or does not
            send counts.
    """

    table: Tensor


NO_COUNTS = Counts(torch.zeros(0, 0, dtype=torch.int64))
"""Update of a client that does not send counts."""


AnyAlgorithm = ClusteringAlgorithm[Any] | FederatedClassification
"""The algorithm of a run, for clustering or for classification."""


def counts_exchange(algorithm: AnyAlgorithm) -> Exchange[Any, Counts]:
    """Return the exchange in which clients receive the model and may send a contingency table."""
    if isinstance(algorithm, FederatedClassification):
        # A personalised classifier has some of its layers in each client's local state (memory).
        personal = CLASSIFIERS[algorithm.config.method].personal
        return Exchange(COUNTS, algorithm.state_type, Counts, uses_memory=personal)
    return Exchange(COUNTS, FinalMessage.of(algorithm.final_model_type), Counts)


def clustering_problem(config: ClusterConfig, spec: RunSpec, device: torch.device) -> Problem:
    """Return a run's clustering problem: configuration, shape of the data, number of clusters."""
    noisy = config.privacy.level != "none"
    rest = config.fewest_clusters, config.grows, config.privacy.is_on, noisy
    return Problem(config, spec.image_shape, spec.clusters, device, spec.samples, *rest)


def classification_algorithm(
    config: ClassifyConfig, spec: RunSpec, device: torch.device
) -> FederatedClassification:
    """Return the classification algorithm of a run, from its configuration and description."""
    shape, classes = spec.image_shape, len(spec.classes)
    make_model = classifier_maker(config, shape, classes)
    return FederatedClassification(config, make_model, shape, classes, spec.clients, device)
