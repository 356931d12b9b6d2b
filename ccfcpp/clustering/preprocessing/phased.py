"""Clustering systems with a preprocessing of the samples, which all clients fit together first."""

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


@dataclass(frozen=True)
class PreparedClusters(Prepared[State, K]):
    """State, message or final model of a clustering system, with its fitted preprocessing."""

    @property
    def centroids(self) -> Tensor | None:
        """The system's centroids; None before there are any."""
        system: Any = self.system
        centroids: Tensor | None = system.centroids
        return centroids


Value = PreparedClusters[Any, Any]


class PhasedClustering(Phased[Any, Any], ClusteringAlgorithm[Any]):
    """A clustering system, preceded by exchanges (a phase) that fit its samples' preprocessing."""

    prepared = PreparedClusters

    def __init__(self, phase: Phase[Any], system: ClusteringAlgorithm[Any]) -> None:
        super().__init__(phase, system)
        self.system: ClusteringAlgorithm[Any] = system
        self.by_angle = system.by_angle
        self.by_pixels = system.by_pixels
        self.by_model = system.by_model

    def _prepare(self, value: Value, client: Client) -> Client:
        """Return a copy of the client that holds the preprocessed samples.

        Raises:
            FederationError: The preprocessing is not fitted, since no client took part in that.
        """
        if not self.is_complete(value):
            raise FederationError("nobody took part in the preparation")
        return self.preprocess(value, client)

    def knows_clusters(self, state: Value) -> bool:
        """Return whether samples can be assigned to clusters."""
        return self.system.knows_clusters(state.system)

    def centres(self, state: Value) -> Tensor | None:
        """Return the centre of each cluster, of shape (k, dimensions); None if there are none."""
        return self.system.centres(state.system)

    def assign(self, state: Value, client: Client) -> Tensor:
        """Return the cluster of each sample, int64 of shape (samples,)."""
        return self.system.assign(state.system, self._prepare(state, client))

    def represent(self, state: Value, client: Client) -> Tensor | None:
        """Map a client's samples to the centroids' space, (samples, d); None before the fit."""
        if not self.is_complete(state):
            return None
        return self.system.represent(state.system, self._prepare(state, client))

    def final_model(self, state: Value) -> Value:
        """Return the system's final model, with the fitted preprocessing."""
        known = self.phase.public(self.phase_state(state))
        return PreparedClusters(self.system.final_model(state.system), known)

    @property
    def final_model_type(self) -> type[object]:
        """The class of the final model."""
        return self.prepared_type(self.system.final_model_type)

    def assign_by_model(self, final_model: Value, client: Client) -> Tensor:
        """Return the cluster of each sample under a final model, int64 of shape (samples,)."""
        return self.system.assign_by_model(final_model.system, self._prepare(final_model, client))

    def probabilities(self, known: Value, client: Client) -> Tensor | None:
        """Return the probability of each cluster, of shape (samples, k); None if there are none."""
        return self.system.probabilities(known.system, self._prepare(known, client))

    def pictures(self, state: Value) -> Mapping[str, Tensor]:
        """Return the system's pictures by name."""
        return self.system.pictures(state.system)

    def describe(self) -> dict[str, object]:
        """Return the system's entries for the summary that are known before the run."""
        return self.system.describe()

    def summarize(self, state: Value) -> dict[str, object]:
        """Return the system's entries for the summary from the last state."""
        return self.system.summarize(state.system)
