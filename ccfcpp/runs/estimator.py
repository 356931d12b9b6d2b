"""Common base of the estimators with scikit-learn's interface, for samples in memory."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import C, flatten, unflatten
from ccfcpp.core.errors import UsageError
from ccfcpp.data.images import ImageData
from ccfcpp.data.npz import from_arrays, index_names
from ccfcpp.data.vectors import refuse_mask
from ccfcpp.runs.pipeline import Pipeline, R

Names = NDArray[np.integer | np.str_ | np.object_]
"""A name or a number for each sample."""
AUTO = "auto"
"""The method that suits the data."""
_OF_FILES = {"data", "evaluate_every", "track"} | {
    f"vectors.{of}_column" for of in ("label", "client", "text")
}
"""Sections and settings on the files that a command reads or writes."""


class FederatedEstimator(BaseEstimator):  # type: ignore[misc] # no types there
    """Base class of scikit-learn estimators that simulate federated learning on samples in memory.

    Args:
        method: Name of the federated method, as ``--method`` of the command takes it.
        random_state: Seed of all random numbers. A ``RandomState`` draws the seed; None takes a new
            one for each fit.
        device: ``auto``, ``cpu`` or ``cuda``.
        settings: Other settings of the configuration, nested or by dotted key.
        verbose: Whether ``fit`` prints a line for each round.
    """

    def __init__(
        self,
        *,
        method: str = "fedavg",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        settings: Mapping[str, object] | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.random_state = random_state
        self.device = device
        self.settings = settings
        self.verbose = verbose

    def _images(self, array: NDArray[np.uint8], shape: tuple[int, ...]) -> ImageData:
        """Return images as ``ImageData``; raise ``UsageError`` unless their shape is ``shape``.

        ``shape`` is that of the model's images: (channels, height, width).
        """
        data = from_arrays("images", as_plain_array(array, "X"), None, "X")
        given = tuple(data.images.shape[1:])
        if given != shape:
            raise UsageError(
                f"images of shape {given} do not fit the model, which was made for {shape} "
                "(channels, height, width): resize them"
            )
        return data

    @property
    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, int | np.integer) and not isinstance(state, bool):
            return int(state)
        if state is None:
            return int(np.random.default_rng().integers(2**31))
        return int(check_random_state(state).randint(2**31 - 1))

    def _run(
        self,
        pipeline: Pipeline[C, R],
        data: Any,
        clients: Names | None,
        fixed: Tree,
        suited: Tree | None = None,
        source: str = "./images",
    ) -> R:
        """Make the run that ``fit`` trains, on samples in memory that are divided among clients.

        Args:
            pipeline: Pipeline of clustering or of classification.
            data: The images, or vectors.
            clients: Client of each sample, of shape (n,); None if one client holds all.
            fixed: Settings that follow from the estimator's other arguments.
            suited: Settings that suit the samples; ``settings`` override them.
            source: Value of the setting ``dataset``, which stands for samples in memory.
        """
        fixed = fixed | {"dataset": source, "seed": self._seed, "device": self.device}
        if self.method != AUTO:
            fixed["method"] = self.method
        settings = dict(self.settings or {})
        sections = {key.partition(".")[0] for key in settings}
        if taken := sorted(sections & {*fixed, "method"}):
            raise UsageError(
                f"settings hold {', '.join(taken)}: give them by the arguments instead"
            )
        keys = {key for key, own in flatten(unflatten(settings)) if own is not None}
        if idle := sorted((sections | keys) & _OF_FILES):
            raise UsageError(
                f"settings hold {', '.join(idle)}, which has no effect on samples in memory: leave "
                "it out"
            )
        config = pipeline.resolve_settings([fixed, unflatten(settings)], suited)
        names = (
            np.zeros(len(data), int)
            if clients is None
            else as_string_array(as_plain_array(clients, "clients"))
        )
        owners, owner_names, notes = index_names(names, len(data), "fit", "clients", data.unit)
        for note in (*data.notes, *notes):
            warnings.warn(note, stacklevel=3)
        return pipeline.make(config, replace(data, owners=owners, owner_names=owner_names))


def as_plain_array(values: object, name: str) -> NDArray[Any]:
    """Return the argument ``name`` as an array; refuse masked values."""
    refuse_mask(values, name)
    return np.asarray(values)


def as_string_array(names: NDArray[Any]) -> NDArray[Any]:
    """Convert an object array of strings, as in pandas, to a string array; return others as is."""
    if names.dtype == object and all(isinstance(name, str) for name in names.flat):
        return names.astype(str)
    return names
