"""The papers' tables in the shape of ours."""

from collections.abc import Sequence

from ccfcpp.clustering.methods import METHODS
from ccfcpp.papers.reproduction.results import ANY, Place, Score, ScoreTable, plain
from ccfcpp.papers.tables import (
    SYSTEMS,
    PublishedAccuracy,
    published_accuracies,
    published_clustering,
    published_minutes,
)

ACCURACY = "accuracy in %"
_AXES = {
    1: "alpha",
    2: "classes a client",
    3: "domain",
    4: "clients",
    5: "local epochs",
    7: "alpha",
    8: "network",
}
_TITLES = {"Scaffold": "SCAFFOLD"}


def clustering_table(measure: str, title: str) -> ScoreTable:
    """Table I or II of the CCFC++ paper.

    Args:
        measure: ``nmi`` or ``kappa``.
        title: Its name.
    """
    values = published_clustering(measure)
    scores: dict[Place, Score] = {}
    for name, printed in SYSTEMS.items():
        for (dataset, p, method), value in values.items():
            if method == printed:
                place = dataset, ANY if p is None else plain(p), METHODS[name].title
                scores[place] = Score(value)
    return ScoreTable(title, "p", scores)


def accuracy_table(number: int) -> ScoreTable:
    """Table 1 to 5, 7 or 8 of the FedDecorr paper (TPAMI), with its deviations."""
    return _accuracies(number, published_accuracies(number))


def iclr_table(number: int) -> ScoreTable:
    """Table 3 or 10 of the ICLR paper, in the shape of Tables 4 and 2 of the other."""
    return _accuracies({3: 4, 10: 2}[number], published_accuracies(number, "iclr"))


def _accuracies(number: int, entries: Sequence[PublishedAccuracy]) -> ScoreTable:
    scores = {_place(number, one): Score(one.accuracy, one.deviation) for one in entries}
    return ScoreTable(ACCURACY, _AXES[number], scores)


def _place(number: int, one: PublishedAccuracy) -> Place:
    value = "∞" if one.value == "inf" else one.value
    setting = one.settings.partition("=")[2]
    if number in (4, 5, 8):
        return f"{one.dataset}, alpha = {value}", setting, with_term(one.method, one.feddecorr)
    if number == 7:
        return one.dataset, value, "FedAvg" if setting == "none" else setting
    return one.dataset, value, with_term(_TITLES.get(one.method, one.method), one.feddecorr)


def with_term(method: str, feddecorr: bool) -> str:
    """A system's name."""
    return f"{method} + FedDecorr" if feddecorr else method


def minutes_table() -> ScoreTable:
    """Table 6 of the FedDecorr paper, relative to FedAvg."""
    minutes = published_minutes()
    scores = {
        (dataset, "a round", method): Score(value / minutes[dataset, "FedAvg"])
        for (dataset, method), value in minutes.items()
    }
    return ScoreTable("time of a round over FedAvg's", "", scores)
