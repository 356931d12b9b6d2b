"""Common base of the estimators with scikit-learn's interface, for images in memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.data import ImageData
from ccfcpp.data.npz import from_arrays, index_names
from ccfcpp.runs.experiment import AnyExperiment
from ccfcpp.runs.given import Given
from ccfcpp.runs.pipeline import M, Pipeline

E = TypeVar("E", bound=AnyExperiment)
Names = NDArray[np.integer | np.str_]
"""A name or a number for each image."""


class FederatedEstimator(BaseEstimator):  # type: ignore[misc] # no types there
    """Federated learning over clients that hold the given images.

    Args:
        method: A method's name, as ``--method`` of the command takes it.
        random_state: Seed of all random numbers.
        device: ``auto``, ``cpu`` or ``cuda``.
        settings: Other sections of the configuration, as a nested mapping.
    """

    def __init__(
        self,
        *,
        method: str,
        random_state: int = 0,
        device: str = "auto",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.method = method
        self.random_state = random_state
        self.device = device
        self.settings = settings

    def _images(self, array: NDArray[np.uint8], shape: tuple[int, ...]) -> ImageData:
        """Check that images have the shape for which a model was made, and return them."""
        data = from_arrays("images", np.asarray(array), None, "X")
        found = tuple(data.images.shape[1:])
        if found != shape:
            raise UsageError(
                f"images of shape {found} do not fit the model, which was made for {shape} "
                "(channels, height, width): resize them"
            )
        return data

    def _experiment(
        self,
        pipeline: Pipeline[M, E],
        data: ImageData,
        clients: Names,
        fixed: Tree,
        suited: Tree | None = None,
    ) -> E:
        """Make the experiment on images in memory.

        Args:
            pipeline: The kind of run.
            data: The images.
            clients: Of shape (n,): the client that holds each image.
            fixed: Settings that follow from the estimator's other arguments.
            suited: Settings that suit the images, under those that the user gave.
        """
        fixed = fixed | {
            "dataset": "./images",
            "method": self.method,
            "seed": self.random_state,
            "device": self.device,
        }
        settings = dict(self.settings or {})
        if taken := sorted({key.partition(".")[0] for key in settings} & fixed.keys()):
            raise UsageError(
                f"settings hold {', '.join(taken)}: give them by the arguments instead"
            )
        config = pipeline.resolved(Given.of(settings).above(fixed), suited)
        owners, names = index_names(np.asarray(clients), len(data), "fit", "clients")
        return pipeline.make(config, replace(data, owners=owners, owner_names=names))
