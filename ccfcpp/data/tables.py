"""Vectors from files: `.npy`, `.npz`, `.csv`, `.parquet`, or a folder with a file for each client.

An `.npz` has `vectors` (or `x`) and optionally `labels` (or `y`), `clients`, `columns`, and, if
`ccfcpp embed` wrote it, `names` of the rows and `encoder`, a content hash. The first line of a CSV
file names the columns if it does not consist of numbers, or if it counts three or more columns from
0, as pandas does. Columns without a name are called by their number, from 0. The files of a folder
are read in the sorted order of their names; a client has the name of its file without the suffix,
and named columns may have another order in each file.
"""

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.data_kinds import VECTOR_SUFFIXES, files_of, is_hidden
from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical, describe_spellings
from ccfcpp.core.units import format_count
from ccfcpp.data.categories import code, describe_categories
from ccfcpp.data.columns import (
    Roles,
    Source,
    Table,
    align_columns,
    check_distinct,
    check_present,
    files_of_clients,
    select_columns,
)
from ccfcpp.data.npz import Array, as_strings, check_names
from ccfcpp.data.table_files import read_csv, read_parquet
from ccfcpp.data.vectors import VectorData, check_numeric, vectors_from

_ELSEWHERE = (
    *(f".csv.{packed}" for packed in ("gz", "bz2", "xz", "zip", "zst")),
    *(".tsv", ".tab", ".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".feather", ".arrow", ".orc"),
    *(".pq", ".sav", ".dta", ".sas7bdat", ".rds", ".jsonl", ".sqlite"),
)
"""Suffixes of tables that are not read."""
_MOST_NOTES = 5


def read_vectors(path: Path, vectors: VectorsConfig, columns: Sequence[str] = ()) -> VectorData:
    """Read vectors from a file or a folder, in the formats that `ccfcpp.data.tables` lists.

    An `.npy` file of floats is memory-mapped, unless a column is taken out of it.

    Args:
        path: The file or folder.
        vectors: Names the columns with classes and clients; those with categories, which are the
            last ones and hold codes; and those with dates, which hold days since 1970. With
            `missing = mean` what is missing is NaN, which imputation later replaces by means.
        columns: Names of the columns to read, in this order, of tables with names; empty: all.

    Raises:
        UsageError: If the path cannot be read as vectors; the message is one line.
    """
    roles = Roles.of(vectors, columns)
    special = (*roles.categories, *roles.dates)
    check_distinct([*roles.named, *special])
    if path.is_dir() and path.suffix.lower() in VECTOR_SUFFIXES:
        raise UsageError(f"{path} is a folder of parts of one table: write it as one file")
    try:
        table = (_read_folder if path.is_dir() else _read_file)(path, roles)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if table.columns:
        check_present(path, special, table.columns)
    try:
        data = vectors_from(
            path.resolve().name if path.is_dir() else path.stem,
            table.numbers,
            str(path),
            columns=table.columns,
            labels=table.labels,
            clients=table.clients,
            missing=vectors.missing,
        )
    except UsageError:
        # Of a folder, the message then names the file, and the row in it.
        for file in files_of(path, VECTOR_SUFFIXES) if path.is_dir() else ():
            read_vectors(file, vectors, table.columns)
        raise
    spellings = describe_spellings(table.written, "columns")
    of_values = () if columns else describe_categories(table.categories)
    notes = list(dict.fromkeys((*spellings, *data.notes, *table.notes, *of_values)))
    if (more := len(notes) - _MOST_NOTES) > 0:
        notes[_MOST_NOTES:] = [f"and {format_count(more, 'note')} more on {path}"]
    written = (text for texts in table.categories.values() for text in texts)
    texts = {code(text): canonical(text) for text in written}
    data = replace(data, encoder=table.encoder, notes=tuple(notes), texts=texts)
    if (names := table.names) is None:
        return data
    if names.shape != (len(data),):
        raise UsageError(f"{path}: {names.size} names for {len(data)} vectors: name each")
    return replace(data, names=tuple(map(str, as_strings(names))), named_by="name")


def _read_file(path: Path, roles: Roles) -> Table:
    return select_columns(path, roles, _open_file(path, roles))


def _open_file(path: Path, roles: Roles) -> Source:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give a file of vectors, or a folder of them")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} holds no vectors: give a file {', '.join(VECTOR_SUFFIXES)}")
    return reader(path, roles)


