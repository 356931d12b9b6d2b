"""Tables of scores by panel, place on the axis and system: ours over seeds, and the papers'."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ccfcpp.clustering.methods import METHODS
from ccfcpp.studies.tables import format_number, mean_and_deviation

Place = tuple[str, str, str]
"""Panel (the images), place on the axis, system."""
ANY = "any"
"""The place of a system to which the axis means nothing."""
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "stl10": "STL-10",
}
"""The data sets of Tables I and II of the CCFC++ paper."""


class Score(NamedTuple):
    """A measure in one place of a table: its mean, and its deviation (n − 1) over several runs."""

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
        axis: Name of the quantity that varies along the axis.
        scores: Scores by place, in the order in which they are shown.
        first: Systems that come before others, so that each looks the same in several tables.
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
        """Names of the panels (such as data sets), which each get a figure of their own."""
        return list(dict.fromkeys(panel for panel, _, _ in self.scores))

    @property
    def systems(self) -> list[str]:
        """Names of the compared systems; those of ``first`` lead."""
        return list(dict.fromkeys([*self.first, *(system for _, _, system in self.scores)]))

    @property
    def runs(self) -> int:
        """The largest number of runs over which a score is averaged."""
        return max((score.runs for score in self.scores.values()), default=1)

    def of(self, panel: str) -> "ScoreTable":
        """Return the table of one panel alone."""
        return replace(self, scores={at: one for at, one in self.scores.items() if at[0] == panel})

    def places(self, panel: str) -> list[str]:
        """Return the places on the axis of a panel."""
        of_panel = dict.fromkeys(place for own, place, _ in self.scores if own == panel)
        return [place for place in of_panel if place != ANY]

    def get(self, panel: str, place: str, system: str) -> Score | None:
        """Return a score; for a system that does not depend on the place, its only one."""
        return self.scores.get((panel, place, system)) or self.scores.get((panel, ANY, system))


def mean_scores(values: Iterable[tuple[Place, float | None]]) -> dict[Place, Score]:
    """Return means and deviations of the measure at each place, in the order of the table.

    Runs without a value are left out.
    """
    found: dict[Place, list[float]] = {}
    for place, value in values:
        if value is not None:
            found.setdefault(place, []).append(value)
    return {place: Score(*mean_and_deviation(own), len(own)) for place, own in found.items()}


def divide_by_system(scores: Scores, system: str) -> dict[Place, Score]:
    """Divide means by those of one system in the same place; places without it are left out."""
    bases = {at[:2]: score.mean for at, score in scores.items() if at[2] == system}
    return {
        at: Score(score.mean / bases[at[:2]]) for at, score in scores.items() if at[:2] in bases
    }


@cache
def published_scores(table: str) -> dict[Place, Score]:
    """Return a table of results as its authors printed it, in the form of ours.

    ``nmi`` and ``kappa`` are Tables I and II of the CCFC++ paper, which does not say which of
    FFCM's variants its column has: both have its values. ``tpami 4`` is that table of accuracies of
    the FedDecorr paper, ``iclr 3`` of the ICLR version; ``minutes`` is Table 6 of the former.
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
    """Return a value of Table I or II of the CCFC++ paper; None if the tables have none.

    The measure is ``nmi`` or ``kappa``, the method's name as ``--method`` takes it, and p None for
    a centralised method.
    """
    if dataset not in DATASETS or method not in METHODS:
        return None
    place = DATASETS[dataset], ANY if p is None else format_number(p), METHODS[method].title
    score = published_scores(measure).get(place)
    return None if score is None else score.mean
