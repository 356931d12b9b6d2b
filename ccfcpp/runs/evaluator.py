"""What judges the states of a run, and what a run leaves behind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.tables import Rows
from ccfcpp.data.vectors import Pictures
from ccfcpp.engine.exchange import State
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.models.state import ModelState
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.paths import Json, Summary

Scores = dict[str, float]
Arrays = Mapping[str, Mapping[str, Tensor | NDArray[np.str_]]]
"""Results by file and name."""


@dataclass(frozen=True)
class Results:
    """What the last state of a run comes to.

    Attributes:
        summary: The state's part of ``summary.json``.
        model: Tensors of the model's file.
        header: What using the model needs beside the configuration, for the header of its file.
        arrays: Arrays to save, by file and name.
        tables: Tables for people, by the name of their file.
        pictures: Pictures by name, each uint8 of shape (height, width, 3).
    """

    summary: Summary
    model: Mapping[str, Tensor]
    header: Mapping[str, str] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    pictures: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Results of a state on images: all of them, or those for testing.

    Attributes:
        images: uint8 of shape (images, channels, height, width), or vectors (vectors, d).
        representations: Floats of shape (images, dimensions); None where images have no common
            space.
        found: The cluster, or the predicted class, of each image; None where it is not known yet.
        classes: The true class of each image; None where it is not known.
        class_names: Their names, in order.
        centroids: Of shape (clusters, dimensions), where the images are clustered.
        by_angle: Whether images belong to the centroid of the nearest direction, whatever its
            length; else to the nearest one.
        names: Name of each image's file; empty where images have none.
        pictures: Of vectors of photos, what shows some of these by their names; None of others.
    """

    images: Tensor
    representations: Tensor | None
    found: Tensor | None
    classes: Tensor | None
    class_names: tuple[str, ...]
    centroids: Tensor | None = None
    by_angle: bool = False
    names: tuple[str, ...] = ()
    pictures: Pictures | None = None


class Evaluator(ABC, Generic[State]):
    """Judges the states of a run, by samples in this process or by what clients tell of theirs."""

    @abstractmethod
    def describe(self) -> Json:
        """Return the setting, for the summary."""

    @abstractmethod
    def scores(self, number: int, state: State, memories: ClientMemories) -> Scores:
        """Compute the scores after round ``number``; none where none are due."""

    @abstractmethod
    def results(
        self, state: State, memories: ClientMemories, local: LocalSpectra, told: Any
    ) -> Results:
        """Compute the results of the last state.

        Args:
            state: The server's.
            memories: What the clients of this process remember.
            local: Spectra of the last round's local models.
            told: What the epilogue has told; None where there is none.
        """

    def represent(self, client: int, model: ModelState) -> Tensor | None:
        """Represent the images on which models are compared, by the model that a client sent.

        Returns:
            Floats of shape (images, dimensions); None where the model cannot be compared.
        """
        return None


class LocalEvaluator(Evaluator[State]):
    """Judges by samples that are in this process.

    Attributes:
        images_key: Key of the number of images that are used for training.
    """

    images_key: ClassVar[str] = "data.images"

    @abstractmethod
    def snapshot(self, state: State, memories: ClientMemories) -> Snapshot:
        """Return the results of a state on the samples."""
