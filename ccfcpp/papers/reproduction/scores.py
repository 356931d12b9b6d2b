"""Tables of scores: means over seeds by panel, place on the axis and system."""

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

Place = tuple[str, str, str]
"""Panel (the images), place on the axis, system."""
Pairs = Sequence[tuple[str, str]]
"""Systems of which the first is compared with the second."""
ANY = "any"
"""The place of a system to which the axis means nothing."""


@dataclass(frozen=True)
class Score:
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
    def panels(self) -> list[str]:
        """Names of the panels."""
        return list(dict.fromkeys(panel for panel, _, _ in self.scores))

    @property
    def systems(self) -> list[str]:
        """Names of the systems."""
        found = dict.fromkeys(system for _, _, system in self.scores)
        return list(dict.fromkeys([*self.first, *found]))

    @property
    def runs(self) -> int:
        """The most runs of which a score is the mean."""
        return max((score.runs for score in self.scores.values()), default=1)

    def places(self, panel: str) -> list[str]:
        """Return the places on the axis of a panel."""
        of_panel = dict.fromkeys(place for own, place, _ in self.scores if own == panel)
        return [place for place in of_panel if place != ANY]

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Pairs of a panel and a place on its axis."""
        return [(panel, place) for panel in self.panels for place in self.places(panel)]

    def get(self, panel: str, place: str, system: str) -> Score | None:
        """Return a score; for a system that does not depend on the place, its only one."""
        return self.scores.get((panel, place, system)) or self.scores.get((panel, ANY, system))

    def under(self, panel: str, place: str) -> dict[str, float]:
        """Return the mean of each system that is known under a condition."""
        return {own: one.mean for own in self.systems if (one := self.get(panel, place, own))}

    def line(self, panel: str, system: str) -> dict[str, float]:
        """Return the known means of a system along the axis."""
        places = ((place, (panel, place, system)) for place in self.places(panel))
        return {place: self.scores[at].mean for place, at in places if at in self.scores}

    # --- parts of the table ---

    def where(self, wanted: Callable[[Place], bool]) -> "ScoreTable":
        """Return the table with the wanted places only."""
        return replace(self, scores={at: one for at, one in self.scores.items() if wanted(at)})

    def beside(self, other: "ScoreTable") -> "ScoreTable":
        """Return only the conditions of another table; all where the two share no panel."""
        if not set(self.panels) & set(other.panels):
            return self
        there = {*other.conditions, *((panel, ANY) for panel in other.panels)}
        return self.where(lambda at: at[:2] in there)

    def at(self, *places: str) -> "ScoreTable":
        """Return only some places on the axis."""
        return self.where(lambda at: at[1] in places)

    def without(self, place: str) -> "ScoreTable":
        """Return all but one place on the axis."""
        return self.where(lambda at: at[1] != place)

    def of(self, system: str) -> "ScoreTable":
        """Return only one system."""
        return self.where(lambda at: at[2] == system)

    # --- tables made from it ---

    def over(self, system: str, measure: str) -> "ScoreTable":
        """Divide means by those of one system under the same conditions, where it is known."""
        quotients = {
            (panel, place, own): Score(score.mean / one.mean)
            for (panel, place, own), score in self.scores.items()
            if (one := self.scores.get((panel, place, system)))
        }
        return ScoreTable(measure, self.axis, quotients)

    def gains(self, pairs: Pairs) -> "ScoreTable":
        """Subtract the second of each pair from the first, and name the difference by the first.

        Each system should be the first one of a single pair.
        """
        scores = {place: Score(gain) for place, gain in self.differences(pairs)}
        return ScoreTable(f"gain in {self.measure}", self.axis, scores)

    def differences(self, pairs: Pairs) -> list[tuple[Place, float]]:
        """Subtract the second of each pair from the first, wherever both are known."""
        found: list[tuple[Place, float]] = []
        for panel, place in self.conditions:
            values = self.under(panel, place)
            found += [
                ((panel, place, first), values[first] - values[second])
                for first, second in pairs
                if first in values and second in values
            ]
        return found

    def by_place(self) -> "ScoreTable":
        """Exchange systems and places on the axis."""
        turned = {(p, system, place): score for (p, place, system), score in self.scores.items()}
        return ScoreTable(self.measure, "system", turned)

    def below_best(self, system: str) -> "ScoreTable":
        """Return how far a system is, at each place, below its highest value in the panel."""
        missing = {
            (panel, place, system): Score(max(line.values()) - mean)
            for panel in self.panels
            for line in [self.line(panel, system)]
            for place, mean in line.items()
        }
        return ScoreTable(f"{self.measure} below the best", self.axis, missing)

    def best_place(self, panel: str, system: str) -> str:
        """Return the place on the axis where a system has its highest value."""
        line = self.line(panel, system)
        return max(line, key=line.__getitem__)

    def losses(self) -> "ScoreTable":
        """Return what each system loses from the first place on the axis to the last."""
        lost: dict[Place, Score] = {}
        for panel in self.panels:
            first, *others = self.places(panel) or [""]
            for system in self.systems if others else ():
                line = self.line(panel, system)
                if first in line and others[-1] in line:
                    place = panel, f"{first} to {others[-1]}", system
                    lost[place] = Score(line[first] - line[others[-1]])
        return ScoreTable(f"loss of {self.measure}", self.axis, lost)

    def steps(self, change: Callable[[float, float], float] = operator.sub) -> "ScoreTable":
        """Return the changes from each place on the axis to the next one that is known.

        ``change`` takes the later value and the earlier one.
        """
        changes = {
            (panel, f"{first} to {second}", system): Score(change(line[second], line[first]))
            for panel in self.panels
            for system in self.systems
            for line in [self.line(panel, system)]
            for first, second in pairwise(line)
        }
        return ScoreTable(f"change of {self.measure}", self.axis, changes)

    def places_to_last_of(self, system: str) -> "ScoreTable":
        """Return the place, a number, where each system first reaches one system's last value.

        Where it never does, the number is one more than the last place.
        """
        scores: dict[Place, Score] = {}
        for panel in self.panels:
            *_, last = self.places(panel)
            goal = self.line(panel, system)[last]
            for own in self.systems:
                reached = [int(at) for at, mean in self.line(panel, own).items() if mean >= goal]
                scores[panel, self.axis, own] = Score([*reached, int(last) + 1][0])
        return ScoreTable(self.axis, "", scores)


def mean_scores(values: Iterable[tuple[Place, float | None]]) -> dict[Place, Score]:
    """Return means and deviations of what was measured at each place.

    The value of each run and its place are in the order of the table. None is left out.
    """
    found: dict[Place, list[float]] = {}
    for place, value in values:
        if value is not None:
            found.setdefault(place, []).append(value)
    return {
        place: Score(
            statistics.fmean(own), statistics.stdev(own) if len(own) > 1 else None, len(own)
        )
        for place, own in found.items()
    }


def plain(value: object) -> str:
    """Write a number as papers print it."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return str(value)


def in_words(key: str) -> str:
    """Name an axis."""
    return key.removesuffix(".kind").rpartition(".")[2].replace("_", " ")
