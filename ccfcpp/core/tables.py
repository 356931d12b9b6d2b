"""Tables as files."""

import csv
import io
from collections.abc import Mapping, Sequence

_FORMULA = tuple("=+-@\t\r")
"""What a cell begins with that a spreadsheet would compute."""


def rows_of(columns: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return the rows of a table of columns of equal length."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as CSV, with a column for every key."""
    text = io.StringIO()
    names = dict[str, None]()
    for row in rows:
        names.update(dict.fromkeys(row))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def csv_bytes(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return rows as the content of a CSV file; names of files in them may be any bytes."""
    return as_csv(rows).encode("utf-8", "surrogateescape")


def _cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula: file names come from elsewhere."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value
