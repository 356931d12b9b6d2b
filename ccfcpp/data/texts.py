"""Texts from files, for an encoder: `.csv` with a column of texts, `.txt` with a text in each line.

In a folder of these each file is a client, which has the file's name without the suffix.
Rows and lines without a text are left out and not counted.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.data_kinds import files_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.data.columns import files_of_clients, known_names
from ccfcpp.data.table_files import csv_columns, csv_line_of

SUFFIXES = (".csv", ".txt")


class Texts(NamedTuple):
    """Texts, at least one, with the label and client of each as strings, if known."""

    texts: list[str]
    labels: NDArray[np.str_] | None = None
    clients: NDArray[np.str_] | None = None


def holds_texts(path: Path) -> bool:
    """Return whether a path has the suffix of a text file, or is a folder of such files."""
    return path.suffix.lower() in SUFFIXES or (path.is_dir() and bool(files_of(path, SUFFIXES)))


def read_texts(path: Path, text: str, label: str | None = None, client: str | None = None) -> Texts:
    """Read texts from a file or a folder, with labels and clients if columns have them.

    Args:
        path: A file, or a folder of them.
        text: Name of a CSV file's column with the texts.
        label: Name of its column with the classes.
        client: Name of its column with the client of each row.

    Raises:
        UsageError: There are no texts, or a column is missing; the message is one line.
    """
    files = files_of_clients(path, SUFFIXES, client) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix.lower() in SUFFIXES for file in files):
        raise UsageError(
            f"{path} holds no texts: give a .csv file with a column of texts, a .txt file with a "
            "text in each line, or a folder of these with a file for each client"
        )
    wanted = [name for name in (text, label, client) if name is not None]
    rows = [(file.stem, *row) for file in files for row in _read_rows(file, wanted) if row[0]]
    if lacking := {file.stem for file in files} - {row[0] for row in rows}:
        file = next(file for file in files if file.stem in lacking)
        raise UsageError(f"{file} holds no text: all lines are empty; fill it in, or take it out")
    owners, texts, *others = zip(*rows, strict=True)
    known = dict(zip(wanted[1:], map(np.array, others), strict=True))
    clients = np.array(owners) if path.is_dir() else known.get(client or "")
    return Texts(list(texts), known.get(label or ""), clients)


def _read_rows(file: Path, wanted: list[str]) -> list[list[str]]:
    """Return the cells of each row in the columns ``wanted``; the first has the texts."""
    if file.suffix.lower() == ".csv":
        return _read_cells(file, wanted)
    if len(wanted) > 1:
        raise UsageError(
            f"{file} has no column {wanted[1]!r}, since each line is a text: give a .csv file, or "
            "leave the column out"
        )
    try:
        with file.open(encoding="utf-8-sig", newline="") as texts:
            return [[text.strip()] for text in texts]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as text in UTF-8 ({error})") from error


def _read_cells(file: Path, wanted: list[str]) -> list[list[str]]:
    rows = [*zip(*(column.to_pylist() for column in csv_columns(file)), strict=True)]
    names, cells = known_names(file, rows[0] if rows else ()), list[list[str]]()
    for name in wanted:
        if canonical(name) not in names:
            raise UsageError(
                f"{file} has no column {name!r}: it has {', '.join(map(repr, names[:20]))}"
                "; name that of the texts by --text-column"
            )
    positions = [names.index(canonical(name)) for name in wanted]
    for number, row in enumerate(rows[1:], 1):
        cells.append([row[position].strip() for position in positions])
        if cells[-1][0] and "" in cells[-1]:
            empty, line = wanted[cells[-1].index("")], csv_line_of(file, number)
            raise UsageError(f"{file}, line {line}: column {empty!r} is empty: fill it in")
    return cells
