"""Choice of a table's columns by their names: which hold vectors, classes and clients."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.data_kinds import files_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical, describe_spellings
from ccfcpp.core.units import list_first
from ccfcpp.data.categories import days_of, encode, texts_of
from ccfcpp.data.npz import Array
from ccfcpp.data.vectors import Missing

_FEW_ROWS = 2
_UNNAMED = re.compile(r"(unnamed[: _]*[0-9]+\S*|__index_level_[0-9]+__|\.\.\.[0-9]+)?", re.I)
"""An empty column name, or one that pandas or R gives to a column without a name."""
_INDEX = ("index", "level_0", "rownames", "rowname", "row.names", "rn")
"""Names of the column in which pandas and R save the row index."""


class Source(NamedTuple):
    """Open table file, from which columns are to be selected."""

    written: tuple[str, ...]
    """Names of its columns as the file spells them; empty if it has none."""
    width: int
    """Number of columns."""
    numbers: Callable[[int], Array]
    """Returns the column at a position as numbers; raises `UsageError` if it holds other values."""
    cells: Callable[[int], Array]
    """Returns the column at a position as the file has it, such as names of classes."""
    labels: Array | None = None
    clients: Array | None = None
    names: Array | None = None
    encoder: str = ""
    notes: tuple[str, ...] = ()
    whole: Array | None = None
    """All columns as one array `(n, width)`, to avoid copies; None if each is stored by itself."""


class Table(NamedTuple):
    """Selected columns of a table: numbers `(n, d)`, with each row's class and client, if known."""

    columns: tuple[str, ...]
    """Canonical names of the d columns, as `canonical` returns them; empty if they have none."""
    written: tuple[str, ...]
    """The names of the same columns as the file spells them."""
    numbers: Array
    labels: Array | None = None
    clients: Array | None = None
    names: Array | None = None
    encoder: str = ""
    """Content hash of the encoder that made the vectors; empty if it is not known."""
    notes: tuple[str, ...] = ()
    """Remarks for the user on how the table was read, a line each."""
    categories: Mapping[str, Sequence[str]] = {}
    """The distinct texts of each column of categories."""


class Roles(NamedTuple):
    """Canonical names of the columns that hold classes, clients and vectors."""

    label: str | None = None
    client: str | None = None
    chosen: tuple[str, ...] = ()
    """Names of the columns that make up the vectors; if empty, all other columns."""
    missing: Missing = "refuse"
    """`refuse`: a file that lacks one of these is refused; `mean`: it has NaN in its place."""
    categories: tuple[str, ...] = ()
    """Names of the columns with categories, which become codes."""
    dates: tuple[str, ...] = ()
    """Names of the columns with dates, which become days."""

    def arranged(self, names: Iterable[str]) -> list[str]:
        """Return names of columns in the order of a vector: those of categories come last."""
        names = [*names]
        others = [name for name in names if name not in self.categories]
        return others + [name for name in self.categories if name in names]

    @staticmethod
    def of(vectors: VectorsConfig, columns: Sequence[str] = ()) -> "Roles":
        """Return the roles of columns by a run's settings; ``columns`` are those of the vectors."""
        names = vectors.label_column, vectors.client_column
        label, client = (name and canonical(name) for name in names)
        lists = columns, vectors.categories, vectors.dates
        chosen, categories, dates = (tuple(map(canonical, each)) for each in lists)
        return Roles(label, client, chosen, vectors.missing, categories, dates)

    @property
    def named(self) -> list[str]:
        """Canonical names of the columns that hold classes and clients, without None."""
        return [name for name in (self.label, self.client) if name is not None]


