"""Tables of scores: means over seeds by panel, place on the axis and system."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ccfcpp.studies.tables import mean_and_deviation

Place = tuple[str, str, str]
"""Panel (the images), place on the axis, system."""
ANY = "any"
"""The place of a system to which the axis means nothing."""


class Score(NamedTuple):
    """A measure in one place of a table: its mean, and its deviation (n − 1) over several runs."""

    mean: float
    deviation: float | None = None
    runs: int = 1

    def __str__(self) -> str:
        text = f"{self.mean:.3f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.3f}"


@dataclass(frozen=True)
class ScoreTable:
    """A measure of several systems under several conditions.

    Attributes:
        axis: What varies along the axis.
        scores: Scores by place, in the order in which they are shown.
        first: Systems that stand before others, so that each looks the same in several tables.
    """

    measure: str
    axis: str
    scores: Mapping[Place, Score]
    first: Sequence[str] = ()

    @property
    def means(self) -> dict[Place, float]:
        """The means alone."""
        return {at: score.mean for at, score in self.scores.items()}

    @property
    def panels(self) -> list[str]:
        """Names of the panels."""
        return list(dict.fromkeys(panel for panel, _, _ in self.scores))

    @property
    def systems(self) -> list[str]:
        """Names of the systems."""
        return list(dict.fromkeys([*self.first, *(system for _, _, system in self.scores)]))

    @property
    def runs(self) -> int:
        """The most runs of which a score is the mean."""
        return max((score.runs for score in self.scores.values()), default=1)

    def of(self, panel: str) -> "ScoreTable":
        """Return one panel alone."""
        return replace(self, scores={at: one for at, one in self.scores.items() if at[0] == panel})

    def places(self, panel: str) -> list[str]:
        """Return the places on the axis of a panel."""
        of_panel = dict.fromkeys(place for own, place, _ in self.scores if own == panel)
        return [place for place in of_panel if place != ANY]

    def get(self, panel: str, place: str, system: str) -> Score | None:
        """Return a score; for a system that does not depend on the place, its only one."""
        return self.scores.get((panel, place, system)) or self.scores.get((panel, ANY, system))


def mean_scores(values: Iterable[tuple[Place, float | None]]) -> dict[Place, Score]:
    """Return means and deviations of what was measured at each place.

    The value of each run and its place are in the order of the table. None is left out.
    """
    found: dict[Place, list[float]] = {}
    for place, value in values:
        if value is not None:
            found.setdefault(place, []).append(value)
    return {place: Score(*mean_and_deviation(own), len(own)) for place, own in found.items()}


def plain(value: object) -> str:
    """Write a number as papers print it."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return str(value)


def in_words(key: str) -> str:
    """Name an axis."""
    return key.removesuffix(".kind").rpartition(".")[2].replace("_", " ")
