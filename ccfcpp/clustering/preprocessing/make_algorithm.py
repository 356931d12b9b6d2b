"""Make clustering algorithms, with preprocessing of the samples where vectors need it."""

from dataclasses import replace
from typing import Any

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.clustering.preprocessing.phases import PhasedClustering
from ccfcpp.clustering.preprocessing.vectors import VectorPhase
from ccfcpp.core.config import VectorsConfig


def make_algorithm(problem: Problem) -> ClusteringAlgorithm[Any]:
    """Make the clustering algorithm of a problem, with preprocessing if vectors need it.

    Raises:
        UsageError: The system cannot cluster images or vectors, or does not fit the problem.
    """
    config = problem.config
    check_takes(config.method, "vectors" if problem.has_vectors else "images")
    system = METHODS[config.method]
    vectors = config.section(VectorsConfig)
    if not problem.has_vectors or vectors.is_plain:
        return system.make(problem)
    (d,) = problem.image_shape
    prepared = replace(problem, image_shape=(vectors.components or vectors.widened(d),))
    return PhasedClustering(VectorPhase(vectors, d), system.make(prepared))
