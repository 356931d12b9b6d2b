"""The papers' tables of results, as their authors printed them."""

import csv
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "stl10": "STL-10",
}
_TABLES = {"nmi": "ccfcpp_table1_nmi.csv", "kappa": "ccfcpp_table2_kappa.csv"}
# The paper does not say which of FFCM's variants it has.
_COLUMNS = {"FFCM-avg": "FFCM", "FFCM-km": "FFCM"}


def published_score(measure: str, dataset: str, p: float | None, method: str) -> float | None:
    """A value of Table I or II of the CCFC++ paper.

    Args:
        measure: ``nmi`` or ``kappa``.
        dataset: A data set's name.
        p: Degree of skew; None for a centralised method.
        method: A method's title.

    Returns:
        The value; None where the tables have none.
    """
    table = _clustering_table(measure)
    return table.get((_DATASETS.get(dataset), p, _COLUMNS.get(method, method)))


@cache
def _clustering_table(measure: str) -> dict[tuple[str | None, float | None, str], float]:
    with (_FOLDER / _TABLES[measure]).open(newline="") as file:
        return {
            (row["dataset"], float(row["p"]) if row["p"] else None, row["method"]): float(
                row[measure]
            )
            for row in csv.DictReader(file)
        }
