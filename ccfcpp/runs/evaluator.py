"""Evaluators, which score the server's state during a run, and the results that a run saves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.tables import Rows
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
    """Everything that a run saves at its end: scores, model, arrays, tables and pictures.

    Attributes:
        summary: Scores and other facts on the last state, for ``summary.json``.
        model: Tensors of the model's file, by name.
        header: Metadata for the model file's header, needed to use the model.
        arrays: Arrays to save, by the name of their file and their own name.
        tables: Tables for users, by the name of their file.
        pictures: Pictures by name, each uint8 of shape (height, width, 3).
    """

    summary: Summary
    model: Mapping[str, Tensor]
    header: Mapping[str, str] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    pictures: Mapping[str, Tensor] = field(default_factory=dict)


class Evaluator(ABC, Generic[State]):
    """Base class of evaluators, which score the server's state by samples or by clients' sums.

    Attributes:
        images_key: Key of the setting for the number of training images.
    """

    images_key: ClassVar[str] = "data.images"

    @abstractmethod
    def describe(self) -> Json:
        """Return facts on data and clients, such as their numbers, for the summary."""

    @abstractmethod
    def scores(self, number: int, state: State, memories: ClientMemories) -> Scores:
        """Score the server's ``state`` after round ``number``; {} if this round is not scored.

        ``memories`` holds the local states of the clients of this process.
        """

    @abstractmethod
    def results(
        self, state: State, memories: ClientMemories, local: LocalSpectra, outcome: Any
    ) -> Results:
        """Compute what a run saves at its end, from the server's last state.

        Args:
            state: The server's last state.
            memories: Local states of the clients of this process.
            local: Spectra of the local models' representations in the last round.
            outcome: Result of the exchanges after the last round; None without any.
        """

    def image_results(self, state: State, memories: ClientMemories) -> Arrays:
        """Return arrays to save when a run is stopped, such as the images' clusters; none here."""
        return {}

    def represent(self, client: int, model: ModelState) -> Tensor | None:
        """Compute a local model's representations of the images on which models are compared.

        Returns:
            Floats of shape (images, dimensions); None, as here, if the model cannot be compared.
        """
        return None
