"""Clustering systems that follow another phase, such as the preprocessing of vectors."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.clustering.preprocessing.vectors import VectorPhase
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.errors import FederationError
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import State
from ccfcpp.engine.phases import K, Phase, Phased, Prepared


def make_algorithm(problem: Problem) -> ClusteringAlgorithm[Any]:
    """Make the clustering system of a problem, with the preprocessing that it needs.

    Raises:
        UsageError: The system does not take the kind of data, or does not fit the problem.
    """
    config = problem.config
    check_takes(config.method, "vectors" if problem.has_vectors else "images")
    system = METHODS[config.method]
    vectors = config.section(VectorsConfig)
    if not problem.has_vectors or vectors.is_plain:
        return system.make(problem)
    (d,) = problem.image_shape
    prepared = replace(problem, image_shape=(vectors.components or d,))
    return PhasedClustering(VectorPhase(vectors, d), system.make(prepared))


@dataclass(frozen=True)
class PreparedClusters(Prepared[State, K]):
    """A state, message or delivery of a system of clustering, with the result of its phase."""

    @property
    def centroids(self) -> Tensor | None:
        """The system's centroids."""
        known: Any = self.system
        centroids: Tensor | None = known.centroids
        return centroids


Value = PreparedClusters[Any, Any]


class PhasedClustering(Phased[Any, Any], ClusteringAlgorithm[Any]):
    """A clustering system that runs on samples preprocessed by an earlier phase."""

    prepared = PreparedClusters

    def __init__(self, phase: Phase[Any], system: ClusteringAlgorithm[Any]) -> None:
        super().__init__(phase, system)
        self.system: ClusteringAlgorithm[Any] = system
        self.by_angle = system.by_angle
        self.by_pixels = system.by_pixels
        self.by_model = system.by_model

    def _seen(self, value: Value, client: Client) -> Client:
        """Return the client with preprocessed samples.

        Raises:
            FederationError: No client took part in the phase.
        """
        if not self.is_complete(value):
            raise FederationError("nobody took part in the preparation")
        return self.preprocess(value, client)

    def knows_clusters(self, state: Value) -> bool:
        """Return whether the system can assign samples."""
        return self.system.knows_clusters(state.system)

    def centres(self, state: Value) -> Tensor | None:
        """Return the centres of the system's clusters."""
        return self.system.centres(state.system)

    def assign(self, state: Value, client: Client) -> Tensor:
        """Assign each sample to a cluster."""
        return self.system.assign(state.system, self._seen(state, client))

    def represent(self, state: Value, client: Client) -> Tensor | None:
        """Return the representations of a client's preprocessed samples; None before the fit."""
        if not self.is_complete(state):
            return None
        return self.system.represent(state.system, self._seen(state, client))

    def final_model(self, state: Value) -> Value:
        """Return the system's delivery with the result of the phase."""
        known = self.phase.public(self.phase_state(state))
        return PreparedClusters(self.system.final_model(state.system), known)

    @property
    def final_model_type(self) -> type[object]:
        """The type of the system's delivery with the result of the phase."""
        return self.prepared_type(self.system.final_model_type)

    def assign_by_model(self, final_model: Value, client: Client) -> Tensor:
        """Assign each sample to a cluster."""
        return self.system.assign_by_model(final_model.system, self._seen(final_model, client))

    def probabilities(self, known: Value, client: Client) -> Tensor | None:
        """Return the probability of each cluster for preprocessed samples."""
        return self.system.probabilities(known.system, self._seen(known, client))

    def pictures(self, state: Value) -> Mapping[str, Tensor]:
        """Return the pictures of the system."""
        return self.system.pictures(state.system)

    def describe(self) -> dict[str, object]:
        """Return the facts of the system for the summary."""
        return self.system.describe()

    def summarize(self, state: Value) -> dict[str, object]:
        """Return the system's facts of the last state for the summary."""
        return self.system.summarize(state.system)
