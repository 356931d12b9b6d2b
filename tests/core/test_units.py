"""Quantities for people."""

import pytest

from ccfcpp.core.units import bytes_in_words


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
