"""Texts from files, for an encoder: `.csv` with a column of texts, `.txt` with a text in each line.

A folder of these has a file for each client, called as its file without the suffix. Rows and lines
without a text are left out of the data and counted nowhere.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import files_of
from ccfcpp.core.names import canonical
from ccfcpp.data.columns import known_names, lines_of

SUFFIXES = (".csv", ".txt")


@dataclass(frozen=True)
class Texts:
    """Texts with optional labels and clients.

    Attributes:
        texts: The texts, one at least.
        labels: Strings of shape `(texts,)`; None without labels.
        clients: Likewise.
    """

    texts: list[str]
    labels: NDArray[np.str_] | None = None
    clients: NDArray[np.str_] | None = None


def hold_texts(path: Path) -> bool:
    """Whether a path is that of texts by its name, or of a folder of such files."""
    return path.suffix.lower() in SUFFIXES or (path.is_dir() and bool(files_of(path, SUFFIXES)))


def read_texts(path: Path, text: str, label: str | None = None, client: str | None = None) -> Texts:
    """Read texts.

    Args:
        path: A file, or a folder of them.
        text: Name of a CSV file's column of texts.
        label: Name of its column with classes.
        client: Name of its column that says which client holds a row.

    Raises:
        UsageError: There are none, or a column is not there; the message is one line.
    """
    files = files_of(path, SUFFIXES) if path.is_dir() else [path]
    if path.is_dir() and client is not None:
        raise UsageError(
            f"--client-column {client} has no effect on {path}, a folder in which each file is a "
            "client: leave it out"
        )
    if not files or not all(file.is_file() and file.suffix.lower() in SUFFIXES for file in files):
        raise UsageError(
            f"{path} holds no texts: give a .csv file with a column of texts, a .txt file with a "
            "text in each line, or a folder of these with a file for each client"
        )
    wanted = [name for name in (text, label, client) if name is not None]
    rows: list[list[str]] = []
    owners: list[str] = []
    known_names(path, [file.stem for file in files], "files")
    for file in files:
        own = [row for row in _rows(file, wanted) if row[0]]
        rows += own
        owners += [file.stem] * len(own)
    if not rows:
        raise UsageError(f"{path} holds no text: all lines are empty")
    columns = dict(zip(wanted, map(list, zip(*rows, strict=True)), strict=True))
    clients = owners if path.is_dir() else columns[client] if client is not None else None
    return Texts(
        columns[text],
        None if label is None else np.array(columns[label]),
        None if clients is None else np.array(clients),
    )


def _rows(file: Path, wanted: list[str]) -> list[list[str]]:
    """Return the columns that are wanted, of which the first is that of texts."""
    if file.suffix.lower() == ".csv":
        return _cells_of(file, wanted)
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


def _cells_of(file: Path, wanted: list[str]) -> list[list[str]]:
    lines = lines_of(file)
    _, written = next(lines, (0, []))
    names, found = known_names(file, written), list[list[str]]()
    for name in wanted:
        if canonical(name) not in names:
            raise UsageError(
                f"{file} has no column {name!r}: it has {', '.join(map(repr, names[:20]))}"
                "; name that of the texts by --text-column"
            )
    places = [names.index(canonical(name)) for name in wanted]
    for number, row in lines:
        found.append([row[place].strip() for place in places])
        if found[-1][0] and "" in found[-1]:
            empty = wanted[found[-1].index("")]
            raise UsageError(f"{file}, line {number}: column {empty!r} is empty: fill it in")
    return found
