"""Tables of `.parquet` files: numbers and missing values of each type, and no index."""

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from ccfcpp.core.errors import UsageError
from ccfcpp.data.vectors import VectorData
from tests.support.vectors import read_vectors


def written(path: Path, columns: dict[str, Any], index: list[Any] | None = None) -> Path:
    """Write a file, with what pandas says of its index."""
    table = pyarrow.table(columns)
    if index is not None:
        pandas = json.dumps({"index_columns": index, "columns": []})
        table = table.replace_schema_metadata({"pandas": pandas})
    parquet.write_table(table, path)
    return path


def test_parquet_is_read_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"a": [1.5, None], "b": [1, 2], "site": ["n", "s"], "kind": [7, 8]}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(UsageError, match="column 'site' holds string, no numbers"):
        read_vectors(path)
    data = read_vectors(path, label_column="kind", client_column="site", missing="mean")
    assert isinstance(data, VectorData)
    assert data.columns == ("a", "b")
    assert data.vectors[:, 1].tolist() == [1, 2]
    assert data.vectors[1, 0].isnan()
    assert (data.classes, data.owner_names) == (("7", "8"), ("n", "s"))
    gaps = {"a": [1.5, 2.0], "kind": [True, None]}
    parquet.write_table(pyarrow.table(gaps), path)
    with pytest.raises(UsageError, match="column 'kind' is empty in row 2: fill it in"):
        read_vectors(path, label_column="kind")
    parquet.write_table(pyarrow.table(gaps | {"kind": [True, False]}), path)
    assert read_vectors(path, label_column="kind").classes == ("False", "True")
    twice = pyarrow.Table.from_arrays([pyarrow.array([1.0])] * 2, names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(UsageError, match="has two columns 'a'"):
        read_vectors(path)


NUMBERS: dict[str, tuple[Callable[[Any], Any], list[Any], list[list[float]]]] = {
    "bool": (lambda of: of.bool_(), [True, None, False], [[1], [-1], [0]]),
    "decimal": (
        lambda of: of.decimal128(5, 2), [Decimal("1.50"), None, Decimal("-2")], [[1.5], [-1], [-2]],
    ),
    "nothing": (lambda of: of.null(), [None, None, None], [[-1], [-1], [-1]]),
    "float16": (lambda of: of.float16(), [*np.array([0.5, 3], "f2"), None], [[0.5], [3], [-1]]),
    "large": (lambda of: of.uint64(), [2**63, None, 1], [[2.0**63], [-1], [1]]),
    "dictionary": (lambda of: of.dictionary(of.int8(), of.int32()), [7, 9, None], [[7], [9], [-1]]),
    "lists": (
        lambda of: of.list_(of.int8()), [[1, None], None, [3, 4]], [[1, -1], [-1, -1], [3, 4]],
    ),
    "large lists": (lambda of: of.large_list(of.float32()), [[1], [2], [3]], [[1], [2], [3]]),
    "empty": (lambda of: of.list_(of.int8()), [[], None, []], [[-1], [-1], [-1]]),
    "gaps": (lambda of: of.list_(of.int8()), [None, None, None], [[-1], [-1], [-1]]),
    "lists of a size": (lambda of: of.list_(of.float64(), 2), [[1, 2]] * 3, [[1, 2]] * 3),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_and_missing_values_of_each_type(tmp_path: Path, case: str) -> None:
    kind, cells, expected = NUMBERS[case]
    column = pyarrow.array(cells, kind(pyarrow))
    path = written(tmp_path / "x.parquet", {"b": [5.0, 1, 5], "a": column})
    data = read_vectors(path, missing="mean")
    assert data.vectors[:, 1:].nan_to_num(-1).tolist() == expected
    parts = ("a[0]", "a[1]")[: len(expected[0])] if "lists" in case else ("a",)
    assert data.columns == ("b", *parts)
    again = read_vectors(path, columns=data.columns[::-1], missing="mean").vectors
    assert again.nan_to_num(-1).tolist() == data.vectors.flip(1).nan_to_num(-1).tolist()


def test_lists_of_lists_become_columns(tmp_path: Path) -> None:
    data = read_vectors(written(tmp_path / "x.parquet", {"a": [[[1, 2], [3, 4]]] * 2}))
    assert data.columns == ("a[0][0]", "a[0][1]", "a[1][0]", "a[1][1]")
    assert data.vectors.tolist() == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([datetime(2020, 1, 1)] * 2, "timestamp"),
        (["1", "2"], "string"),
        ([[1, 2], [3]], "list"),
        ([{"a": 1}] * 2, "struct"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path: Path, column: list[Any], kind: str) -> None:
    path = written(tmp_path / "x.parquet", {"b": [1, 5], "a": column})
    with pytest.raises(UsageError, match=f"column 'a' holds {kind}.*, no numbers"):
        read_vectors(path)


def test_classes_and_clients_are_names_of_any_type(tmp_path: Path) -> None:
    columns = {
        "a": [5, 1, 3],
        "padded": pyarrow.array(["x ", " x", "y"]).dictionary_encode(),
        "float": pyarrow.array([0.1, 1, 10], pyarrow.float32()),
        "bytes": [b"b", b"a", b"b"],
        "other bytes": [b"h\xf4", b"a", b"h\xf4"],
        "day": [date(2020, 1, day) for day in (1, 2, 1)],
        "gap": pyarrow.array(["x", None, "y"]).dictionary_encode(),
        "blank": ["x", "y", " "],
        "list": [[1], [2, 3], [4]],
    }
    path = written(tmp_path / "x.parquet", columns)

    def classes(column: str) -> tuple[str, ...]:
        chosen = read_vectors(path, label_column=column, columns=("a",))
        return chosen.classes

    assert classes("padded") == ("x", "y")
    assert classes("float") == ("0.1", "1", "10")
    assert classes("bytes") == ("a", "b")
    assert classes("other bytes") == ("a", "h\ufffd")
    assert classes("day") == ("2020-01-01", "2020-01-02")
    for column, message in (("gap", "row 2"), ("blank", "row 3"), ("list", "no names")):
        with pytest.raises(UsageError, match=f"column '{column}' .*{message}"):
            classes(column)


def test_the_index_of_pandas_is_no_part_of_the_vectors(tmp_path: Path) -> None:
    columns = {"a": [5.0, 1], "b": [3.0, 4], "__index_level_0__": [7, 3], "patient": ["x", "y"]}
    index = ["__index_level_0__", "patient", {"kind": "range", "start": 0, "stop": 2, "step": 1}]
    path = written(tmp_path / "x.parquet", columns, index)
    data = read_vectors(path)
    assert (data.columns, data.vectors.tolist()) == (("a", "b"), [[5, 3], [1, 4]])
    assert data.notes == (
        "column '__index_level_0__' is an index of pandas, and no part of the vectors",
        "column 'patient' is an index of pandas, and no part of the vectors",
    )
    assert read_vectors(path, client_column="patient").owner_names == ("x", "y")
    del columns["patient"]
    with pytest.raises(UsageError, match="column 3 is called '__index_level_0__', as an index"):
        read_vectors(written(path, columns))


def test_long_codes_beside_a_gap_stay_apart(tmp_path: Path) -> None:
    long = [9007199254740993, 9007199254740992, 9007199254740993]
    tables = {"whole": long, "gap": [*long[:2], None]}
    read = {
        name: read_vectors(
            written(tmp_path / f"{name}.parquet", {"a": [1.0, 2, 4], "code": codes}),
            categories=("code",),
            missing="mean",
        ).vectors[:, 1]
        for name, codes in tables.items()
    }
    assert read["gap"][:2].tolist() == read["whole"][:2].tolist()
    assert read["gap"][0] != read["gap"][1]
    assert read["gap"][2].isnan()
