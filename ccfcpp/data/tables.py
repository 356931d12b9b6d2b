"""Vectors from files: `.npy`, `.npz`, `.csv`, `.parquet`, or a folder with a file for each client.

An `.npz` has `vectors` (or `x`) and optionally `labels` (or `y`), `clients`, `columns`, and as
`ccfcpp embed` writes it `names` of the rows and `encoder`, a content hash. A first line of a CSV
file names the columns if it is no line of numbers, or counts three columns and more from 0, as
pandas does. Columns without a name are called by their number, from 0. In a folder files are taken
in the plain order of their names; a client is called as its file without the suffix, and columns
with names may stand in another order in each.
"""

import csv
import itertools
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import VECTOR_SUFFIXES, files_of
from ccfcpp.data.vectors import Missing, VectorData, vectors_from

_Array = NDArray[np.generic]
_NOTHING = frozenset(("", "na", "n/a", "nan", "null", "none"))
"""What stands in a cell without a value, in small letters."""
_FEWEST_COUNTED = 3
"""A first line 0,1 may well be a row; 0,1,2 names columns, as pandas writes them."""
_ELSEWHERE = (".tsv", ".tab", ".csv.gz", ".xls", ".xlsx", ".ods", ".feather")
"""Tables that are not read."""
_ENCODE = "encode it, take the column out, or name it by --label-column or --client-column"


@dataclass(frozen=True)
class Table:
    """What a file holds.

    Attributes:
        numbers: Of shape `(n, d)`.
        columns: Names of the d columns; empty if they have none.
        labels: Of shape `(n,)`; None without labels.
        clients: Likewise.
        names: Names of the rows, of shape `(n,)`; None without names.
        encoder: Content hash of what made the vectors; empty where it is not known.
    """

    numbers: _Array
    columns: tuple[str, ...] = ()
    labels: _Array | None = None
    clients: _Array | None = None
    names: _Array | None = None
    encoder: str = ""


@dataclass(frozen=True)
class Roles:
    """What columns are, by their names.

    Attributes:
        label: The one with classes, no part of the vectors; None where there is none.
        client: Likewise, the one with clients.
        chosen: Those that make up the vectors; all others where it is empty.
        missing: Whether a file that lacks some of these is refused, or has NaN in their place.
    """

    label: str | None = None
    client: str | None = None
    chosen: tuple[str, ...] = ()
    missing: Missing = "refuse"

    @property
    def named(self) -> list[str]:
        """The names that are given."""
        return [name for name in (self.label, self.client) if name is not None]


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
    if label_column is not None and label_column == client_column:
        raise UsageError(f"column {label_column!r} cannot hold both labels and clients")
    roles = Roles(label_column, client_column, tuple(columns), missing)
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
    if table.names is None:
        return replace(data, encoder=table.encoder)
    if table.names.shape != (len(data),):
        raise UsageError(f"{path}: {table.names.size} names for {len(data)} vectors: name each")
    names = tuple(map(str, table.names))
    return replace(data, encoder=table.encoder, names=names, named_by="name")


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
    return _with_columns(table, roles.chosen) if roles.chosen and table.columns else table


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
    columns = tuple(str(name) for name in held.get("columns", np.array([], str)))
    if columns and (numbers.ndim != 2 or len(columns) != numbers.shape[1]):
        raise UsageError(f"{path}: {len(columns)} columns are named for {numbers.shape}: name each")
    table = Table(
        numbers,
        columns,
        held.get("labels", held.get("y")),
        held.get("clients"),
        held.get("names"),
        str(held.get("encoder", "")),
    )
    return _split(path, table, roles)


def _split(path: Path, table: Table, roles: Roles) -> Table:
    """Take the columns with roles out of an array."""
    if table.numbers.ndim != 2:
        return table
    names = table.columns or tuple(map(str, range(table.numbers.shape[1])))
    kept = _places(path, roles, names, bool(table.columns))
    if kept == list(range(len(names))):
        return table
    taken = {name: table.numbers[:, names.index(name)] for name in roles.named}
    return replace(
        table,
        numbers=table.numbers[:, kept],
        columns=tuple(names[place] for place in kept),
        labels=table.labels if roles.label is None else _names(taken[roles.label]),
        clients=table.clients if roles.client is None else _names(taken[roles.client]),
    )


def _names(column: _Array) -> _Array:
    """Return whole numbers as integers, so that they can be names, and 10 comes after 2."""
    if column.dtype.kind not in "fU":
        return column
    try:
        whole = column.astype(np.int64)
    except (ValueError, OverflowError):
        return column
    # Numbers that begin with zeros, such as 007, are names as they are.
    return whole if (whole.astype(column.dtype) == column).all() else column


