"""Tables by rows or by columns, and their CSV format."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_FORMULA = tuple("=+-@\t\r")
"""First characters of a cell that a spreadsheet would compute."""


@dataclass(frozen=True)
class Columns:
    """A table stored by columns, whose cells may be computed as they are read.

    Attributes:
        columns: Columns of equal length by name.
    """

    columns: Mapping[str, Iterable[object]]

    def __iter__(self) -> Iterator[dict[str, object]]:
        for row in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, row, strict=True))


Rows = Sequence[Mapping[str, object]] | Columns


def as_csv(rows: Rows) -> str:
    """Format rows as CSV text, with a column for every key that occurs."""
    text = io.StringIO()
    write_csv(text, rows)
    return text.getvalue()


def write_csv(text: TextIO, rows: Rows) -> None:
    """Write rows as CSV to the open file ``text``, with a column for every key that occurs."""
    writer = csv.writer(text, lineterminator="\n")
    if isinstance(rows, Columns):
        writer.writerow(rows.columns)
        writer.writerows(zip(*(map(_cell, own) for own in rows.columns.values()), strict=True))
    else:
        names = dict.fromkeys(name for row in rows for name in row)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name, "")) for name in names] for row in rows)


def csv_bytes(rows: Rows) -> bytes:
    """Format rows as the bytes of a CSV file; file names that are not UTF-8 keep their bytes."""
    return as_csv(rows).encode("utf-8", "surrogateescape")


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file that ``write_csv`` wrote; empty if there is no such file."""
    if not path.is_file():
        return []
    with path.open(newline="", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def text_of(cell: str) -> str:
    """Return the text of a cell that was written with a quote before it if it needed one."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in _FORMULA else cell


def _cell(value: object) -> object:
    """Return a cell's value, with a quote before text that spreadsheets take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value
