"""Tables from `.parquet` files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical
from ccfcpp.data.columns import ENCODE, Array, Roles, Table, cells, known_names, places


def read_parquet(path: Path, roles: Roles) -> Table:
    """Read a file, without the index that pandas has written beside the columns.

    Raises:
        UsageError: It cannot be read, or a column is none of numbers.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UsageError(
            f"{path} needs pyarrow, which is not installed: pip install '.[parquet]'"
        ) from error
    try:
        found = ParquetFile(path).read()
        index = (found.schema.pandas_metadata or {}).get("index_columns") or []
    except (ArrowException, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no Parquet file ({error})") from error
    asked = {*roles.named, *roles.chosen}
    held: list[tuple[str, Any]] = []
    notes: list[str] = []
    for name, column in zip(map(str, found.column_names), found.columns, strict=True):
        if name in index and canonical(name) not in asked:
            notes.append(f"column {name!r} is an index of pandas, and no part of the vectors")
        else:
            held += _flat(name, column)
    written = [name for name, _ in held]
    names = known_names(path, written)
    kept = places(path, roles, names, written)
    labels, clients = (
        None if role is None else _cells(path, role, held[names.index(role)][1])
        for role in (roles.label, roles.client)
    )
    return Table(
        np.column_stack([_numbers(path, *held[place]) for place in kept]),
        tuple(names[place] for place in kept),
        labels,
        clients,
        written=tuple(written[place] for place in kept),
        notes=tuple(notes),
    )


def _flat(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    """Yield a column, or of lists of one length a column for each place in them."""
    from pyarrow import chunked_array, compute, nulls, types

    kind, lengths = column.type, []
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = compute.list_value_length(column).drop_null().unique().to_pylist()
        if lengths in ([], [0]):
            column = chunked_array([nulls(len(column))])
    if len(lengths) != 1 or not lengths[0]:
        yield name, column
        return
    for place in range(lengths[0]):
        yield from _flat(f"{name}[{place}]", compute.list_element(column, place))


def _decoded(column: Any) -> Any:
    """Return a column of what it holds: in an array a dictionary's gaps would be values."""
    from pyarrow import types

    kind = column.type
    return column.cast(kind.value_type) if types.is_dictionary(kind) else column


def _cells(path: Path, name: str, column: Any) -> Array:
    from pyarrow import types

    if types.is_nested(column.type):
        raise UsageError(f"{path}: column {name!r} holds {column.type}, no names: give a string")
    found = _decoded(column).to_numpy()
    if found.dtype == object:
        # Bytes as those of an array are read.
        texts = [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in found]
        found = np.array(["" if text is None else str(text) for text in texts], np.str_)
    return cells(path, name, found)


def _numbers(path: Path, name: str, column: Any) -> Array:
    """Return a column's numbers, NaN where there is none."""
    from pyarrow import float64, types

    column = _decoded(column)
    kinds = types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UsageError(f"{path}: column {name!r} holds {column.type}, no numbers: {ENCODE}")
    numbers: Array = column.to_numpy()
    if numbers.dtype == object:
        numbers = column.cast(float64(), safe=False).to_numpy()
    return numbers