def check_distinct(names: Sequence[str]) -> None:
    """Check that no column has two roles: classes, clients, categories, dates.

    Raises:
        UsageError: One has.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(
                f"column {name!r} is named twice, among --label-column, --client-column, "
                "--categories and --dates: name it once"
            )


def known_names(where: Path | str, written: Iterable[str], what: str = "columns") -> list[str]:
    """Return the canonical forms of names, and check that they differ.

    Args:
        where: Path of the table or folder that has the names, for the message.
        written: The names as the user spells them.
        what: The named things in the plural, for the message.

    Raises:
        UsageError: Two names have the same canonical form.
    """
    known: dict[str, str] = {}
    for name in written:
        if (own := canonical(name)) in known:
            pair = " and ".join(map(ascii, dict.fromkeys((known[own], name))))
            raise UsageError(f"{where} has two {what} {pair}: give each a name of its own")
        known[own] = name
    return [*known]


def files_of_clients(
    folder: Path, suffixes: Collection[str], client_column: str | None
) -> list[Path]:
    """Return the data files in a folder, each of which holds the data of one client.

    Raises:
        UsageError: Two files name the same client, or `client_column` is given, too.
    """
    if client_column is not None:
        raise UsageError(
            f"--client-column {client_column} has no effect on {folder}, a folder in which each "
            "file is a client: leave it out"
        )
    files = files_of(folder, suffixes)
    known_names(folder, [file.stem for file in files], "files")
    return files


def select_columns(path: Path, roles: Roles, source: Source) -> Table:
    """Read the columns that ``roles`` names from an open table: vectors, classes and clients.

    Raises:
        UsageError: A column is missing, or holds values of a wrong kind.
    """
    names = known_names(path, source.written) or [*map(str, range(source.width))]
    places = {name: place for place, name in enumerate(names)}
    of_vectors = find_vector_columns(path, roles, names, source.written)
    wanted = roles.arranged(names[place] for place in of_vectors)
    positions = [places[name] for name in wanted]
    named = {name: _to_strings(path, name, source.cells(places[name])) for name in roles.named}
    coded = {
        name: encode(source.cells(places[name])) for name in wanted if name in roles.categories
    }
    if source.whole is None or roles.categories or roles.dates:
        try:
            columns = [
                coded[name][0]
                if name in coded
                else days_of(path, name, source.cells(place))
                if name in roles.dates
                else source.numbers(place)
                for name, place in zip(wanted, positions, strict=True)
            ]
        except UsageError:
            # A column whose name is misspelt among the categories is read as numbers.
            check_present(path, (*roles.categories, *roles.dates), names)
            raise
        numbers = np.stack(columns, axis=1)
    else:
        # A memory-mapped array is not copied if all its columns are wanted.
        is_whole = positions == [*range(source.width)]
        numbers = source.whole if is_whole else source.whole[:, positions]
    table = Table(
        tuple(wanted) if source.written or named else (),
        tuple(source.written[position] for position in positions if source.written),
        numbers,
        named.get(roles.label or "", source.labels),
        named.get(roles.client or "", source.clients),
        source.names,
        source.encoder,
        source.notes,
        {name: texts for name, (_, texts) in coded.items()},
    )
    if not table.columns or numbers.size == 0 or numbers.dtype.kind not in "biuf":
        return table
    if roles.chosen:
        return with_columns(table, roles.chosen)
    plain = len(table.columns) - len(coded)
    warnings = warn_of_row_numbers(path, table.columns[:plain], numbers[:, :plain])
    return table._replace(notes=(*table.notes, *warnings))


def read_frame(where: str, frame: Any, wanted: Sequence[str], roles: Roles) -> Table:
    """Read columns of a pandas data frame as numbers, as those of a file.

    Args:
        where: What the frame is, for messages.
        frame: The data frame.
        wanted: Names of the columns, in the order of a vector.
        roles: Says which columns hold categories and dates.

    Raises:
        UsageError: The frame lacks a column, or a column holds values of a wrong kind.
    """
    given = dict(zip(known_names(where, map(str, frame.columns)), frame.columns, strict=True))
    if lacking := [name for name in wanted if name not in given]:
        raise UsageError(f"{where} has no column {lacking[0]!r}, which the model needs")
    columns, categories = [], {}
    for name in wanted:
        column = frame[[given[name]]]
        cells = np.asarray(column).reshape(-1)
        if name in roles.categories:
            codes, categories[name] = encode(cells)
            columns.append(codes)
        elif name in roles.dates:
            columns.append(days_of(where, name, cells))
        elif any(hasattr(kind, "categories") for kind in getattr(column, "dtypes", ())):
            raise UsageError(
                f"{where}: column {name!r} has the type category: name it by vectors.categories, "
                "or make it numbers"
            )
        else:
            columns.append(_floats(where, name, cells))
    shown, numbers = (*wanted,), np.stack(columns, axis=1)
    return Table(shown, shown, numbers, categories=categories)


def _floats(where: str, name: str, cells: Array) -> NDArray[np.float64]:
    """Return a data frame's column of numbers; NaN where one is missing."""
    try:
        if cells.dtype.kind in "mMc":
            raise TypeError
        if cells.dtype.kind == "O":
            # pandas has a value of its own for missing ones.
            cells = np.array([np.nan if str(cell) == "<NA>" else cell for cell in cells])
        if cells.dtype.kind == "U" and not all(map(_is_number, cells)):
            raise ValueError
        return cells.astype(np.float64)
    except (TypeError, ValueError):
        texts = [text for text in texts_of(cells) if not _is_number(text)]
        wrong = next((text for text in texts if text != "NaT"), texts[0])
        mend = {"m": "make it numbers, such as by dt.total_seconds()", "c": "give its parts"}.get(
            cells.dtype.kind, "name it by vectors.categories or vectors.dates"
        )
        raise UsageError(
            f"{where}: column {name!r} holds {wrong[:40]!r}, which is no number: {mend}, or take "
            "it out"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_2 as 12.


def _to_strings(path: Path, name: str, column: Array) -> Array:
    """Return a column of classes or clients as strings; raise ``UsageError`` for an empty cell."""
    names = np.char.strip(column.astype(np.str_))
    if column.dtype.kind == "f":  # Integers that a parser has made floats: 1.0 means 1.
        distinct, index = np.unique(names, return_inverse=True)
        names = np.array([*map(canonical, map(str, distinct))], np.str_)[index]
    if len(empty := np.flatnonzero((column != column) | (names == ""))):
        raise UsageError(f"{path}: column {name!r} is empty in row {empty[0] + 1}: fill it in")
    return names


def find_vector_columns(
    path: Path | str, roles: Roles, names: Sequence[str], written: Sequence[str]
) -> list[int]:
    """Return the positions of the columns that make up the vectors.

    Args:
        path: The file, for messages.
        roles: Which columns to take.
        names: The columns' canonical names; their numbers as strings if the file has no names.
        written: The names as the file spells them; empty if it has none.

    Raises:
        UsageError: A column is missing or has no name, or no column is left.
    """
    if not written and (roles.categories or roles.dates):
        raise UsageError(
            f"{path} has no names of columns, and --categories and --dates need them: give it a "
            "first line of names"
        )
    places = {name: place for place, name in enumerate(names)}
    chosen = roles.chosen if written else ()
    lacking = [name for name in chosen if name not in places]
    if lacking and roles.missing == "mean":
        check_missing(path, names, chosen, lacking[0], (names, chosen))
        chosen = tuple(name for name in chosen if name in places)
    # Another file may have the column if this one has names and may lack some.
    required = roles.missing == "refuse" or not written
    special = (*roles.categories, *roles.dates) if required else ()
    check_present(path, (*roles.named, *chosen, *special), names)
    positions = [places[name] for name in chosen or names if name not in roles.named]
    if not positions:
        beside = ", ".join(roles.named) or "an index"
        raise UsageError(f"{path} has no column beside {beside}: nothing is left")
    for position in positions if written and not chosen else ():
        if _UNNAMED.fullmatch(name := written[position].strip()):
            called = f"is called {name!r}" if name else "has no name"
            raise UsageError(
                f"{path}: column {position + 1} {called}, as an index that pandas has written: "
                "take it out (index=False), or give it a name"
            )
    return positions


def check_present(path: Path | str, wanted: Iterable[str], names: Sequence[str]) -> None:
    """Check that a table with columns of these names has all that are wanted."""
    for name in wanted:
        if name not in names:
            shown = list_first([*map(repr, names)])
            raise UsageError(f"{path} has no column {name!r}: it has {shown}")


def check_missing(
    path: Path | str,
    own: Sequence[str],
    wanted: Sequence[str],
    lacking: str,
    together: Iterable[Sequence[str]],
) -> None:
    """Check that the column `lacking` is truly missing in a file, not only misspelt.

    Args:
        path: The file, for messages.
        own: Names of its columns.
        wanted: Names of all columns that it should have.
        lacking: Name of the missing column.
        together: Column names of each file. Similar names that occur in one file are different
            columns.

    Raises:
        UsageError: A column of the file has a similar name, or the file lacks all wanted columns.
    """
    apart = {line for names in together for line in describe_spellings(names, "columns")}
    why = [line for line in describe_spellings([*own, lacking], "columns") if line not in apart]
    if not set(wanted).intersection(own):
        why.append(
            "none of those that others have: call columns the same everywhere (clients with other "
            "columns of the same rows, vertical data, are not supported)"
        )
    if why:
        raise UsageError(f"{path} has no column {lacking!r}, and {why[0]}")


def warn_of_row_numbers(where: Path | str, names: Sequence[str], numbers: Array) -> list[str]:
    """Return a warning for each column that seems to number the rows, by its values or its name.

    Raises:
        UsageError: A column is named as pandas and R name a saved row index.
    """
    warnings, rows = [], np.arange(len(numbers))
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
            warnings.append(f"column {name!r} {does} the rows: take it out if it is their number")
    return warnings


def align_columns(tables: Sequence[tuple[Path, Table]], roles: Roles) -> list[Table]:
    """Give all tables, each with its path, the same columns in the same order.

    A column that a table lacks is filled with NaN if ``roles.missing`` is "mean".

    Raises:
        UsageError: A file has no row, or lacks a column and ``roles.missing`` is "refuse".
    """
    counts, missing = Counter(name for _, table in tables for name in table.columns), roles.missing
    everything = roles.arranged(counts)
    shared = [name for name, files in counts.items() if files > 1]
    together = {table.columns for _, table in tables}
    first, wanted = tables[0]
    for path, table in tables:
        if len(table.numbers) == 0:
            raise UsageError(f"{path} holds no row, and its client none: fill it, or move it away")
        if not everything and table.numbers.shape[1] != wanted.numbers.shape[1]:
            raise UsageError(
                f"{path} has {table.numbers.shape[1]} columns and {first} has "
                f"{wanted.numbers.shape[1]}: give all files the same, or names to their columns"
            )
        own = {*table.columns}
        lacking = [name for name in everything if name not in own]
        if lacking and table.columns:
            check_missing(path, table.columns, shared, lacking[0], together)
        if lacking and (missing == "refuse" or not table.columns):
            raise UsageError(
                f"{path} has no column {lacking[0]!r}, which other files have: add it, take it out "
                "of the others, or give --missing mean for its pooled mean"
            )
    return [with_columns(table, everything) for _, table in tables]


def with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """Return the table with exactly the ``wanted`` columns, in this order; NaN if it lacks one."""
    if list(table.columns) == list(wanted):
        return table
    filled = np.full((len(table.numbers), len(wanted)), np.nan)
    places = {name: place for place, name in enumerate(table.columns)}
    for position, name in enumerate(wanted):
        if name in places:
            filled[:, position] = table.numbers[:, places[name]]
    return table._replace(numbers=filled, columns=tuple(wanted))
