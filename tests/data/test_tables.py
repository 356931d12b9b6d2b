"""Vectors from files: what is read, and what is refused in which words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.errors import UsageError
from ccfcpp.data.vectors import Missing, VectorData, vectors_from
from tests.support.vectors import read_vectors


def read_rows(path: Path, columns: tuple[str, ...], missing: Missing) -> VectorData:
    return read_vectors(path, columns=columns, missing=missing)


ROWS = np.arange(12.0).reshape(4, 3)
TABLE = 'height,"width, m",kind,site\n1,2.5,10,north\n3,-4e1,2,south\n5,6,10,north\n'


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_npy_is_mapped_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    data = read_vectors(path)
    assert data.vectors.dtype == torch.float64
    assert torch.equal(data.vectors, torch.from_numpy(ROWS))
    base = data.vectors.numpy().base
    while not isinstance(base, np.memmap) and base is not None:
        base = getattr(base, "base", None)
    mapped = Path("/proc/self/maps")
    assert not mapped.exists() or str(path) in mapped.read_text()
    # What is changed in memory does not change the file.
    data.vectors[0, 0] = 99
    assert np.load(path)[0, 0] == 0


def test_npz_of_no_numbers_is_refused(tmp_path: Path) -> None:
    path, days = tmp_path / "x.npz", np.array([["2026-01-31"] * 2] * 3, "datetime64[D]")
    for array in (days.astype(str), days):
        np.savez(path, x=array, columns=["a", "b"])
        with pytest.raises(UsageError, match="but must be numbers"):
            read_vectors(path)
        with pytest.raises(UsageError, match="no numbers: name all columns by --categories"):
            read_vectors(path, dates=("a",))
        assert read_vectors(path, dates=("a", "b")).vectors.shape == (3, 2)


def test_npz_has_labels_clients_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    labels, clients = np.array([1, 0, 1, 1]), np.array(["b", "a", "b", "a"])
    np.savez(path, vectors=ROWS, labels=labels, clients=clients, columns=np.array(list("xyz")))
    data = read_vectors(path)
    assert data.columns == ("x", "y", "z")
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1, 1]
    assert data.owner_names == ("a", "b")
    by_column = read_vectors(path, label_column="y")
    assert by_column.columns == ("x", "z")
    assert by_column.classes == ("1", "4", "7", "10")


def test_npz_names_in_bytes_are_read_as_labels_are(tmp_path: Path) -> None:
    path, names = tmp_path / "x.npz", np.array([b"x", b"y", b"z"])
    np.savez(path, vectors=ROWS, columns=names, names=np.array([b"1", b"2", b"3", b"4"]))
    data = read_vectors(path)
    assert (data.columns, data.names) == (("x", "y", "z"), ("1", "2", "3", "4"))
    for odd in (names[:, None], np.array("x")):
        np.savez(path, vectors=ROWS, columns=odd)
        with pytest.raises(UsageError, match=r"columns are named for \(4, 3\): name each"):
            read_vectors(path)


def test_csv_takes_columns_by_their_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", TABLE)
    data = read_vectors(path, label_column="kind", client_column="site")
    assert data.columns == ("height", "width, m")
    assert torch.equal(data.vectors, torch.tensor([[1, 2.5], [3, -40], [5, 6]]).double())
    assert data.classes == ("2", "10")
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.owner_names == ("north", "south")


def test_csv_without_names_calls_columns_by_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "1,2,7\n3,4,8\n")
    assert read_vectors(path).vectors.shape == (2, 3)
    assert read_vectors(path).columns == ()
    assert read_vectors(path, label_column="2").classes == ("7", "8")


@pytest.mark.parametrize("cell", ["", "NA", "nan", "null"])
def test_missing_values_are_refused_or_left_to_be_filled_in(tmp_path: Path, cell: str) -> None:
    path = written(tmp_path / "x.csv", f"a,b\n1,2\n{cell},4\n")
    with pytest.raises(UsageError, match=r"column 'a' holds nan in row 2.*--missing mean"):
        read_vectors(path)
    data = read_vectors(path, missing="mean")
    assert data.vectors.isnan().tolist() == [[False, False], [True, False]]


def test_a_misspelt_category_is_named_where_values_may_be_missing_too(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "age,Ward\n1,b\n7,a\n4,b\n")
    for missing in ("refuse", "mean"):
        with pytest.raises(UsageError, match="has no column 'ward': it has 'age', 'Ward'"):
            read_vectors(path, categories=["ward"], missing=missing)


FAULTS: dict[str, tuple[str, dict[str, str], str]] = {
    "a string": ("a,b\n1,red\n", {}, r"line 2: column 'b' holds 'red', which is no number"),
    "a decimal comma": ('a,b\n1,"2,5"\n', {}, "holds '2,5', which is no number: write decimals"),
    "semicolons": ("a;b\n1;2,5\n", {}, "has ';' between its columns: write it with commas"),
    "decimal commas": ("1,5;2,5\n2,5;3,5\n", {}, "';' between its columns: .* with a point"),
    "tabs": ("a\tb\n1\t2\n", {}, "between its columns: write it with commas"),
    "an infinity": ("a,b\n1,2\n3,inf\n", {}, r"column 'b' holds inf in row 2"),
    "a huge number": ("a,b\n1,2\n3,1e200\n", {}, r"column 'b' holds 1e\+200 in row 2, and vec"),
    "no such column": ("a,b\n1,2\n", {"label_column": "c"}, r"has no column 'c': it has 'a', 'b'"),
    "a short line": ("a,b\n1,2\n3\n", {}, r"line 3: 1 cells, but there are 2 columns"),
    "a long line": ("a,b\n1,2\n3,4,5\n", {}, r"line 3: 3 cells, but there are 2 columns"),
    "a long line of labels": (
        "a,b\n1,x\n3,y,5\n", {"label_column": "b"}, r"line 3: 3 cells, but there are 2 columns",
    ),
    "two of a name": ("a,a\n1,2\n", {}, r"has two columns 'a'"),
    "nothing": ("", {}, "is empty"),
    "names alone": ("a,b\n", {}, "shape"),
    "labels alone": ("a\n1\n", {"label_column": "a"}, "nothing is left"),
    "one column twice": (
        "a,b\n1,2\n", {"label_column": "a", "client_column": "a"}, "'a' is named twice",
    ),
    "an index without a name": (",a,b\n0,1,2\n", {}, "column 1 has no name, as an index that pan"),
    "an index beside numbers": (",0,1\n0,1,2\n", {}, "column 1 has no name"),
    "a name that pandas gives": ("Unnamed: 0,a\n0,1\n", {}, "column 1 is called 'Unnamed: 0', as"),
    "one of such names": ("a,Unnamed: 0.1\n0,1\n", {}, r"column 2 is called 'Unnamed: 0\.1'"),
    "a cleaned one": ("a,unnamed_0\n0,1\n", {}, "column 2 is called 'unnamed_0'"),
    "one that R gives": ("...1,a\n0,1\n", {}, r"column 1 is called '\.\.\.1'"),
    "an index as a column": ("index,a\n7,1\n5,1\n6,2\n", {}, "column 'index' numbers the rows"),
    "a comma at the end": ("a,b,\n1,2,\n", {}, "column 3 has no name"),
    "two spellings": ("a,a \n1,2\n", {}, "has two columns 'a' and 'a ': give each"),
    "two spellings of a number": ("a,1,01\n1,2,3\n", {}, "has two columns '1' and '01'"),
    "digits in groups": ("a,b\n1,2_3\n", {}, "column 'b' holds '2_3', which is no number"),
    "too small to square": ("a,b\n1,1e-200\n2,-2e-200\n", {}, "'b' holds nothing beyond 2e-200"),
    "no label": ("a,b\n1,x\n2,\n", {"label_column": "b"}, "column 'b' is empty in row 2"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_csv_file_is_one_line(tmp_path: Path, fault: str) -> None:
    text, arguments, message = FAULTS[fault]
    path = written(tmp_path / "x.csv", text)
    with pytest.raises(UsageError, match=message) as raised:
        read_vectors(path, **arguments)
    assert "\n" not in str(raised.value)


def test_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    cells = ["+1", " 2 ", ".5", "5.", "1e5", "1e-999", '"7"', "\u0661", "0.1234567890123456789"]
    path = written(tmp_path / "x.csv", "\n".join(["a,b", *(f"{cell},1" for cell in cells)]))
    expected = [float(cell.strip('"')) for cell in cells]
    assert read_vectors(path).vectors[:, 0].tolist() == expected


def test_the_line_that_is_named_is_that_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", 'a,"b\nc"\n\n1,2\n\n3,red\n')
    with pytest.raises(UsageError, match=r"line 6: column 'b\\nc' holds 'red'"):
        read_vectors(path)


def test_blocks_of_lines_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccfcpp.data.table_files._BLOCK", 64)
    rows = [f"{number},{number % 7 or ''},k{number % 3}" for number in range(100)]
    path = written(tmp_path / "x.csv", "\n".join(["a,b,kind", *rows]))
    data = read_vectors(path, label_column="kind", missing="mean")
    assert data.vectors[:, 0].tolist() == [*range(100)]
    assert data.vectors[:, 1].nan_to_num(0).tolist() == [number % 7 for number in range(100)]
    assert data.labels is not None
    assert data.labels.tolist() == [number % 3 for number in range(100)]
    for last, message in (("1,red,k", "column 'b' holds 'red'"), ("1,2", "2 cells, but there are")):
        written(path, "\n".join(["a,b,kind", *rows, last]))
        with pytest.raises(UsageError, match=f"line 102: {message}"):
            read_vectors(path, label_column="kind", missing="mean")


@pytest.mark.parametrize(("name", "place"), [("gr\xf6\xdfe", 2), ("size", 7)])
def test_another_encoding_is_refused(tmp_path: Path, name: str, place: int) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(f"{name}\n1\n\xe9\n".encode("latin-1"))
    with pytest.raises(UsageError, match=f"is not in UTF-8 .*in position {place}"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("first", "names"),
    [("0,1,2", ("0", "1", "2")), ("0,1,3", ()), ("0,1", ()), ("0", ()), ("2019,2020,2021", ())],
)
def test_a_first_line_that_counts_from_0_names_columns(
    first: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """pandas writes it so. Of two columns it may be a row."""
    row = ",".join("5" for _ in first.split(","))
    data = read_vectors(written(tmp_path / "x.csv", f"{first}\n{row}\n{row}\n"))
    assert isinstance(data, VectorData)
    assert (len(data), data.columns) == (2 if names else 3, names)


def test_a_line_says_that_a_first_line_is_no_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "2019,2020,2021\n5,6,7\n5,6,7\n")
    assert read_vectors(path).notes == (
        "the first row, 2019, 2020, 2021, is taken for values, and not for names of columns",
    )
    assert read_vectors(written(tmp_path / "y.csv", "y2019,2020\n5,6\n")).notes == ()


def test_a_line_says_that_a_first_line_of_numbers_is_taken_for_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "-1.5,1.3,bad\n2,3,good\n4,5,bad\n")
    assert read_vectors(path, label_column="bad").notes == (
        "the first row, -1.5, 1.3, bad, is taken for names of columns, and not for values",
    )


def test_a_folder_may_have_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    for name in ("north", "caf\udce9"):
        written(folder / f"{name}.csv", "a,b\n1,2\n")
    written(folder / "codes.txt", "a: age")
    data = read_vectors(folder)
    assert (len(data), data.notes) == (2, ("codes.txt is not read",))


def test_lines_without_a_cell_before_names_that_count(tmp_path: Path) -> None:
    data = read_vectors(written(tmp_path / "x.csv", "\n\n0,1,2\n5,6,7\n"))
    assert (data.vectors.tolist(), data.columns) == ([[5, 6, 7]], ("0", "1", "2"))


def test_a_first_line_of_which_a_value_is_missing_is_a_row(tmp_path: Path) -> None:
    data = read_vectors(written(tmp_path / "x.csv", ",0\n1,2\n"), missing="mean")
    assert data.vectors.isnan().tolist() == [[True, False], [False, False]]


def test_two_columns_of_one_name_are_refused_in_arrays_too(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, vectors=ROWS, columns=np.array(["a", "b", "a"]))
    with pytest.raises(UsageError, match="has two columns 'a'"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["10", "2", " 2"], ("2", "10")),
        (["7", "07", "7.0 "], ("7",)),
        (["1.5", "10.5", "2"], ("1.5", "2", "10.5")),
        (["7", "99999999999999999999", "7"], ("7", "99999999999999999999")),
    ],
)
@pytest.mark.parametrize("number", ["1", ""])
def test_names_that_are_numbers(
    tmp_path: Path, cells: list[str], classes: tuple[str, ...], number: str
) -> None:
    """Alike where all numbers are there, which is read at once, and where one is missing."""
    lines = [f"{value},{cell}" for value, cell in zip(["1", number, "3"], cells, strict=True)]
    path = written(tmp_path / "x.csv", "\n".join(["\na,kind", *lines]))
    assert read_vectors(path, label_column="kind", missing="mean").classes == classes


def test_a_folder_has_a_file_for_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clinics"
    written(folder / "north.csv", "a,b,kind\n1,2,x\n")
    written(folder / "south.csv", "b,kind,a\n4,y,3\n6,x,5\n")
    written(folder / ".hidden.csv", "nonsense")
    written(folder / "east" / "more.csv", "a,b,kind\n1,2,x\n")
    data = read_vectors(folder, label_column="kind")
    assert data.notes == ("the tables in its folder east are not read",)
    assert data.owner_names == ("north", "south")
    assert data.owners is not None
    assert data.owners.tolist() == [0, 1, 1]
    assert torch.equal(data.vectors, torch.tensor([[1, 2], [3, 4], [5, 6]]).double())
    assert data.classes == ("x", "y")
    listed = Path.iterdir

    def refuse_east(path: Path) -> Iterator[Path]:
        if path.name == "east":
            raise PermissionError(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse_east)
    assert read_vectors(folder, label_column="kind").notes == ()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        # Together they would have a label, or a name, for each vector.
        ({"labels": np.arange(5)}, {"labels": np.arange(3)}, r"a\.npz: labels have shape \(5,\)"),
        ({"names": ["x"] * 3}, {"names": ["y"] * 5}, r"a\.npz: names have shape \(3,\)"),
        ({"labels": np.arange(4)}, {"labels": np.ones((4, 1), int)}, r"b\.npz: labels have shape"),
        ({"labels": np.arange(4)}, {"labels": np.ones(4)}, r"b\.npz: labels are float64, but must"),
        ({}, {"vectors": ROWS.astype("datetime64[D]")}, r"b\.npz: vectors are datetime64"),
    ],
)
def test_arrays_of_each_file_of_a_folder_fit_each_other(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    for name, arrays in (("a", first), ("b", second)):
        np.savez(tmp_path / f"{name}.npz", **({"vectors": ROWS} | arrays))
    with pytest.raises(UsageError, match=message):
        read_vectors(tmp_path)


def test_a_value_that_does_not_fit_is_told_with_its_file(tmp_path: Path) -> None:
    written(tmp_path / "north.csv", "a,b,kind\n1,2,x\n3,4,y\n")
    path = written(tmp_path / "south.csv", "b,a,kind\n1,2,x\n,4,y\n")
    with pytest.raises(UsageError, match=f"{path}: column 'b' holds nan in row 2, and"):
        read_vectors(tmp_path, label_column="kind")


def test_a_column_that_a_client_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    written(folder / "north.csv", "a,b\n1,2\n")
    written(folder / "south.csv", "a\n3\n")
    with pytest.raises(UsageError, match=r"south\.csv has no column 'b', which other files have"):
        read_vectors(folder)
    assert read_vectors(folder, missing="mean").vectors[1].isnan().tolist() == [False, True]


def test_names_in_several_spellings_are_one_and_a_line_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    written(folder / "a.csv", "size,gro\u0308\xdfe,kind\n2,7,1\n4,5,2\n")
    written(folder / "b.csv", " gr\xf6\xdfe,size,kind \n8,6,1.0\n9,1,02\n")
    data = read_vectors(folder, label_column="kind", missing="mean")
    assert (data.columns, data.classes) == (("size", "gr\xf6\xdfe"), ("1", "2"))
    assert data.vectors.tolist() == [[2, 7], [4, 5], [6, 8], [1, 9]]
    assert [line.split(" are taken")[0] for line in data.notes] == [
        r"columns ' gr\xf6\xdfe' and 'gro\u0308\xdfe'",
        "labels '02' and '2'",
        "labels '1' and '1.0'",
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("age,b", "Age,b"), "a.csv has no column 'Age', and columns 'Age' and 'age' look alike"),
        (("a  ge,b", "a ge,b"), "a.csv has no column 'a ge', and columns 'a  ge' and 'a ge' look"),
        (("alter,masse", "age,mass"), "a.csv has no column 'age', and none of those"),
        (("a,A,b", "a,b"), ""),
        (("a,b,c", "c,d,e"), ""),
        (("a,b,c", "a"), ""),
        (("a,b,c,d,e", "e"), ""),
        *(
            ((f"{one},b", f"{other},b"), "a.csv has no column .*look alike")
            for one, other in (
                ("age", "age\u200b"),
                ("a\ufeffge", "age"),
                ("blood_pressure", "blood pressure"),
                ("weight (kg)", "weight[kg]"),
            )
        ),
    ],
)
def test_columns_are_filled_in_only_where_a_client_lacks_them(
    tmp_path: Path, names: tuple[str, str], message: str
) -> None:
    for name, line in zip("ab", names, strict=True):
        row = ",".join(str(number + 5) for number in range(line.count(",") + 1))
        written(tmp_path / f"{name}.csv", f"{line}\n{row}\n")
    if not message:
        assert read_vectors(tmp_path, missing="mean").vectors.isnan().any()
        return
    for missing in ("mean", "refuse"):
        with pytest.raises(UsageError, match=message):
            read_vectors(tmp_path, missing=missing)


def test_a_column_that_counts_the_rows_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "patient,b\n1,5\n2,3\n3,9\n")
    (note,) = read_vectors(path).notes
    assert note == "column 'patient' counts the rows: take it out if it is their number"
    assert read_vectors(path, client_column="patient").notes == ()


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("patient", (3, 1, 2, 4), "column 'patient' counts the rows"),
        ("patient", (3, 0, 2, 1), "column 'patient' counts the rows"),
        ("patient", (3, 1, 2, 5), ""),
        ("patient", (7, 8, 9, 10), ""),
        ("rn", (7, 3, 9, 12), "column 'rn' may number the rows"),
        ("rn", (7, 3, 7, 12), ""),
        ("rn", (9, 7, 10, 8), None),
        ("index", (0, 1, 2, 3), None),
    ],
)
def test_row_numbers_in_any_order(
    tmp_path: Path, name: str, values: tuple[int, ...], said: str | None
) -> None:
    lines = "".join(f"{value},{value % 3}\n" for value in values)
    path = written(tmp_path / "x.csv", f"{name},b\n{lines}")
    if said is None:
        with pytest.raises(UsageError, match=f"column '{name}' numbers the rows"):
            read_vectors(path)
    else:
        assert [note.split(":")[0] for note in read_vectors(path).notes] == [said] * bool(said)


def test_row_numbers_of_small_integers(tmp_path: Path) -> None:
    """Of which numpy would add no more than 255."""
    small = np.arange(600).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=np.column_stack([small, small % 7]), columns=["a", "b"])
    assert read_vectors(tmp_path / "x.npz").notes == ()


def test_names_of_files_are_those_of_clients(tmp_path: Path) -> None:
    for name in ("001", "002", "010"):
        written(tmp_path / f"{name}.csv", "a,kind\n1,07\n2,1.10\n4,1.1\n")
    data = read_vectors(tmp_path, label_column="kind")
    assert data.owner_names == ("001", "002", "010")
    assert data.classes == ("1.1", "1.10", "07")


def test_hidden_tables_beside_a_client_are_no_matter(tmp_path: Path) -> None:
    for name in ("a.csv", "._a.xlsx", "~$a.xlsx"):
        written(tmp_path / name, "a\n1\n")
    assert read_vectors(tmp_path).owner_names == ("a",)


def test_a_class_that_may_be_none_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,kind\n5,NA\n3,x\n9,x\n")
    assert "labels 'NA' are taken for a name" in read_vectors(path, label_column="kind").notes[0]


def test_labels_of_arrays_of_several_types(tmp_path: Path) -> None:
    for name, labels in (("a", [1, 2]), ("b", ["1", "é"]), ("c", ["é".encode(), b"2 "])):
        np.savez(tmp_path / f"{name}.npz", x=ROWS[:2], labels=np.array(labels))
    np.savez(tmp_path / "d.npz", x=ROWS[:2], labels=np.array([2, 1], np.uint64))
    data = read_vectors(tmp_path)
    assert data.labels is not None
    assert (data.classes, data.labels.tolist()) == (("1", "2", "é"), [0, 1, 0, 2, 2, 1, 1, 0])


def test_few_lines_of_notes(tmp_path: Path) -> None:
    for name in "abcdefgh":
        written(tmp_path / f"{name}.csv", f"{ord(name)},5\n3,4\n")
    notes = read_vectors(tmp_path).notes
    assert len(notes) == 6
    assert notes[-1].startswith("and 3 notes more on ")
    for name in "gh":
        (tmp_path / f"{name}.csv").unlink()
    assert read_vectors(tmp_path).notes[-1].startswith("and 1 note more on ")


def test_spellings_come_first_among_the_notes(tmp_path: Path) -> None:
    for name in "abcdefgh":
        written(tmp_path / f"{name}.csv", f"{name.upper()},x,X\n1,{ord(name)},5\n2,3,4\n3,5,9\n")
    notes = read_vectors(tmp_path, missing="mean").notes
    assert notes[0].startswith("columns 'X' and 'x' look alike")


def test_a_model_of_filled_columns_takes_files_that_lack_one(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    written(folder / "north.csv", "a,b\n1,2\n")
    south = written(folder / "south.csv", "a\n3\n")
    columns = ("b", "a")
    for place, rows in ((folder, [[2, 1], [-1, 3]]), (south, [[-1, 3]])):
        found = read_rows(place, columns, "mean")
        assert found.columns == columns
        assert found.vectors.nan_to_num(-1).tolist() == rows
    with pytest.raises(UsageError, match=r"south\.csv has no column 'b'"):
        read_rows(south, columns, "refuse")
    with pytest.raises(UsageError, match=r"south\.csv has no column 'b'"):
        read_rows(south, ("b",), "mean")
    few = read_rows(south, (*columns, "c", "d"), "mean")
    assert few.vectors.nan_to_num(-1).tolist() == [[-1, 3, -1, -1]]
    with_label = written(tmp_path / "label.csv", "a,kind\n3,7\n")
    assert read_rows(with_label, columns, "mean").vectors.nan_to_num(-1).tolist() == [[-1, 3]]
    spaced = written(tmp_path / "x.csv", "a, b\n1,2\n")
    assert read_rows(spaced, columns, "mean").vectors.tolist() == [[2, 1]]
    for names in ("a,B", "alpha,beta"):
        renamed = written(tmp_path / "x.csv", f"{names}\n1,2\n")
        with pytest.raises(UsageError, match=r"x\.csv has no column 'b'"):
            read_rows(renamed, columns, "mean")
    index = written(tmp_path / "index.csv", ",a,b\n0,1,2\n")
    assert read_rows(index, columns, "refuse").vectors.tolist() == [[2, 1]]


FOLDERS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"a.npy": ROWS, "b.npy": ROWS[:, :2]}, {}, r"b\.npy has 2 columns and .*a\.npy has 3"),
    (
        {"a.npz": {"x": ROWS, "y": np.arange(4)}, "b.npz": {"x": ROWS}}, {},
        r"b\.npz has no labels",
    ),
    (
        {"a.npz": {"x": ROWS, "names": np.array(list("abcd"))}, "b.npz": {"x": ROWS}}, {},
        r"b\.npz has no names, and other files have",
    ),
    ({"a.npy": ROWS, "a.npz": {"x": ROWS}}, {}, "two files 'a'"),
    ({"a.npy": ROWS}, {"client_column": "0"}, "each file is a client"),
    ({"a.csv": "x,y\n1,2\n", "b.csv": "x,y\n"}, {}, r"b\.csv holds no row"),
    (
        {"a.npy": ROWS, "b.csv.gz": "", "README.txt": ""}, {},
        r"holds b\.csv\.gz, which is not read",
    ),
    ({"1.npy": ROWS, "01.npy": ROWS}, {}, "two files '01' and '1'"),
    ({}, {}, r"holds no vectors: put files \.npy, \.csv"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "arguments", "message"), FOLDERS)
def test_what_is_wrong_with_a_folder_is_one_line(
    tmp_path: Path, files: dict[str, Any], arguments: dict[str, str], message: str
) -> None:
    for name, held in files.items():
        if isinstance(held, str):
            written(tmp_path / name, held)
        elif isinstance(held, dict):
            np.savez(tmp_path / name, **held)
        else:
            np.save(tmp_path / name, held)
    with pytest.raises(UsageError, match=message):
        read_vectors(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([["a"]]), "must be numbers"),
        (np.zeros(3), r"must have \(n, d\)"),
        (np.zeros((0, 3)), "neither of them 0"),
        (np.array([[1.0, np.inf]]), "column '1' holds inf"),
        (np.array([[np.nan]]), "--missing mean"),
    ],
)
def test_arrays_that_are_no_vectors(array: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vectors_from("x", array, "x")


def test_numbers_keep_their_precision() -> None:
    for given, kept in (("f4", "f4"), ("f8", "f8"), (">f8", "f8"), ("f2", "f4"), ("u1", "f4"),
                        ("i8", "f8"), ("?", "f4")):  # fmt: skip
        found = vectors_from("x", ROWS.astype(given), "x").vectors
        assert found.numpy().dtype == np.dtype(kept)
        assert np.array_equal(found.numpy(), ROWS.astype(given))


def test_a_file_with_objects_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"no \.npy file of numbers"):
        read_vectors(path)


def test_columns_of_a_model_are_taken_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", TABLE)
    found = read_rows(path, ("width, m", "height"), "refuse").vectors
    assert found[0].tolist() == [2.5, 1]
    with pytest.raises(UsageError, match="has no column 'depth'"):
        read_rows(path, ("depth", "height"), "refuse")


def test_the_kind_of_a_data_set_is_told_from_its_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", x=ROWS)
    np.savez(tmp_path / "named.npz", vectors=ROWS)
    np.savez(tmp_path / "images.npz", x=np.zeros((2, 8, 8), np.uint8))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").touch()
    photos = [f"cats/{number}.heic" for number in range(5)]
    figures = [f"run/figures/{number}.png" for number in range(9)]
    for name in (
        *(f"labelled/{name}" for name in (*photos, "metadata.csv")),
        *(f"tables/{name}" for name in (*photos[:4], *figures)),
    ):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    kinds = {
        "vectors.npz": "vectors",
        "named.npz": "vectors",
        "images.npz": "images",
        "photos": "images",
        "tables": "vectors",
        "labelled": "images",
        "broken.npz": None,
        "nowhere": None,
        "nowhere.csv": "vectors",
    }
    assert {name: kind_of(str(tmp_path / name)) for name in kinds} == kinds
    assert (kind_of("digits"), kind_of("the clients' own images")) == ("images", None)
