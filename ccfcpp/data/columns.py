"""Columns of tables by their names: which make up the vectors, and which do not."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical, spellings
from ccfcpp.core.units import first_of
from ccfcpp.data.npz import NOTHING
from ccfcpp.data.vectors import Missing

Array = NDArray[np.generic]
_FEW_ROWS = 2
ENCODE = "encode it, take the column out, or name it by --label-column or --client-column"
"""Advice for a column that holds no numbers."""
_UNNAMED = re.compile(r"(unnamed[: _]*[0-9]+\S*|__index_level_[0-9]+__|\.\.\.[0-9]+)?", re.I)
"""A column that has no name, and what pandas and R call such a one."""
_INDEX = ("index", "level_0", "rownames", "rowname", "row.names", "rn")
"""Names that pandas and R give the numbers of rows where these become a column."""


@dataclass(frozen=True)
class Table:
    """Content of a file.

    Attributes:
        numbers: Of shape `(n, d)`.
        columns: Names of the d columns, as `canonical` has them; empty if they have none.
        labels: Of shape `(n,)`; None without labels.
        clients: Likewise.
        names: Names of the rows, of shape `(n,)`; None without names.
        encoder: Content hash of what made the vectors; empty where it is not known.
        written: The names of the columns as the file has them.
        notes: What the user should hear of the reading, a line each.
    """

    numbers: Array
    columns: tuple[str, ...] = ()
    labels: Array | None = None
    clients: Array | None = None
    names: Array | None = None
    encoder: str = ""
    written: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roles:
    """Roles of columns, by their names, as `canonical` has them.

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


def known_names(where: Path | str, written: Iterable[str], what: str = "columns") -> list[str]:
    """Return the names by which columns, or files, are known.

    Raises:
        UsageError: Two are known by one name.
    """
    known: dict[str, str] = {}
    for name in written:
        if (own := canonical(name)) in known:
            pair = " and ".join(map(ascii, dict.fromkeys((known[own], name))))
            raise UsageError(f"{where} has two {what} {pair}: give each a name of its own")
        known[own] = name
    return [*known]


def places(
    path: Path | str, roles: Roles, names: Sequence[str], written: Sequence[str]
) -> list[int]:
    """Return the places of the columns that make up the vectors.

    Args:
        path: Their file.
        roles: What is known of them.
        names: The names by which they are known, or their numbers.
        written: Their names as the file has them; empty where it has none.

    Raises:
        UsageError: A column is not there or has no name, or none is left.
    """
    chosen = roles.chosen if written else ()
    lacking = [name for name in chosen if name not in names]
    if lacking and roles.missing == "mean":
        check_lacking(path, names, chosen, lacking[0], (names, chosen))
        chosen = tuple(name for name in chosen if name in names)
    for name in (*roles.named, *chosen):
        if name not in names:
            shown = first_of([*map(repr, names)])
            raise UsageError(f"{path} has no column {name!r}: it has {shown}")
    kept = [names.index(name) for name in chosen or names if name not in roles.named]
    if not kept:
        beside = ", ".join(roles.named) or "an index"
        raise UsageError(f"{path} has no column beside {beside}: nothing is left")
    for place in kept if written and not chosen else ():
        if _UNNAMED.fullmatch(name := written[place].strip()):
            called = f"is called {name!r}" if name else "has no name"
            raise UsageError(
                f"{path}: column {place + 1} {called}, as an index that pandas has written: take "
                "it out (index=False), or give it a name"
            )
    return kept


def check_lacking(
    path: Path | str,
    own: Sequence[str],
    wanted: Sequence[str],
    lacking: str,
    together: Iterable[Sequence[str]],
) -> None:
    """Check that a file lacks a column, and does not have it under another name.

    Names are different, however much they look alike, where some file has them ``together``.

    Raises:
        UsageError: One of its own looks like it, or it lacks all that are wanted.
    """
    apart = {line for names in together for line in spellings(names, "columns")}
    why = [line for line in spellings([*own, lacking], "columns") if line not in apart]
    if not set(wanted).intersection(own):
        why.append("none of those that others have: call columns the same everywhere")
    if why:
        raise UsageError(f"{path} has no column {lacking!r}, and {why[0]}")


