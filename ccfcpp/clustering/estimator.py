"""Federated clustering with scikit-learn's interface, for images that are in memory."""

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClusterMixin

from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.own_images import settings_for
from ccfcpp.clustering.running import CLUSTERING
from ccfcpp.core.randomness import SERVER
from ccfcpp.data.npz import from_arrays
from ccfcpp.engine.client import Client
from ccfcpp.runs.estimator import FederatedEstimator, Names


class FederatedClustering(ClusterMixin, FederatedEstimator):  # type: ignore[misc] # no types there
    """Fed-SCAN, or another system, over clients that hold the images given.

    Args:
        n_clusters: Number of clusters k; ``auto`` or a range such as ``5-30`` where nobody knows
            it, for Fed-SCAN and for CCFC++ after neighbours.
        method: A system's name, as ``ccfcpp cluster --method`` takes it.
        random_state: Seed of all random numbers.
        device: ``auto``, ``cpu`` or ``cuda``.
        settings: Other sections of the configuration, as a nested mapping such as
            ``{"scan": {"steps": 60}}``, over what follows from the images, as for
            ``ccfcpp cluster`` on a user's own images.

    Attributes:
        n_clusters_: Number of clusters, as given or found.
        labels_: Cluster of each image, int64 of shape (n_samples,).
        cluster_centers_: Global centroids, float32 of shape (n_clusters_, dimensions): in the
            latent space, or in that of the pixels for systems without a network.
        n_iter_: Number of rounds.
    """

    def __init__(
        self,
        n_clusters: int | str = 10,
        *,
        method: str = "fed-scan",
        random_state: int = 0,
        device: str = "auto",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(method=method, random_state=random_state, device=device, settings=settings)
        self.n_clusters = n_clusters

    def fit(
        self,
        X: NDArray[np.uint8],  # noqa: N803 - scikit-learn's name
        y: None = None,
        *,
        clients: Names,
    ) -> Self:
        """Learn an encoder and centroids.

        Args:
            X: uint8 images of shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c 1 or 3.
            y: Ignored; there for scikit-learn's conventions.
            clients: Integer or string of shape (n,): which client holds each image.

        Raises:
            UsageError: The arrays or the settings do not fit.
        """
        data = from_arrays("images", np.asarray(X), None, "X")
        fixed = {"clusters": self.n_clusters, "partition": {"kind": "folders"}}
        suited = settings_for(len(data), data.images.shape[1:])
        experiment = self._experiment(CLUSTERING, data, clients, fixed, suited)
        self._state, self.n_iter_ = experiment.trained()
        self._problem = experiment.problem
        centres = required_centroids(experiment.algorithm.centres(self._state))
        self.cluster_centers_ = centres.cpu().numpy()
        self.n_clusters_ = len(self.cluster_centers_)
        self.labels_ = self.predict(X)
        return self

    def predict(self, X: NDArray[np.uint8]) -> NDArray[np.int64]:  # noqa: N803
        """The nearest global centroid of each image, int64 of shape (n,).

        Raises:
            UsageError: The images differ in shape from those of ``fit``.
        """
        data = self._images(X, self._problem.image_shape)
        # Made anew: an algorithm may hold what it made of images, and a fitted model must not.
        algorithm = METHODS[self._problem.config.method].make(self._problem)
        holder = Client(SERVER, "predict", data.images.to(self._problem.device))
        labels: NDArray[np.int64] = algorithm.assign(self._state, holder).cpu().numpy()
        return labels
