"""The papers' tables of results as their authors printed them, in the shape of ours."""

import csv
from functools import cache
from pathlib import Path

from ccfcpp.clustering.methods import METHODS
from ccfcpp.studies.reproduction.scores import ANY, Place, Score, plain

_FOLDER = Path(__file__).parent.parent / "tables"
_CLUSTERING = {"nmi": "ccfcpp_table1_nmi", "kappa": "ccfcpp_table2_kappa"}
_ACCURACIES = {"tpami": "feddecorr_accuracy", "iclr": "feddecorr_iclr_accuracy"}
_BY_ALPHA = ("tpami 4", "tpami 5", "tpami 8", "iclr 3")
"""Tables with a panel for each alpha."""
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "stl10": "STL-10",
}
"""The data sets of Tables I and II of the CCFC++ paper."""
_TITLES = {"Scaffold": "SCAFFOLD"}
SYSTEMS = {
    "km": "KM",
    "fcm": "FCM",
    "k-fed": "k-FED",
    # The paper does not say which of FFCM's variants it has.
    "ffcm-avg": "FFCM",
    "ffcm-km": "FFCM",
    "sda-fc-km": "SDA-FC-KM",
    "sda-fc-fcm": "SDA-FC-FCM",
    "ppfc-gan": "PPFC-GAN",
    "ccfc": "CCFC",
    "ccfc++": "CCFC++",
}
"""The systems of Tables I and II of the CCFC++ paper: our name, and that of their column. A system
that is added to the library, or by a package, is in no published table."""


@cache
def _rows(file: str) -> list[dict[str, str]]:
    with (_FOLDER / f"{file}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def published_score(measure: str, dataset: str, p: float | None, method: str) -> float | None:
    """Return a value of Table I or II of the CCFC++ paper; None where the tables have none.

    The measure is ``nmi`` or ``kappa``, the method's name as ``--method`` takes it, and p None for
    a centralised method.
    """
    if dataset not in DATASETS or method not in SYSTEMS:
        return None
    place = DATASETS[dataset], ANY if p is None else plain(p), METHODS[method].title
    score = published_scores(measure).get(place)
    return None if score is None else score.mean


@cache
def published_scores(name: str) -> dict[Place, Score]:
    """Return a table of a paper by its name.

    ``nmi`` and ``kappa`` are Tables I and II of the CCFC++ paper; ``tpami 4`` is that table of
    accuracies of the FedDecorr paper, ``iclr 3`` of the ICLR version; ``minutes`` is Table 6 of the
    former, relative to FedAvg.
    """
    paper, _, number = name.partition(" ")
    if paper in _CLUSTERING:
        return {
            (row["dataset"], plain(float(row["p"])) if row["p"] else ANY, METHODS[system].title):
            Score(float(row[paper]))
            for system, column in SYSTEMS.items()
            for row in _rows(_CLUSTERING[paper])
            if row["method"] == column
        }  # fmt: skip
    if number:
        return {
            _place(name, row): Score(
                float(row["accuracy_percent"]), float(row["std"]) if row["std"] else None
            )
            for row in _rows(_ACCURACIES[paper])
            if row["table"] == number
        }
    minutes = {
        (row["dataset"], row["method"]): float(row["minutes_one_round"])
        for row in _rows("feddecorr_minutes_per_round_v100")
    }
    return {
        (dataset, "a round", method): Score(value / minutes[dataset, "FedAvg"])
        for (dataset, method), value in minutes.items()
    }


def _place(name: str, row: dict[str, str]) -> Place:
    value = "∞" if row["value"] == "inf" else row["value"]
    setting = row["setting"].partition("=")[2]
    system = with_term(_TITLES.get(row["method"], row["method"]), row["feddecorr"] == "1")
    if name in _BY_ALPHA:
        return f"{row['dataset']}, alpha = {value}", setting, system
    if name == "tpami 7":
        system = "FedAvg" if setting == "none" else setting
    return row["dataset"], value, system


def with_term(method: str, feddecorr: bool) -> str:
    """Name a method with FedDecorr or without it."""
    return f"{method} + FedDecorr" if feddecorr else method
