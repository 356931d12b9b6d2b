"""Tables from `.csv` and `.parquet` files, read by pyarrow."""

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.units import list_first
from ccfcpp.data.columns import Roles, Source
from ccfcpp.data.npz import NOTHING, Array

_ENCODE = (
    "name the column by --categories or --dates (or by --label-column or --client-column), or take "
    "it out"
)
_FEWEST_COUNTED = 3
"""Fewest columns for which a first line 0,1,2,… is taken for names, as pandas writes them."""
_MOST_SHOWN = 5
_BLOCK, _CELL = 1 << 22, 32
"""Bytes of a CSV file that are parsed at a time: the least number, and the number per column."""


def read_csv(path: Path, roles: Roles) -> Source:
    """Open a CSV file, whose first line may name its columns.

    Raises:
        UsageError: The file cannot be read.
    """
    if not (cells := next(_lines(path), (0, []))[1]):
        raise UsageError(f"{path} is empty: a line for each vector is wanted")
    parts = re.split("([;\t|])", ",".join(cells))
    # With decimal commas a line of numbers has several cells.
    if len(parts) > 1 and (len(cells) == 1 or _are_numbers(",".join(parts[::2]).split(","))):
        raise UsageError(
            f"{path} has {parts[1]!r} between its columns: write it with commas, and decimals with "
            "a point"
        )
    columns = csv_columns(path)
    first = [column[0].as_py() for column in columns]
    numbered = [*map(str, range(len(first)))]
    counting = numbered, ["", *numbered[:-1]]
    counts = len(first) >= _FEWEST_COUNTED and [first[0].strip(), *first[1:]] in counting
    if has_names := counts or not _are_numbers(first):
        columns = [column[1:] for column in columns]
    shown = list_first([cell.strip() or "nothing" for cell in first], _MOST_SHOWN)
    notes: tuple[str, ...] = ()
    if not has_names:
        notes = (f"the first row, {shown}, is taken for values, and not for names of columns",)
    elif 2 * sum(cell.strip() != "" and _are_numbers([cell]) for cell in first) > len(first):
        notes = (f"the first row, {shown}, is taken for names of columns, and not for values",)
    names = first if has_names else numbered
    return Source(
        tuple(first) if has_names else (),
        len(first),
        lambda i: _parse_numbers(path, names[i], columns[i], has_names),
        lambda i: np.array(columns[i].to_pylist(), object),
        notes=notes,
    )


def csv_columns(path: Path) -> list[Any]:
    """Return the columns of a CSV file as pyarrow arrays of strings; empty lines are left out.

    Raises:
        UsageError: The file is no CSV file, or its lines differ in their numbers of cells.
    """
    from pyarrow import ArrowInvalid, csv, string

    _, first = next(_lines(path), (0, []))
    names = [*map(str, range(len(first)))]
    if not names:
        return []
    # A line must fit into a block.
    size = max(_BLOCK, _CELL * len(names))
    try:
        # Opened here, since pyarrow takes no path that is not in UTF-8.
        with path.open("rb") as file:
            return csv.read_csv(  # type: ignore[no-any-return]
                file,
                csv.ReadOptions(use_threads=False, block_size=size, column_names=names),
                csv.ParseOptions(newlines_in_values=True),
                csv.ConvertOptions(column_types=dict.fromkeys(names, string())),
            ).columns
    except ArrowInvalid as error:
        for line, row in _lines(path):
            if len(row) != len(first):
                raise UsageError(
                    f"{path}, line {line}: {len(row)} cells, but there are {len(first)} columns"
                ) from None
        raise UsageError(f"{path} cannot be read as CSV ({error})") from error


def csv_line_of(path: Path, row: int) -> int:
    """Return the number of the line on which a row of a CSV file ends; rows count from 0."""
    return next(islice(_lines(path), row, None))[0]


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and cells of each non-empty line; slow, for error messages only."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            yield from ((reader.line_num, row) for row in reader if row)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not in UTF-8 ({error}): save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV ({error})") from error


