"""Quantities and names for people."""

import os

import pytest

from ccfcpp.core.units import bytes_in_words, drawable


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (25_640, "25.6 kB"),
        (2_500_000, "2.5 MB"),
        (12_345_000_000, "12.3 GB"),
    ],
)
def test_small_traffic_is_not_nothing(count: int, words: str) -> None:
    assert bytes_in_words(count) == words


def test_what_is_no_letter_is_replaced() -> None:
    assert drawable(os.fsdecode(b"h\xf4pital\x07\n\xc3\xa9")) == "h\ufffdpital\ufffd\n\u00e9"
    assert drawable("a\u00a0b\tc\r\n") == "a\u00a0b\tc\r\n"