def _places(path: Path, roles: Roles, names: Sequence[str], are_names: bool) -> list[int]:
    """Return the places of the columns that make up the vectors."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{path} has two columns {twice!r}: give each a name of its own")
    chosen = roles.chosen if are_names else ()
    if roles.missing == "mean":
        there = tuple(name for name in chosen if name in names)
        # Columns that are written otherwise, or mostly absent, are no column that a file lacks.
        written = {name.strip().casefold() for name in set(names) - set(chosen)}
        if 2 * len(there) >= len(chosen) and not any(
            name.strip().casefold() in written for name in set(chosen) - set(there)
        ):
            chosen = there
    for name in (*roles.named, *chosen):
        if name not in names:
            shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
            raise UsageError(f"{path} has no column {name!r}: it has {shown}")
    kept = chosen or [name for name in names if name not in roles.named]
    if not kept:
        raise UsageError(f"{path} has no column beside {', '.join(roles.named)}: nothing is left")
    return [names.index(name) for name in kept]


def _read_csv(path: Path, roles: Roles) -> Table:
    _, names = next(_lines(path, has_names=False), (0, []))
    if not names:
        raise UsageError(f"{path} is empty: a line for each vector is wanted")
    numbered = list(map(str, range(len(names))))
    after_index = not names[0].strip() and names[1:] == numbered[:-1]
    counts = len(names) >= _FEWEST_COUNTED and (names == numbered or after_index)
    has_names = counts or not all(map(_is_number, names))
    if (
        has_names
        and not roles.chosen
        and (unnamed := [n for n, name in enumerate(names, 1) if not name.strip()])
    ):
        raise UsageError(
            f"{path}: column {unnamed[0]} has no name, as an index that pandas has written: take "
            "it out (index=False), or give it a name"
        )
    if not has_names:
        names = numbered
    places = _places(path, roles, names, has_names)
    try:
        numbers, named = _fast(path, names, places, roles, has_names)
    except (ValueError, UnicodeDecodeError):
        numbers, named = _slow(path, names, places, roles, has_names)
    for name, column in named.items():
        if len(empty := np.flatnonzero(column == "")):
            raise UsageError(f"{path}: column {name!r} is empty in row {empty[0] + 1}: fill it in")
    return Table(
        numbers,
        tuple(names[place] for place in places) if has_names or roles.named else (),
        None if roles.label is None else _names(named[roles.label]),
        None if roles.client is None else _names(named[roles.client]),
    )


_Columns = tuple[_Array, dict[str, _Array]]
"""The vectors of a file, and its columns of labels and clients by their names."""


def _fast(
    path: Path, names: Sequence[str], places: list[int], roles: Roles, has_names: bool
) -> _Columns:
    """Read a file in which no value is missing, ten times as fast as `_slow`.

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
            skiprows=int(has_names),
            converters=converters,
            ndmin=2,
            encoding=None,
        )
    if found.shape[1] != len(names):
        raise ValueError("lines and the names of columns differ in length")
    named: dict[str, _Array] = {
        name: np.array([*cells], np.str_)[found[:, names.index(name)].astype(np.int64)]
        for name, cells in known.items()
    }
    numbers: _Array = found if places == list(range(len(names))) else found[:, places]
    return numbers, named


def _numbered(known: dict[str, int], cell: str) -> float:
    """Return the number of a cell's text among those that are known, to which it is added."""
    return known.setdefault(cell.strip(), len(known))


def _slow(
    path: Path, names: Sequence[str], places: Sequence[int], roles: Roles, has_names: bool
) -> _Columns:
    """Read cell by cell, in which values may be missing; say which cell is no number."""
    rows: list[list[float]] = []
    named: dict[str, list[str]] = {name: [] for name in roles.named}
    for line, row in _lines(path, has_names):
        if len(row) != len(names):
            raise UsageError(
                f"{path}, line {line}: {len(row)} cells, but there are {len(names)} columns"
            )
        try:
            rows.append([_number(row[place]) for place in places])
        except ValueError:
            place = next(place for place in places if not _is_number(row[place]))
            raise UsageError(
                f"{path}, line {line}: column {names[place]!r} holds {row[place][:40]!r}, which is "
                f"no number: {_ENCODE}"
            ) from None
        for name, column in named.items():
            column.append(row[names.index(name)].strip())
    return np.array(rows, np.float64).reshape(-1, len(places)), {
        name: np.array(column, np.str_) for name, column in named.items()
    }


