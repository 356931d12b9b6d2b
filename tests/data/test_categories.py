"""Columns of categories and dates in files and data frames."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.categories import code, date_of, days_of, encode
from ccfcpp.data.columns import Roles, read_frame
from tests.support.vectors import read_vectors


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@given(st.lists(st.text(max_size=8), max_size=20))
def test_equal_texts_have_equal_codes_and_others_do_not(texts: list[str]) -> None:
    codes, distinct = encode(np.array(texts, np.str_))
    assert distinct == sorted({*texts})
    for text, one in zip(texts, codes, strict=True):
        assert one == code(text) or (np.isnan(one) and np.isnan(code(text)))
        assert np.isnan(one) or (one == int(one) and 0 <= one < 2**48)
    known = {code(text) for text in texts if not np.isnan(code(text))}
    # Texts that differ in spaces at their ends, or as 1 and 1.0, are one category.
    assert len(known) <= len(set(texts))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (" red", "red", True),
        ("1.0", "1", True),
        ("True", "true", True),
        ("Red", "red", False),
        ("gr\xf6\xdfe", "gro\u0308\xdfe", True),
    ],
)
def test_which_texts_are_one_category(one: str, other: str, same: bool) -> None:
    assert (code(one) == code(other)) == same


@pytest.mark.parametrize("text", ["", " ", "NA", "nan", "None", "null", "<NA>", "NaT"])
def test_what_is_missing(text: str) -> None:
    assert np.isnan(code(text))
    assert np.isnan(days_of("x", "a", np.array([text]))).all()


def test_columns_of_categories_come_last(tmp_path: Path) -> None:
    text = "colour,size,born,smokes\nred,2,1970-01-03,True\nblue,3,2000-02-29T12:00:00Z,false\n"
    data = read_vectors(
        written(tmp_path / "x.csv", text), categories=["smokes", "colour"], dates=["born"]
    )
    assert data.columns == ("size", "born", "smokes", "colour")
    assert data.vectors.tolist() == [
        [2, 2, code("true"), code("red")],
        [3, 11016.5, code("false"), code("blue")],
    ]
    assert date_of(11016.5) == "2000-02-29"


def test_a_folder_has_one_order_of_columns(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    written(folder / "north.csv", "kind,a\nx,1\n")
    written(folder / "south.csv", "b,a,kind\n4,3,y\n")
    with pytest.raises(UsageError, match=r"north\.csv has no column 'b', which other files have"):
        read_vectors(folder, categories=["kind"])
    data = read_vectors(folder, categories=["kind"], missing="mean")
    assert data.columns == ("a", "b", "kind")
    assert data.vectors[:, 2].tolist() == [code("x"), code("y")]


@pytest.mark.parametrize("missing", ["refuse", "mean"])
@pytest.mark.parametrize("role", ["categories", "dates"])
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("colour", "a,b\n1,2\n", "has no column 'colour': it has"),
        ("0", "1,2\n3,4\n", "has no names of columns, and --categories and --dates need them"),
    ],
)
def test_a_name_that_no_column_has_is_refused(
    name: str, text: str, message: str, role: str, missing: str, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {role: [name], "missing": missing}
    with pytest.raises(UsageError, match=message):
        read_vectors(written(tmp_path / "x.csv", text), **arguments)


def test_a_long_cell_takes_no_more_than_its_own_memory(tmp_path: Path) -> None:
    """As strings of one length these would be 8 GB."""
    cells = ["short"] * 2000 + ["long" * 250_000]
    text = "a,kind\n" + "".join(f"{number},{cell}\n" for number, cell in enumerate(cells))
    data = read_vectors(written(tmp_path / "x.csv", text), categories=["kind"])
    assert len(data.texts) == 2


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (np.array(["2026-01-01"] * 3, "datetime64[ns]"), "2026-01-01"),
        (np.array([1, "q", 2], object), "q"),
        (np.array(["1", "2", "1_0"]), "1_0"),
        (np.array([5, 6, 7], "timedelta64[s]"), "5 seconds', which is no number: make it numbers"),
        (np.array(["NaT", "NaT", "2026-01-01"], "datetime64[ns]"), "2026-01-01"),
        (np.arange(3) * 1j, ".*j.*', which is no number: give its parts"),
    ],
)
def test_a_column_of_a_frame_that_holds_no_numbers_is_named(
    column: NDArray[np.generic], shown: str
) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"odd": column, "kind": ["x", "y", "x"]})
    with pytest.raises(UsageError, match=f"column 'odd' holds '{shown}.*, or take it out"):
        read_frame("X", frame, ["odd", "kind"], Roles(categories=("kind",)))


def test_missing_values_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.array([1.5, None]), "kind": pandas.array(["x", None])})
    numbers = read_frame("X", frame, ["a", "kind"], Roles(categories=("kind",))).numbers
    assert np.isnan(numbers).tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("text", ["0001-01-01T00:00+05:00", "9999-12-31T23:59-05:00"])
def test_the_first_and_the_last_date_have_a_name(text: str) -> None:
    (day,) = days_of("x", "a", np.array([text]))
    assert date_of(day) == text[:10]


def test_a_category_that_is_missing_is_refused_or_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,kind\n1,x\n2,\n")
    with pytest.raises(UsageError, match="column 'kind' holds nan in row 2"):
        read_vectors(path, categories=["kind"])
    kept = read_vectors(path, categories=["kind"], missing="mean").vectors
    assert kept.isnan().tolist() == [[False, False], [False, True]]


def test_none_is_a_category_and_a_line_names_what_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,alarm\n1,none\n5,major\n3,NA\n4,\n")
    data = read_vectors(path, categories=["alarm"], missing="mean")
    assert data.vectors[:, 1].isnan().tolist() == [False, False, True, True]
    assert data.notes == ("column 'alarm' has no value where it holds 'NA'",)


def test_truth_values_of_two_programs_are_one_category(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,smokes\n9,TRUE\n2,True\n3,false\n5,FALSE\n")
    data = read_vectors(path, categories=["smokes"])
    assert data.notes == ()
    first, second, third, fourth = data.vectors[:, 1].tolist()
    assert first == second != third == fourth


def test_spellings_of_two_clients_are_told(tmp_path: Path) -> None:
    written(tmp_path / "sites" / "north.csv", "a,grade\n1,low\n2,high\n")
    written(tmp_path / "sites" / "south.csv", "a,grade\n1,Low\n2,high\n")
    (note,) = read_vectors(tmp_path / "sites", categories=["grade"]).notes
    assert note.startswith("values of 'grade' 'Low' and 'low' look alike")


def test_spellings_that_look_alike_are_told(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,kind\n1,male\n2,Male\n3,male \n")
    notes = read_vectors(path, categories=["kind"]).notes
    assert any("values of 'kind' 'Male' and 'male'" in note for note in notes)


FAULTS: dict[str, tuple[dict[str, list[str]], str]] = {
    "no such column": ({"categories": ["shape"]}, "has no column 'shape': it has 'a', 'kind'"),
    "no such date": ({"dates": ["born"], "categories": ["kind"]}, "has no column 'born'"),
    "no date": ({"dates": ["kind"]}, "column 'kind' holds 'x', which is no date: write dates as"),
    "named twice": ({"dates": ["kind"], "categories": ["kind"]}, "'kind' is named twice"),
    "not named": ({}, "column 'kind' holds 'x', which is no number: name the column by --categ"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_one_line(tmp_path: Path, fault: str) -> None:
    arguments, message = FAULTS[fault]
    path = written(tmp_path / "x.csv", "a,kind\n1,x\n2,y\n")
    with pytest.raises(UsageError, match=message) as raised:
        read_vectors(path, **arguments)
    assert "\n" not in str(raised.value)


def test_parquet_and_frames_have_the_numbers_of_csv(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "colour": pandas.Categorical(["red", None, "blue"]),
            "a": [1.5, 2.0, 3.0],
            "smokes": [True, False, True],
            "born": [pandas.Timestamp("1970-01-02"), pandas.Timestamp("1999-12-31 06:00"), None],
            "grade": [1, 2, 1],
        }
    )
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "y.parquet", index=False)
    roles = Roles(categories=("grade", "smokes", "colour"), dates=("born",), missing="mean")
    csv, parquet = (
        read_vectors(
            tmp_path / name, categories=roles.categories, dates=roles.dates, missing="mean"
        )
        for name in ("x.csv", "y.parquet")
    )
    assert csv.columns == parquet.columns == ("a", "born", "grade", "smokes", "colour")
    wanted = csv.vectors.numpy()
    np.testing.assert_array_equal(parquet.vectors.numpy(), wanted)
    np.testing.assert_array_equal(read_frame("X", frame, csv.columns, roles).numbers, wanted)
    assert wanted[:2, 1].tolist() == [1, 10956.25]
    assert wanted[0, 2] == code("1")
