"""Vectors from files: `.npy`, `.npz`, `.csv`, `.parquet`, or a folder with a file for each client.

An `.npz` has `vectors` (or `x`) and optionally `labels` (or `y`), `clients`, `columns`, and as
`ccfcpp embed` writes it `names` of the rows and `encoder`, a content hash. A first line of a CSV
file names the columns if it is no line of numbers, or counts three columns and more from 0, as
pandas does. Columns without a name are called by their number, from 0. In a folder files are taken
in the plain order of their names; a client is called as its file without the suffix, and columns
with names may stand in another order in each.
"""

import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import VECTOR_SUFFIXES, files_of, is_hidden
from ccfcpp.core.names import canonical, spellings
from ccfcpp.core.units import counted, first_of
from ccfcpp.data.columns import (
    ENCODE,
    Array,
    Roles,
    Table,
    aligned,
    cells,
    is_number,
    known_names,
    lines_of,
    number_in,
    places,
    row_numbers,
    with_columns,
)
from ccfcpp.data.npz import as_strings
from ccfcpp.data.parquet import read_parquet
from ccfcpp.data.vectors import Missing, VectorData, vectors_from

_FEWEST_COUNTED = 3
"""A first line 0,1 may well be a row; 0,1,2 names columns, as pandas writes them."""
_ELSEWHERE = (
    *(f".csv.{packed}" for packed in ("gz", "bz2", "xz", "zip", "zst")),
    *(".tsv", ".tab", ".xls", ".xlsx", ".ods", ".feather", ".arrow", ".orc", ".pq"),
)
"""Tables that are not read."""
_MOST_NOTES = 5


def read_vectors(
    path: Path,
    *,
    label_column: str | None = None,
    client_column: str | None = None,
    missing: Missing = "refuse",
    columns: Sequence[str] = (),
) -> VectorData:
    """Read vectors from a file or a folder, as described above.

    An `.npy` file of floats is mapped into memory, not read, unless a column is taken out of it.

    Args:
        path: The file or folder.
        label_column: Name of the column with classes.
        client_column: Name of the column that says which client holds a row.
        missing: `mean`: values and columns that are missing become NaN, for the columns' means.
        columns: Of tables that name their columns, those to take, in this order; all without any.

    Raises:
        UsageError: If it cannot be read as vectors; the message is one line.
    """
    label, client = (name and canonical(name) for name in (label_column, client_column))
    if label is not None and label == client:
        raise UsageError(f"column {label_column!r} cannot hold both labels and clients")
    roles = Roles(label, client, tuple(map(canonical, columns)), missing)
    if path.is_dir() and path.suffix.lower() in VECTOR_SUFFIXES:
        raise UsageError(f"{path} is a folder of parts of one table: write it as one file")
    try:
        table = (_read_folder if path.is_dir() else _read)(path, roles)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    data = vectors_from(
        path.resolve().name if path.is_dir() else path.stem,
        table.numbers,
        str(path),
        columns=table.columns,
        labels=table.labels,
        clients=table.clients,
        missing=missing,
    )
    notes = list(dict.fromkeys((*spellings(table.written, "columns"), *data.notes, *table.notes)))
    if len(notes) > _MOST_NOTES:
        notes[_MOST_NOTES:] = [f"and {counted(len(notes) - _MOST_NOTES, 'note')} more on {path}"]
    data = replace(data, encoder=table.encoder, notes=tuple(notes))
    if table.names is None:
        return data
    if table.names.shape != (len(data),):
        raise UsageError(f"{path}: {table.names.size} names for {len(data)} vectors: name each")
    names = tuple(map(str, table.names))
    return replace(data, names=names, named_by="name")


def read_rows(path: Path, d: int, columns: Sequence[str], missing: Missing) -> VectorData:
    """Read vectors for a model, with its columns in its order; others of a table are left out.

    Args:
        path: A file, or a folder of them.
        d: The length of the model's vectors.
        columns: The names of its columns, if they have any.
        missing: As for `read_vectors`.

    Raises:
        UsageError: If it cannot be read, or a column is not there.
    """
    data = read_vectors(path, missing=missing, columns=columns)
    if data.vectors.shape[1] != d:
        raise UsageError(
            f"the vectors of {path} have {data.vectors.shape[1]} columns, and the model is for {d}"
        )
    return data