def _lines(path: Path, has_names: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty, without the names."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.reader(file)
            rows = ((reader.line_num, row) for row in reader if row)
            yield from itertools.islice(rows, int(has_names), None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is no CSV file in UTF-8 ({error})") from error


def _number(cell: str) -> float:
    """Return the number in a cell, NaN where there is no value; raise ``ValueError`` for others."""
    return np.nan if cell.strip().lower() in _NOTHING else float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path, roles: Roles) -> Table:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UsageError(
            f"{path} needs pyarrow, which is not installed: pip install '.[parquet]'"
        ) from error
    try:
        found = ParquetFile(path).read()
    except ArrowException as error:
        raise UsageError(f"{path} is no Parquet file ({error})") from error
    names = list(map(str, found.column_names))
    kept = [names[place] for place in _places(path, roles, names, True)]
    labels, clients = (
        None if name is None else _parquet_names(path, name, found[name].to_pylist())
        for name in (roles.label, roles.client)
    )
    numbers = np.column_stack([_parquet_numbers(path, name, found[name]) for name in kept])
    return Table(numbers, tuple(kept), labels, clients)


def _parquet_names(path: Path, name: str, cells: list[object]) -> _Array:
    for row, cell in enumerate(cells, 1):
        if cell is None or cell != cell:
            raise UsageError(f"{path}: column {name!r} is empty in row {row}: fill it in")
    found = np.asarray(cells)
    return _names(found.astype(np.str_) if found.dtype.kind == "b" else found)


def _parquet_numbers(path: Path, name: str, column: object) -> _Array:
    numbers: _Array = column.to_numpy()  # type: ignore[attr-defined] # pyarrow has no types
    if numbers.dtype.kind not in "fiub":
        raise UsageError(
            f"{path}: column {name!r} holds {column.type}, no numbers: {_ENCODE}"  # type: ignore[attr-defined]
        )
    return numbers


_READERS: dict[str, Callable[[Path, Roles], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
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
    if others := [each.name for each in folder.iterdir() if each.name.lower().endswith(_ELSEWHERE)]:
        raise UsageError(
            f"{folder} holds {min(others)}, which is not read: write it as .csv or .parquet, or "
            "move it away"
        )
    stems = [file.stem for file in files]
    if twice := [stem for stem in stems if stems.count(stem) > 1]:
        raise UsageError(f"{folder} has two files {twice[0]}: a file is a client, rename one")
    tables = _aligned([(file, _read(file, roles)) for file in files], roles.missing)
    labels = [table.labels for table in tables if table.labels is not None]
    if 0 < len(labels) < len(tables):
        without = next(f for f, table in zip(files, tables, strict=True) if table.labels is None)
        raise UsageError(f"{without} has no labels, and other files have: give all, or none")
    numbers = [table.numbers for table in tables]
    if len({table.encoder for table in tables}) > 1:
        raise UsageError(
            f"the files of {folder} hold vectors of several encoders: embed them again by one"
        )
    names = [table.names for table in tables if table.names is not None]
    return Table(
        # A single file may be mapped: it is not copied.
        np.concatenate(numbers) if len(tables) > 1 else numbers[0],
        tables[0].columns,
        np.concatenate(labels) if labels else None,
        np.repeat(np.array(stems), list(map(len, numbers))),
        np.concatenate(names) if len(names) == len(tables) else None,
        tables[0].encoder,
    )


def _aligned(tables: Sequence[tuple[Path, Table]], missing: Missing) -> list[Table]:
    """Bring columns into the same order; one that a file lacks is refused, or becomes NaN."""
    everything = list(dict.fromkeys(name for _, table in tables for name in table.columns))
    first, wanted = tables[0]
    for path, table in tables:
        if table.numbers.ndim != 2:
            raise UsageError(
                f"{path}: vectors have shape {table.numbers.shape}, but must be (n, d)"
            )
        if len(table.numbers) == 0:
            raise UsageError(f"{path} holds no row, and its client none: fill it, or move it away")
        if not everything and table.numbers.shape[1] != wanted.numbers.shape[1]:
            raise UsageError(
                f"{path} has {table.numbers.shape[1]} columns and {first} has "
                f"{wanted.numbers.shape[1]}: give all files the same, or names to their columns"
            )
        lacking = [name for name in everything if name not in table.columns]
        if lacking and (missing == "refuse" or not table.columns):
            raise UsageError(
                f"{path} has no column {lacking[0]!r}, which other files have: add it, take it out "
                "of the others, or give --missing mean for its pooled mean"
            )
    return [_with_columns(table, everything) for _, table in tables]


def _with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """Return a table with the columns that are wanted, in their order; NaN where it has none."""
    if list(table.columns) == list(wanted):
        return table
    filled = np.full((len(table.numbers), len(wanted)), np.nan)
    for place, name in enumerate(wanted):
        if name in table.columns:
            filled[:, place] = table.numbers[:, table.columns.index(name)]
    return replace(table, numbers=filled, columns=tuple(wanted))
