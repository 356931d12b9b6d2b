"""The rule by which names are compared."""

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.name_matching import canonical, describe_spellings, display_names


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            ("1", "1.0"),
            ("07", "7"),
            ("-0", "0.00"),
            ("1", "1."),
            ("low", "low "),
            ("é", "e\u0301"),
        ),
        *(("1" + "0" * 16, "1e+16"), ("12" + "0" * 15, "1.2e+16"), ("-7", "-007.0")),
    ],
)
def test_one_name_in_two_spellings_is_one_name(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("low", "Low"),
        ("1", "1a"),
        ("nan", "0"),
        ("1.0.0", "1.0"),
        ("1", "\u0661"),
        ("1", "-1"),
        *(
            ("1.1", "1.10"),
            ("0e12", "0e34"),
            ("12e4", "120000"),
            ("7e999", "7e+999"),
            ("100", "1e2"),
        ),
        *(("12345", "1.2345e+03"), ("0", "0e+12"), ("120000", "12e+04")),
        ("12345678901234567890123456789012345", "12345678901234567890123456789012346"),
    ],
)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


def test_bytes_that_are_no_utf8_are_written_out() -> None:
    one, other = canonical(os.fsdecode(b"h\xf4pital")), canonical(os.fsdecode(b"h\xf5pital"))
    assert one != other
    assert one.encode().isascii()


@given(st.text(max_size=12) | st.floats(allow_nan=False).map(str) | st.integers().map(str))
def test_a_canonical_name_is_its_own_and_numbers_keep_their_value(name: str) -> None:
    known = canonical(name)
    assert canonical(known) == known
    assert unicodedata.is_normalized("NFC", known)
    try:
        assert float(known) == float(name) or float(name) != float(name)
    except ValueError:
        assert known == unicodedata.normalize("NFC", name).strip()


def test_pairs_are_named() -> None:
    (line,) = describe_spellings(["1", "1.0", "2"], "classes")
    assert line == "classes '1' and '1.0' are taken for one, '1'"
    (line,) = describe_spellings(["Low", "low", "high"], "classes")
    assert "'Low' and 'low' look alike" in line
    assert describe_spellings(["a", "b"], "classes") == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("age", "\ufeffage"), ("age", "age\u200b"), ("blood_pressure", "blood  pressure")),
        *(("weight (kg)", "weight[kg]"), ("\u22121", "-1.0"), ("\uff11", "1"), ("1.5", "1.50")),
        *(("True", "1"), ("0.0", "false"), ("stra\xdfe", "STRASSE"), ("1.10", "1.1")),
    ],
)
def test_names_that_look_alike_stay_two_and_are_named(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)
    (line,) = describe_spellings([one, other], "labels")
    assert line.endswith("look alike: rename one if they are the same")


def test_names_are_shown_as_they_are_written_first() -> None:
    assert display_names(["001", " e\u0301", "1", "\xe9"]) == {"1": "001", "\xe9": "\xe9"}
    assert describe_spellings(["07", "7", "07"], "labels") == [
        "labels '07' and '7' are taken for one, '07'"
    ]
