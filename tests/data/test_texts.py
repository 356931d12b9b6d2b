"""Texts of tables: columns by their names, and what is refused in which words."""

from pathlib import Path

import pytest

from ccfcpp.core.errors import UsageError
from ccfcpp.data.texts import read_texts


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_columns_are_found_by_any_spelling_of_their_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "\ufeff text ,gro\u0308\xdfe\nblue,S\n,L\n")
    found = read_texts(path, "text", "gr\xf6\xdfe")
    assert found.texts == ["blue"]
    assert found.labels is not None
    assert found.labels.tolist() == ["S"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,kind\nblue, red,sky\n", "line 2: 3 cells, but there are 2 columns"),
        ("text,kind\nblue\n", "line 2: 1 cells"),
        ("text,kind, text\nblue,sky,red\n", "has two columns 'text' and ' text'"),
        ("text,kind\nblue,sky\nred, \n", "line 3: column 'kind' is empty"),
        ("words,kind\nblue,sky\n", "has no column 'text'"),
        ("", "has no column 'text'"),
    ],
)
def test_what_is_wrong_with_a_table_of_texts_is_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_texts(written(tmp_path / "x.csv", text), "text", "kind")


def test_two_files_of_one_name_are_no_client(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "text\nblue\n")
    written(tmp_path / "a.txt", "red\n")
    with pytest.raises(UsageError, match="has two files 'a'"):
        read_texts(tmp_path, "text")


def test_a_client_without_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").write_text("\n\n")
    with pytest.raises(UsageError, match=r"b\.txt holds no text: .*take it out"):
        read_texts(tmp_path, "text")
