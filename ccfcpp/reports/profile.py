"""Tables that describe clusters by the columns of the clustered table, from ``profile.csv``."""

from collections.abc import Mapping, Sequence
from datetime import date

from ccfcpp.core.tables import text_of
from ccfcpp.core.units import printable_name

_MOST_ROWS, _MOST_NAMED = 20, 3
"""Most rows of a table, and most columns that are named for a cluster."""
Row = Mapping[str, str]
"""A row of ``profile.csv``, as ``ccfcpp.clustering.evaluation.profile`` describes it."""


def profile_table(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Tabulate the columns in which clusters differ most: means, and shares of categories."""
    return [
        {"column": _name(row)}
        | {place: _value(row, place) for place in ("all", *_clusters(row))}
        | {"variance between clusters": f"{float(row['differs']):.0%}"}
        for row in rows[:_MOST_ROWS]
    ]


def distinctions(rows: Sequence[Row]) -> dict[str, str]:
    """Name the columns that set each cluster apart, by the cluster.

    They are those whose mean in the cluster is the most deviations from the mean of all; of a
    column of categories, the one category for which this is so.
    """
    found = {}
    for place in _clusters(rows[0]) if rows else ():
        named = dict[str, str]()
        for row in sorted(rows, key=lambda row: -_distance(row, place)):
            if _distance(row, place) > 0 and len(named) < _MOST_NAMED:
                text = f"{_name(row)} {_value(row, place)} (all: {_value(row, 'all')})"
                named.setdefault(row["column"], text)
        if named:
            found[place] = ", ".join(named.values())
    return found


def _clusters(row: Row) -> list[str]:
    return [place for place in row if place.startswith("cluster ")]


def _name(row: Row) -> str:
    names = (text_of(row[key]) for key in ("column", "category"))
    return printable_name(": ".join(filter(None, names)))


def _value(row: Row, place: str) -> str:
    """Return a cell as text: a share in percent, a number with four digits, a date as it is."""
    text = row[place]
    if not text or _is_date(text):
        return text or "\N{EN DASH}"
    if row["category"]:
        return f"{float(text):.0%}"
    number = float(text)
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e9 else f"{number:.4g}"


def _distance(row: Row, place: str) -> float:
    """Return how many deviations a cluster's mean is from that of all; 0 if either is unknown."""
    if not row[place] or not float(row["deviation"] or 0):
        return 0.0
    own, whole = (
        date.fromisoformat(text).toordinal() if _is_date(text) else float(text)
        for text in (row[place], row["all"])
    )
    return abs(own - whole) / float(row["deviation"])


def _is_date(text: str) -> bool:
    return text[4:5] == text[7:8] == "-"