def _read(path: Path, roles: Roles) -> Table:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give a file of vectors, or a folder of them")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} holds no vectors: give a file {', '.join(VECTOR_SUFFIXES)}")
    table = reader(path, roles)
    if not table.columns or table.numbers.size == 0:
        return table
    if roles.chosen:
        return with_columns(table, roles.chosen)
    counting = row_numbers(path, table.columns, table.numbers)
    return replace(table, notes=(*table.notes, *counting))


def _read_npy(path: Path, roles: Roles) -> Table:
    try:
        # Copied where it is written to, which it never is: PyTorch takes no read-only arrays.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is no .npy file of numbers ({error}): use numpy.save") from error
    return _split(path, Table(np.asarray(array)), roles)


def _read_npz(path: Path, roles: Roles) -> Table:
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: np.asarray(file[name]) for name in file.files}
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} is no .npz file of numbers ({error}): use numpy.savez") from error
    numbers = held.get("vectors", held.get("x"))
    if numbers is None:
        raise UsageError(
            f"{path} has no array 'vectors' (or 'x'): it holds {', '.join(sorted(held)) or '-'}"
        )
    written = tuple(str(name) for name in held.get("columns", np.array([], str)))
    if written and (numbers.ndim != 2 or len(written) != numbers.shape[1]):
        raise UsageError(f"{path}: {len(written)} columns are named for {numbers.shape}: name each")
    table = Table(
        numbers,
        tuple(known_names(path, written)),
        held.get("labels", held.get("y")),
        held.get("clients"),
        held.get("names"),
        str(held.get("encoder", "")),
        written,
    )
    return _split(path, table, roles)


def _split(path: Path, table: Table, roles: Roles) -> Table:
    """Take the columns with roles out of an array."""
    if table.numbers.ndim != 2:
        return table
    names = table.columns or tuple(map(str, range(table.numbers.shape[1])))
    kept = places(path, roles, names, table.written)
    if kept == list(range(len(names))):
        return table
    held = {name: cells(path, name, table.numbers[:, names.index(name)]) for name in roles.named}
    return replace(
        table,
        numbers=table.numbers[:, kept],
        columns=tuple(names[place] for place in kept),
        labels=held.get(roles.label or "", table.labels),
        clients=held.get(roles.client or "", table.clients),
        written=tuple(table.written[place] for place in kept if table.written),
    )


def _read_csv(path: Path, roles: Roles) -> Table:
    line, written = next(lines_of(path), (0, []))
    if not written:
        raise UsageError(f"{path} is empty: a line for each vector is wanted")
    names = numbered = list(map(str, range(len(written))))
    after_index = not written[0].strip() and written[1:] == numbered[:-1]
    counts = len(written) >= _FEWEST_COUNTED and (written == numbered or after_index)
    has_names = counts or not all(map(is_number, written))
    notes: list[str] = []
    if has_names:
        names = known_names(path, written)
    else:
        shown = first_of([cell.strip() or "nothing" for cell in written], _MOST_NOTES)
        notes = [f"the first row, {shown}, is taken for values, and not for names of columns"]
        line, written = 0, []
    kept = places(path, roles, names, written)
    try:
        numbers, named = _fast(path, names, kept, roles, line)
    except (ValueError, UnicodeDecodeError):
        numbers, named = _slow(path, names, kept, roles, line)
    held = {name: cells(path, name, column) for name, column in named.items()}
    return Table(
        numbers,
        tuple(names[place] for place in kept) if has_names or roles.named else (),
        held.get(roles.label or ""),
        held.get(roles.client or ""),
        written=tuple(written[place] for place in kept if written),
        notes=tuple(notes),
    )


_Columns = tuple[Array, dict[str, Array]]
"""The vectors of a file, and its columns of labels and clients by their names."""


