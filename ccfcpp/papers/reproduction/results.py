"""What finished runs came to, in the shape of a table: by images, place on the axis, and system."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import values_of
from ccfcpp.runs.folder import RunFolder


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        config: Its configuration.
        folder: Its folder.
    """

    config: RunConfig
    folder: RunFolder

    @cached_property
    def summary(self) -> dict[str, Any]:
        """As it stands in ``summary.json``.

        Raises:
            UsageError: The file is damaged.
        """
        return self.folder.read_summary()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration by dotted key."""
        return values_of(self.config)

    @property
    def path(self) -> Path:
        """Its folder's path."""
        return self.folder.path


Label = Callable[[Result], str]


@dataclass(frozen=True)
class Score:
    """A measure in one place of a table.

    Attributes:
        mean: Over the seeds.
        deviation: That of a sample (n − 1); None for a single run.
    """

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        """Three decimals."""
        text = f"{self.mean:.3f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.3f}"


Place = tuple[str, str, str]
"""Images, place on the axis, system."""
ANY = "any"
"""The place of a system to which the axis means nothing."""


@dataclass(frozen=True)
class ScoreTable:
    """A measure of several systems under several conditions.

    Attributes:
        measure: What it is.
        axis: What the places on the axis are values of.
        scores: By place, in the order in which they are shown.
        first: Systems that stand before others, so that each looks the same in several tables.
    """

    measure: str
    axis: str
    scores: Mapping[Place, Score]
    first: Sequence[str] = ()

    @property
    def panels(self) -> list[str]:
        """The images."""
        return list(dict.fromkeys(panel for panel, _, _ in self.scores))

    @property
    def systems(self) -> list[str]:
        """All systems."""
        found = dict.fromkeys(system for _, _, system in self.scores)
        return list(dict.fromkeys([*self.first, *found]))

    def places(self, panel: str) -> list[str]:
        """Places on the axis of some images."""
        of_panel = dict.fromkeys(place for own, place, _ in self.scores if own == panel)
        return [place for place in of_panel if place != ANY]

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Images and places on the axis."""
        return [(panel, place) for panel in self.panels for place in self.places(panel)]

    def under(self, panel: str, place: str) -> dict[str, float]:
        """The mean of each system that is known there."""
        found = {system: self.get(panel, place, system) for system in self.systems}
        return {system: score.mean for system, score in found.items() if score is not None}

    def get(self, panel: str, place: str, system: str) -> Score | None:
        """A score; that of any place for a system that does not depend on it."""
        one = self.scores.get((panel, place, system))
        return one or self.scores.get((panel, ANY, system))

    def beside(self, other: "ScoreTable") -> "ScoreTable":
        """Only the conditions of another table; all of them where the two share no images."""
        if not set(self.panels) & set(other.panels):
            return self
        there = {*other.conditions, *((panel, ANY) for panel in other.panels)}
        kept = {where: score for where, score in self.scores.items() if where[:2] in there}
        return replace(self, scores=kept)

    def at(self, *places: str) -> "ScoreTable":
        """Only some places on the axis."""
        kept = {where: score for where, score in self.scores.items() if where[1] in places}
        return replace(self, scores=kept)

    def without(self, place: str) -> "ScoreTable":
        """All but one place on the axis."""
        kept = {where: score for where, score in self.scores.items() if where[1] != place}
        return replace(self, scores=kept)

    def of(self, system: str) -> "ScoreTable":
        """Only one system."""
        kept = {where: score for where, score in self.scores.items() if where[2] == system}
        return replace(self, scores=kept)

    def over(self, system: str, measure: str) -> "ScoreTable":
        """Means over those of one system, under the same conditions, where that one is known.

        Args:
            system: The one that becomes 1.
            measure: What to call the quotient.
        """
        quotients = {
            (panel, place, own): Score(score.mean / one.mean)
            for (panel, place, own), score in self.scores.items()
            if (one := self.scores.get((panel, place, system)))
        }
        return ScoreTable(measure, self.axis, quotients)

    def by_place(self) -> "ScoreTable":
        """With systems and places on the axis exchanged."""
        turned = {(p, system, place): score for (p, place, system), score in self.scores.items()}
        return ScoreTable(self.measure, "system", turned)

    def below_best(self, system: str) -> "ScoreTable":
        """How far a system is, at each place, below its highest value on the same images."""
        own = self.of(system)
        missing = {
            (panel, place, system): Score(
                own.scores[panel, own.best_place(panel, system), system].mean - score.mean
            )
            for (panel, place, _), score in own.scores.items()
        }
        return ScoreTable(f"{self.measure} below the best", self.axis, missing)

    def best_place(self, panel: str, system: str) -> str:
        """Where on the axis a system has its highest value."""
        known = {
            place: score.mean
            for place in self.places(panel)
            if (score := self.scores.get((panel, place, system)))
        }
        return max(known, key=lambda place: known[place])

    def losses(self) -> "ScoreTable":
        """What each system loses from the first place on the axis to the last, if it is another."""
        lost: dict[Place, Score] = {}
        for panel in self.panels:
            if len(places := self.places(panel)) < 2:
                continue
            first, last = places[0], places[-1]
            for system in self.systems:
                begin, end = (self.scores.get((panel, at, system)) for at in (first, last))
                if begin is not None and end is not None:
                    lost[panel, f"{first} to {last}", system] = Score(begin.mean - end.mean)
        return ScoreTable(f"loss of {self.measure}", self.axis, lost)


Measure = Callable[[Result], float | None]


def summarised(key: str, factor: float = 1.0) -> Measure:
    """What a summary says of a run, times a factor, such as 100 for percent."""

    def measure(result: Result) -> float | None:
        value = result.summary.get(key)
        return None if value is None else factor * value

    return measure


def tabulate(
    results: Iterable[Result],
    title: str,
    measure: Measure,
    *,
    axis: str,
    panel: Label,
    place: Label,
    system: Label,
) -> ScoreTable:
    """Means over the seeds.

    Args:
        results: Finished runs; those without the measure are left out.
        title: The measure's name.
        measure: Of a run; None where it has none.
        axis: The axis' name.
        panel: The images of a run.
        place: Its place on the axis.
        system: Its system.
    """
    found: dict[Place, list[float]] = {}
    for result in results:
        value = measure(result)
        if value is not None:
            found.setdefault((panel(result), place(result), system(result)), []).append(value)
    return ScoreTable(title, axis, {where: _score(values) for where, values in found.items()})


def _score(values: Sequence[float]) -> Score:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Score(statistics.fmean(values), deviation)


def setting(key: str) -> Label:
    """The value of a setting, by dotted key, as a label."""

    def label(result: Result) -> str:
        return plain(result.settings[key])

    return label


def plain(value: object) -> str:
    """A number as papers print it."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return str(value)
