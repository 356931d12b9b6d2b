"""Federated clustering with scikit-learn's interface, for images that are in memory."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.methods import METHODS, refuse_unused
from ccfcpp.clustering.own_images import settings_for
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, resolve
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import SERVER
from ccfcpp.data import ImageData
from ccfcpp.data.npz import from_arrays, index_names
from ccfcpp.engine.client import Client


class FederatedClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc] # no types there
    """Fed-SCAN, or another system, over clients that hold the images given.

    Args:
        n_clusters: Number of clusters k.
        method: A system's name, as ``ccfcpp cluster --method`` takes it.
        random_state: Seed of all random numbers.
        device: ``auto``, ``cpu`` or ``cuda``.
        settings: Other sections of the configuration, as a nested mapping such as
            ``{"scan": {"steps": 60}}``, over what follows from the images, as for
            ``ccfcpp cluster`` on images of one's own.

    Attributes:
        labels_: Cluster of each image, int64 of shape (n_samples,).
        cluster_centers_: Global centroids, float32 of shape (n_clusters, dimensions): in the latent
            space, or in that of the pixels for systems without a network.
        n_iter_: Number of rounds.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        method: str = "fed-scan",
        random_state: int = 0,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.random_state = random_state
        self.device = device
        self.settings = settings

    def fit(
        self,
        X: NDArray[np.uint8],  # noqa: N803 - scikit-learn's name
        y: None = None,
        *,
        clients: NDArray[Any],
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
        owners, names = index_names(np.asarray(clients), len(data), "fit", "clients")
        fixed: Tree = {
            "dataset": "./images",
            "method": self.method,
            "clusters": self.n_clusters,
            "seed": self.random_state,
            "device": self.device,
            "partition": {"kind": "folders"},
        }
        settings = dict(self.settings or {})
        if taken := sorted(settings.keys() & fixed.keys()):
            raise UsageError(
                f"settings hold {', '.join(taken)}: give them by the arguments instead"
            )
        fitted = settings_for(len(data), data.images.shape[1:])
        config = resolve(ClusterConfig, "cluster", fitted, settings | fixed)
        refuse_unused([key for key, _ in flatten(settings)], [self.method])
        owned = ImageData("images", data.images, None, (), owners, names)
        experiment = ClusteringExperiment(config, owned)
        state = experiment.algorithm.initial_state(experiment.randomness)
        self.n_iter_ = 0
        for after, _ in experiment.federation().run(state):
            state = after
            self.n_iter_ += 1
        self.cluster_centers_ = required_centroids(state.centroids).cpu().numpy()
        self._problem = experiment.problem
        self._state = state
        self.labels_ = self.predict(X)
        return self

    def predict(self, X: NDArray[np.uint8]) -> NDArray[np.int64]:  # noqa: N803
        """The nearest global centroid of each image, int64 of shape (n,).

        Raises:
            UsageError: The images differ in shape from those of ``fit``.
        """
        images = from_arrays("images", np.asarray(X), None, "X").images
        if tuple(images.shape[1:]) != self._problem.image_shape:
            raise UsageError(
                f"images of shape {tuple(images.shape[1:])} do not fit the model, which was made "
                f"for {self._problem.image_shape} (channels, height, width): resize them"
            )
        # Made anew: an algorithm may hold what it made of images, and a fitted model must not.
        algorithm = METHODS[self._problem.config.method].make(self._problem)
        holder = Client(SERVER, "predict", images.to(self._problem.device))
        labels: NDArray[np.int64] = algorithm.assign(self._state, holder).cpu().numpy()
        return labels