def row_numbers(where: Path | str, names: Sequence[str], numbers: Array) -> list[str]:
    """Return a line for each column that counts the rows, or is called as if it did.

    Raises:
        UsageError: One is called as an index that has become a column.
    """
    counting, rows = [], np.arange(len(numbers))
    for name, column in zip(names, numbers.T, strict=True) if len(rows) > _FEW_ROWS else ():
        first, last = float(column.min()), len(rows) - 1
        # In any order: rows may have been shuffled.
        counts = column.max() == first + last and np.array_equal(np.sort(column), first + rows)
        if counts and name in _INDEX:
            raise UsageError(
                f"{where}: column {name!r} numbers the rows, as an index that has become a column: "
                "take it out, or give it another name"
            )
        named = name in _INDEX and len(np.unique(column)) == len(rows)
        if named or (counts and first in (0, 1)):
            does = "counts" if counts else "may number"
            counting.append(f"column {name!r} {does} the rows: take it out if it is their number")
    return counting


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line of a CSV file that is not empty.

    Raises:
        UsageError: It is no such file, or lines have more cells than others.
    """
    columns = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                if len(row) != (columns := columns or len(row)):
                    raise UsageError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, but there are "
                        f"{columns} columns"
                    )
                yield reader.line_num, row
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as CSV in UTF-8 ({error})") from error


def number_in(cell: str) -> float:
    """Return the number in a cell, NaN where there is no value; raise ``ValueError`` for others."""
    if "_" in cell:  # Python reads 1_2 as 12.
        raise ValueError(cell)
    return np.nan if cell.strip().lower() in NOTHING else float(cell)


def is_number(cell: str) -> bool:
    """Return whether a cell has a number, or no value."""
    try:
        number_in(cell)
    except ValueError:
        return False
    return True


def cells(path: Path, name: str, column: Array) -> Array:
    """Return the cells of a column of classes or clients, as strings.

    Raises:
        UsageError: A cell is empty.
    """
    found = np.char.strip(column.astype(np.str_))
    if column.dtype.kind == "f":  # Nobody has written 1 as 1.0.
        distinct, places = np.unique(found, return_inverse=True)
        found = np.array([*map(canonical, map(str, distinct))], np.str_)[places]
    if len(empty := np.flatnonzero((column != column) | (found == ""))):
        raise UsageError(f"{path}: column {name!r} is empty in row {empty[0] + 1}: fill it in")
    return found


def aligned(tables: Sequence[tuple[Path, Table]], missing: Missing) -> list[Table]:
    """Bring columns into the same order; one that a file lacks is refused, or becomes NaN.

    Raises:
        UsageError: A file has no row, or other columns than it should.
    """
    holders = Counter(name for _, table in tables for name in table.columns)
    everything, shared = [*holders], [name for name, files in holders.items() if files > 1]
    together = {table.columns for _, table in tables}
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
        if lacking and table.columns:
            check_lacking(path, table.columns, shared, lacking[0], together)
        if lacking and (missing == "refuse" or not table.columns):
            raise UsageError(
                f"{path} has no column {lacking[0]!r}, which other files have: add it, take it out "
                "of the others, or give --missing mean for its pooled mean"
            )
    return [with_columns(table, everything) for _, table in tables]


def with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """Return a table with the columns that are wanted, in their order; NaN where it has none."""
    if list(table.columns) == list(wanted):
        return table
    filled = np.full((len(table.numbers), len(wanted)), np.nan)
    for place, name in enumerate(wanted):
        if name in table.columns:
            filled[:, place] = table.numbers[:, table.columns.index(name)]
    return replace(table, numbers=filled, columns=tuple(wanted))
