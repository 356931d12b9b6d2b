"""The papers' tables of results, as their authors printed them."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "stl10": "STL-10",
}
_ACCURACIES = {"tpami": "feddecorr_accuracy.csv", "iclr": "feddecorr_iclr_accuracy.csv"}
_TABLES = {"nmi": "ccfcpp_table1_nmi.csv", "kappa": "ccfcpp_table2_kappa.csv"}
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
"""The systems of Tables I and II of the CCFC++ paper: the name of ours, and that of their column.
A system that is added to the library, or by a package, is in no published table."""


def published_score(measure: str, dataset: str, p: float | None, method: str) -> float | None:
    """A value of Table I or II of the CCFC++ paper.

    Args:
        measure: ``nmi`` or ``kappa``.
        dataset: A data set's name.
        p: Degree of skew; None for a centralised method.
        method: A method's name, as ``ccfcpp cluster --method`` takes it.

    Returns:
        The value; None where the tables have none.
    """
    table = _clustering_table(measure)
    return table.get((_DATASETS.get(dataset), p, SYSTEMS.get(method, "")))


@cache
def _clustering_table(measure: str) -> dict[tuple[str | None, float | None, str], float]:
    with (_FOLDER / _TABLES[measure]).open(newline="") as file:
        return {
            (row["dataset"], float(row["p"]) if row["p"] else None, row["method"]): float(
                row[measure]
            )
            for row in csv.DictReader(file)
        }


@dataclass(frozen=True)
class PublishedAccuracy:
    """A value of Tables 1 to 8 of the FedDecorr paper (TPAMI), or of Tables 3 and 10 (ICLR).

    Attributes:
        dataset: As printed, such as ``CIFAR10``.
        value: The degree of skew, or the domain, as printed; ``inf`` for the infinite α.
        method: As printed, such as ``FedAvg``; in Table 7 the decorrelation term.
        feddecorr: Whether FedDecorr is added.
        accuracy: In percent.
        deviation: Over three runs; None where none is printed.
        settings: What else sets the cell apart, such as ``clients=20``.
    """

    dataset: str
    value: str
    method: str
    feddecorr: bool
    accuracy: float
    deviation: float | None
    settings: str


def published_accuracies(table: int, paper: str = "tpami") -> list[PublishedAccuracy]:
    """The values of one of the FedDecorr papers' tables of accuracies.

    Args:
        table: Its number: 1 to 5, 7 or 8 of ``tpami``; 3 or 10 of ``iclr``, of which the others are
            in the later paper too.
        paper: ``tpami`` or ``iclr``.
    """
    with (_FOLDER / _ACCURACIES[paper]).open(newline="") as file:
        return [
            PublishedAccuracy(
                row["dataset"],
                row["value"],
                row["method"],
                row["feddecorr"] == "1",
                float(row["accuracy_percent"]),
                float(row["std"]) if row["std"] else None,
                row["setting"],
            )
            for row in csv.DictReader(file)
            if row["table"] == str(table)
        ]


def published_minutes() -> dict[tuple[str, str], float]:
    """Table 6 of the FedDecorr paper: minutes of a round on one V100, by data set and method."""
    with (_FOLDER / "feddecorr_minutes_per_round_v100.csv").open(newline="") as file:
        return {
            (row["dataset"], row["method"]): float(row["minutes_one_round"])
            for row in csv.DictReader(file)
        }


def published_clustering(measure: str) -> dict[tuple[str, float | None, str], float]:
    """Table I or II of the CCFC++ paper, by data set, p (None: centralised) and method's title.

    Args:
        measure: ``nmi`` or ``kappa``.
    """
    return {
        (dataset, p, method): value
        for (dataset, p, method), value in _clustering_table(measure).items()
        if dataset is not None
    }