def _read_arrays(path: Path, roles: Roles) -> Source:
    suffix = path.suffix.lower()
    try:
        # Copy-on-write, though nothing is written: PyTorch takes no read-only arrays.
        loaded = np.load(path, mmap_mode="c", allow_pickle=False)
        members = loaded if isinstance(loaded, Mapping) else {"x": loaded}
        arrays = {name: np.asarray(member) for name, member in members.items()}
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        mend = f"use numpy.save{'z' * (suffix == '.npz')}"
        raise UsageError(f"{path} is no {suffix} file of numbers ({error}): {mend}") from error
    numbers = arrays.get("vectors", arrays.get("x"))
    if numbers is None:
        raise UsageError(
            f"{path} has no array 'vectors' (or 'x'): it holds {', '.join(sorted(arrays)) or '-'}"
        )
    columns = as_strings(arrays.get("columns", np.empty(0)))
    if columns.size and columns.shape != numbers.shape[1:]:
        raise UsageError(f"{path}: {columns.size} columns are named for {numbers.shape}: name each")
    if numbers.ndim != 2:
        raise UsageError(
            f"{path}: vectors have shape {numbers.shape}, but must have (n, d), neither of them 0"
        )
    return Source(
        tuple(map(str, columns)),
        numbers.shape[1],
        lambda position: _numeric(path, numbers[:, position]),
        lambda position: numbers[:, position],
        arrays.get("labels", arrays.get("y")),
        arrays.get("clients"),
        arrays.get("names"),
        str(arrays.get("encoder", "")),
        whole=numbers,
    )


def _numeric(path: Path, column: Array) -> Array:
    if column.dtype.kind not in "biuf":
        raise UsageError(
            f"{path}: vectors are {column.dtype}, no numbers: name all columns by --categories, or "
            "all by --dates, or store numbers"
        )
    return column


_READERS: dict[str, Callable[[Path, Roles], Source]] = {
    ".npy": _read_arrays,
    ".npz": _read_arrays,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def text_columns(path: Path, vectors: VectorsConfig) -> tuple[str, ...]:
    """Return the names of the columns of categories, and of those without a role that hold text.

    Args:
        path: A table, or a folder of such, that could be read.
        vectors: Names the columns with classes, clients, dates and categories.
    """
    of_others = (vectors.label_column, vectors.client_column, *vectors.dates)
    others = {canonical(name) for name in of_others if name is not None}
    found = dict.fromkeys(map(canonical, vectors.categories))
    for file in files_of(path, VECTOR_SUFFIXES) if path.is_dir() else [path]:
        source = _open_file(file, Roles())
        for position, name in enumerate(map(canonical, source.written)):
            if name not in others and name not in found and _holds_text(source, position):
                found[name] = None
    return tuple(found)


def _holds_text(source: Source, position: int) -> bool:
    try:
        source.numbers(position)
    except UsageError:
        return True
    return False


def _read_folder(folder: Path, roles: Roles) -> Table:
    files = files_of_clients(folder, VECTOR_SUFFIXES, roles.client)
    if not files:
        raise UsageError(f"{folder} holds no vectors: put files {', '.join(VECTOR_SUFFIXES)} there")
    names = sorted(each.name for each in folder.iterdir() if not is_hidden(each.name))
    if others := [name for name in names if name.lower().endswith(_ELSEWHERE)]:
        raise UsageError(
            f"{folder} holds {others[0]}, which is not read: write it as .csv or .parquet, or "
            "move it away"
        )
    subfolders = [name for name in names if _is_folder_of_tables(folder / name)]
    originals = [_read_file(file, roles) for file in files]
    # Of each file, since together those of one could stand beside the vectors of another.
    for file, table in zip(files, originals, strict=True):
        check_numeric(table.numbers, str(file))
        for what, own in (("labels", table.labels), ("names", table.names)):
            if own is not None:
                check_names(own, len(table.numbers), str(file), what, "vector")
    tables = align_columns(list(zip(files, originals, strict=True)), roles)
    numbers = [table.numbers for table in tables]
    if len({table.encoder for table in tables}) > 1:
        raise UsageError(
            f"the files of {folder} hold vectors of several encoders: embed them again by one"
        )
    return Table(
        tables[0].columns,
        tuple(name for table in originals for name in table.written),
        # A single file may be memory-mapped: it is not copied.
        np.concatenate(numbers) if len(tables) > 1 else numbers[0],
        _join(files, [table.labels for table in tables], "labels"),
        np.repeat([file.stem for file in files], list(map(len, numbers))),
        _join(files, [table.names for table in tables], "names"),
        tables[0].encoder,
        (
            *(f"the tables in its folder {name} are not read" for name in subfolders),
            *(f"{name} is not read" for name in names if _is_other_file(folder / name)),
            *(note for table in originals for note in table.notes),
        ),
        {
            name: sorted({text for table in originals for text in table.categories.get(name, ())})
            for name in roles.categories
        },
    )


def _is_folder_of_tables(path: Path) -> bool:
    with suppress(OSError):  # Such as lost+found, which only root may read.
        return path.is_dir() and bool(files_of(path, VECTOR_SUFFIXES))
    return False


def _is_other_file(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() not in VECTOR_SUFFIXES


def _join(files: Sequence[Path], parts: Sequence[Array | None], what: str) -> Array | None:
    """Concatenate the labels, or the names, of the rows of files; None if no file has any."""
    given = [as_strings(part) for part in parts if part is not None]
    if 0 < len(given) < len(parts):
        without = next(f for f, part in zip(files, parts, strict=True) if part is None)
        raise UsageError(f"{without} has no {what}, and other files have: give all, or none")
    return np.concatenate(given) if given else None