def _fast(
    path: Path, names: Sequence[str], places: list[int], roles: Roles, first: int
) -> _Columns:
    """Read the lines after the first ones, if no value is missing; ten times as fast as `_slow`.

    Raises:
        ValueError: It is no such file.
    """
    known: dict[str, dict[str, int]] = {name: {} for name in roles.named}
    converters: dict[int | str, Callable[[str], float]] = {
        place: lambda cell: 0.0 for place in range(len(names)) if place not in places
    }
    for name, numbers_of in known.items():
        converters[names.index(name)] = partial(_numbered, numbers_of)
    with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
        # Where there is no row, the shape says so.
        warnings.simplefilter("ignore", UserWarning)
        found = np.loadtxt(
            file,
            np.float64,
            delimiter=",",
            quotechar='"',
            comments=None,
            skiprows=first,
            converters=converters,
            ndmin=2,
            encoding=None,
        )
    if found.shape[1] != len(names):
        raise ValueError("lines and the names of columns differ in length")
    named: dict[str, Array] = {
        name: np.array([*cells], np.str_)[found[:, names.index(name)].astype(np.int64)]
        for name, cells in known.items()
    }
    numbers: Array = found if places == list(range(len(names))) else found[:, places]
    return numbers, named


def _numbered(known: dict[str, int], cell: str) -> float:
    """Return the number of a cell's text among those that are known, to which it is added."""
    return known.setdefault(cell.strip(), len(known))


def _slow(
    path: Path, names: Sequence[str], places: Sequence[int], roles: Roles, first: int
) -> _Columns:
    """Read cell by cell, in which values may be missing; say which cell is no number."""
    rows: list[list[float]] = []
    named: dict[str, list[str]] = {name: [] for name in roles.named}
    for line, row in (each for each in lines_of(path) if each[0] > first):
        try:
            rows.append([number_in(row[place]) for place in places])
        except ValueError:
            place = next(place for place in places if not is_number(row[place]))
            raise UsageError(
                f"{path}, line {line}: column {names[place]!r} holds {row[place][:40]!r}, which is "
                f"no number: {ENCODE}"
            ) from None
        for name, column in named.items():
            column.append(row[names.index(name)].strip())
    return np.array(rows, np.float64).reshape(-1, len(places)), {
        name: np.array(column, np.str_) for name, column in named.items()
    }


_READERS: dict[str, Callable[[Path, Roles], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": read_parquet,
}


def _read_folder(folder: Path, roles: Roles) -> Table:
    if roles.client is not None:
        raise UsageError(
            f"--client-column {roles.client} has no effect on {folder}, a folder in which each "
            "file is a client: leave it out"
        )
    files = files_of(folder)
    if not files:
        raise UsageError(f"{folder} holds no vectors: put files {', '.join(VECTOR_SUFFIXES)} there")
    names = sorted(each.name for each in folder.iterdir() if not is_hidden(each.name))
    if others := [name for name in names if name.lower().endswith(_ELSEWHERE)]:
        raise UsageError(
            f"{folder} holds {others[0]}, which is not read: write it as .csv or .parquet, or "
            "move it away"
        )
    stems = [file.stem for file in files]
    known_names(folder, stems, "files")
    found = [_read(file, roles) for file in files]
    tables = aligned(list(zip(files, found, strict=True)), roles.missing)
    labels = [as_strings(table.labels) for table in tables if table.labels is not None]
    if 0 < len(labels) < len(tables):
        without = next(f for f, table in zip(files, tables, strict=True) if table.labels is None)
        raise UsageError(f"{without} has no labels, and other files have: give all, or none")
    numbers = [table.numbers for table in tables]
    if len({table.encoder for table in tables}) > 1:
        raise UsageError(
            f"the files of {folder} hold vectors of several encoders: embed them again by one"
        )
    rows = [table.names for table in tables if table.names is not None]
    return Table(
        # A single file may be mapped: it is not copied.
        np.concatenate(numbers) if len(tables) > 1 else numbers[0],
        tables[0].columns,
        np.concatenate(labels) if labels else None,
        np.repeat(np.array(stems), list(map(len, numbers))),
        np.concatenate(rows) if len(rows) == len(tables) else None,
        tables[0].encoder,
        tuple(name for table in found for name in table.written),
        tuple(note for table in found for note in table.notes),
    )
