"""Score tables by panel (data set), axis value (such as p = 0.5) and system: ours, the papers'."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ccfcpp.clustering.methods import METHODS
from ccfcpp.studies.tables import format_number, mean_and_deviation

Place = tuple[str, str, str]
"""Key of a score: panel (data set), place (a value on the axis, such as ``0.5``), system."""
ANY = "any"
"""Place of a system whose score does not depend on the axis."""
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "stl10": "STL-10",
}
"""The data sets of Tables I and II of the CCFC++ paper."""


class Score(NamedTuple):
    """Mean of a measure over runs, and its sample standard deviation (n − 1); None for one run."""

    mean: float
    deviation: float | None = None
    runs: int = 1

    def __str__(self) -> str:
        text = f"{self.mean:.3f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.3f}"


Scores = Mapping[Place, Score]


@dataclass(frozen=True)
class ScoreTable:
    """Scores of one measure, by panel, place on the axis, and system.

    Attributes:
        measure: Name of the measure, such as ``NMI``.
        axis: Name of the setting that varies along the axis.
        scores: Scores by panel, place and system, in display order.
        first: Systems that come first, so that each has the same colour in several tables.
    """

    measure: str
    axis: str
    scores: Scores
    first: Sequence[str] = ()

    @property
    def means(self) -> dict[Place, float]:
        """The mean scores, without their deviations."""
        return {at: score.mean for at, score in self.scores.items()}

    @property
    def panels(self) -> list[str]:
        """Names of the panels (such as data sets); each gets a figure of its own."""
        return list(dict.fromkeys(panel for panel, _, _ in self.scores))

    @property
    def systems(self) -> list[str]:
        """Names of the compared systems; those of ``first`` lead."""
        return list(dict.fromkeys([*self.first, *(system for _, _, system in self.scores)]))

    @property
    def runs(self) -> list[int]:
        """The number of runs over which each score is averaged."""
        return [score.runs for score in self.scores.values()]

    def of(self, panel: str) -> "ScoreTable":
        """Return the table of one panel alone."""
        return replace(self, scores={at: one for at, one in self.scores.items() if at[0] == panel})

    def places(self, panel: str) -> list[str]:
        """Return the axis values of a panel, without ``ANY``."""
        of_panel = dict.fromkeys(place for own, place, _ in self.scores if own == panel)
        return [place for place in of_panel if place != ANY]

    def get(self, panel: str, place: str, system: str) -> Score | None:
        """Return a score, at ``ANY`` if the system does not depend on the axis; None if missing."""
        return self.scores.get((panel, place, system)) or self.scores.get((panel, ANY, system))


def mean_scores(values: Iterable[tuple[Place, float | None]]) -> dict[Place, Score]:
    """Return mean and deviation of the runs' values by key: data set, axis value and system.

    Values of None are left out.
    """
    groups: dict[Place, list[float]] = {}
    for place, value in values:
        if value is not None:
            groups.setdefault(place, []).append(value)
    return {place: Score(*mean_and_deviation(own), len(own)) for place, own in groups.items()}


def divide_by_system(scores: Scores, system: str) -> dict[Place, Score]:
    """Divide all means by those of ``system`` in the same panel (data set) and place (axis value).

    Scores for which it has none are left out. The results have no deviations.
    """
    bases = {at[:2]: score.mean for at, score in scores.items() if at[2] == system}
    return {
        at: Score(score.mean / bases[at[:2]]) for at, score in scores.items() if at[:2] in bases
    }


@cache
def published_scores(table: str) -> dict[Place, Score]:
    """Return the scores of a published table, as its authors printed them.

    Names of tables: ``nmi`` and ``kappa`` are Tables I and II of the CCFC++ paper, which does not
    say which variant of FFCM it ran, so that both have its values. ``tpami 4`` is Table 4 of the
    FedDecorr paper (accuracies), ``iclr 3`` Table 3 of its ICLR version, ``minutes`` Table 6 of
    the TPAMI version.
    """
    with (Path(__file__).parent / "published.csv").open(newline="") as lines:
        return {
            (row["panel"], row["place"], row["system"]): Score(
                float(row["mean"]), float(row["deviation"]) if row["deviation"] else None
            )
            for row in csv.DictReader(lines)
            if row["table"] == table
        }


def published_score(measure: str, dataset: str, p: float | None, method: str) -> float | None:
    """Return a value of Table I (NMI) or II (Kappa) of the CCFC++ paper; None if not there.

    ``measure`` is ``nmi`` or ``kappa``; ``method`` is a name as ``--method`` takes it; p, the
    degree of skew, is None for a centralised method.
    """
    if dataset not in DATASETS or method not in METHODS:
        return None
    place = DATASETS[dataset], ANY if p is None else format_number(p), METHODS[method].title
    score = published_scores(measure).get(place)
    return None if score is None else score.mean