def _numbers_in(cells: list[str]) -> list[float]:
    """Parse cells as numbers (NaN if empty) up to the first cell that is not a number."""
    numbers: list[float] = []
    with suppress(ValueError):
        for cell in cells:
            if "_" in cell:  # Python reads 1_2 as 12.
                break
            numbers.append(np.nan if cell.strip().lower() in NOTHING else float(cell))
    return numbers


def _are_numbers(cells: list[str]) -> bool:
    return len(_numbers_in(cells)) == len(cells)


def _parse_numbers(path: Path, name: str, column: Any, before: int) -> Array:
    """Parse a column of strings as float64; empty cells become NaN.

    ``before`` is the number of lines before the first row, for error messages.
    """
    with suppress(ValueError):
        # With `to_numpy` pyarrow would import pandas, if installed.
        numbers: Array = np.from_dlpack(column.combine_chunks().cast("float64"))
        if not np.isnan(numbers).any():
            return numbers
    # A value is missing, is not a number, or is one that only Python reads, such as +1.
    cells = column.to_pylist()
    parsed = _numbers_in(cells)
    if (row := len(parsed)) < len(cells):
        has_comma = _numbers_in([cells[row].replace(",", ".")])
        raise UsageError(
            f"{path}, line {csv_line_of(path, row + before)}: column {name!r} holds "
            f"{cells[row][:40]!r}, which is no number: "
            + ("write decimals with a point" if has_comma else _ENCODE)
        )
    return np.array(parsed)


def read_parquet(path: Path, roles: Roles) -> Source:
    """Open a Parquet file, without the index columns that pandas has stored in it.

    Raises:
        UsageError: The file cannot be read.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with path.open("rb") as file:
            table = ParquetFile(file).read()
        index = (table.schema.pandas_metadata or {}).get("index_columns") or []
    except (ArrowException, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no Parquet file ({error})") from error
    asked = {*roles.named, *roles.chosen}
    left = [name for name in table.column_names if name in index and canonical(name) not in asked]
    columns = [
        part
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name not in left
        for part in _split_lists(name, column)
    ]
    return Source(
        tuple(name for name, _ in columns),
        len(columns),
        lambda i: _to_numbers(path, *columns[i]),
        lambda i: _to_names(path, *columns[i]),
        notes=tuple(
            f"column {name!r} is an index of pandas, and no part of the vectors" for name in left
        ),
    )


def _split_lists(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    """Yield a column with its name; split a column of lists into one column for each position."""
    from pyarrow import chunked_array, compute, nulls, types

    kind, lengths = column.type, []
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = compute.list_value_length(column).drop_null().unique().to_pylist()
        if lengths in ([], [0]):
            column = chunked_array([nulls(len(column))])
    if types.is_dictionary(kind):  # numpy would turn its missing values into others.
        column = column.cast(kind.value_type)
    if len(lengths) != 1 or not lengths[0]:
        yield name, column
        return
    for place in range(lengths[0]):
        yield from _split_lists(f"{name}[{place}]", compute.list_element(column, place))


def _to_names(path: Path, name: str, column: Any) -> Array:
    """Convert a column of names to an array of strings, or of numbers if it holds numbers."""
    from pyarrow import types

    if types.is_nested(column.type):
        raise UsageError(f"{path}: column {name!r} holds {column.type}, no names: give a string")
    if column.null_count and types.is_integer(column.type):
        # numpy would make floats of them, in which long numbers become others.
        column = column.cast("string")
    names: Array = column.to_numpy()
    if names.dtype == object:
        # Bytes are decoded as in `as_strings`.
        texts = [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in names]
        names = np.array(["" if text is None else str(text) for text in texts], object)
    return names


def _to_numbers(path: Path, name: str, column: Any) -> Array:
    """Convert a column to an array of numbers; empty cells become NaN."""
    from pyarrow import types

    kinds = types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UsageError(f"{path}: column {name!r} holds {column.type}, no numbers: {_ENCODE}")
    numbers: Array = column.to_numpy()
    if numbers.dtype == object:
        numbers = column.cast("float64", safe=False).to_numpy()
    return numbers
