"""Columns of categories and of dates, as numbers.

A category becomes a code, a whole number that its text determines, so that all clients have the
same one without a list of categories. Clients make columns of 0 and 1 of the codes when they
preprocess vectors together.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical, describe_spellings
from ccfcpp.core.units import list_first
from ccfcpp.data.npz import NOTHING, Array

CODE_BITS = 48
"""Bits of a code: less than the largest coordinate that vectors without a scale may have."""
DAY = 86400
"""Seconds of a day."""
_NOTHING_OF_PANDAS = ("<NA>", "NaT")
"""Missing values as pandas writes them; "nat" may be a category."""


def code(text: str) -> float:
    """Return a category's code, a whole number below 2**48; NaN for a text that means "missing".

    As with pandas, "none" is a category, such as of alarms, and "None" is not.

    Example:
        >>> code(" red") == code("red"), code("red") == code("blue"), code("NA")
        (True, False, nan)
    """
    name = canonical(text)
    lowered = name.lower()
    if lowered in NOTHING - {"none"} or name in ("None", *_NOTHING_OF_PANDAS):
        return math.nan
    digest = hashlib.blake2b(_as_one_truth(name).encode(), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> (64 - CODE_BITS))


def _as_one_truth(text: str) -> str:
    """Return true or false for a truth value: pandas writes True, R TRUE; others stay."""
    lowered = text.strip().lower()
    return lowered if lowered in ("true", "false") else text


def texts_of(cells: Array) -> list[str]:
    """Return the text of each of a column's cells; that of None is empty."""
    if cells.dtype.kind != "O":
        return [*map(str, cells.astype(np.str_).tolist())]
    # As numpy's strings all would take as much memory as the longest.
    there = ["" if cell is None else cell for cell in cells.tolist()]
    return [c.decode("utf-8", "replace") if isinstance(c, bytes) else str(c) for c in there]


def encode(cells: Array) -> tuple[NDArray[np.float64], list[str]]:
    """Return the codes of a column's cells, float64 of shape (rows,), and its distinct texts."""
    texts = texts_of(cells)
    codes = {text: code(text) for text in dict.fromkeys(texts)}
    return np.array([codes[text] for text in texts]), sorted(codes)


def describe_categories(categories: Mapping[str, Sequence[str]]) -> list[str]:
    """Return remarks on texts that are taken for missing, or for one category, a line each.

    ``categories`` are the distinct texts of each column.
    """
    lines = []
    for name, texts in categories.items():
        gaps = [text for text in texts if math.isnan(code(text))]
        # Not those that pandas writes where it has no value.
        if words := [text for text in gaps if text.strip() not in ("", "nan", *_NOTHING_OF_PANDAS)]:
            named = list_first([*map(repr, words)])
            lines.append(f"column {name!r} has no value where it holds {named}")
        there = dict.fromkeys(_as_one_truth(text) for text in texts if text not in gaps)
        lines += describe_spellings(there, f"values of {name!r}")
    return lines


def days_of(path: Path | str, name: str, cells: Array) -> NDArray[np.float64]:
    """Return days from 1 January 1970 to each of a column's dates, float64 of shape (rows,).

    Dates are written as in ISO 8601, such as 2026-01-31 or 2026-01-31T08:15:00+01:00; a time
    without a zone is in UTC. They may be numpy's, too. A missing date is NaN.

    Raises:
        UsageError: A cell holds anything else.
    """
    if cells.dtype.kind == "M":
        seconds = cells.astype("datetime64[us]").astype(np.float64) / 1e6
        return np.where(np.isnat(cells), np.nan, seconds / DAY)
    texts = texts_of(cells)
    try:
        days = {text: _day(text.strip()) for text in dict.fromkeys(texts)}
    except ValueError as error:
        raise UsageError(
            f"{path}: column {name!r} holds {str(error)[:40]!r}, which is no date: write dates as "
            "2026-01-31, or leave the column out of --dates"
        ) from None
    return np.array([days[text] for text in texts])


def are_dates(texts: Collection[str]) -> bool:
    """Return whether there are texts, and each is a date as ``days_of`` reads it."""
    try:
        return len([_day(text.strip()) for text in texts]) > 0
    except ValueError:
        return False


def _day(text: str) -> float:
    """Convert one date to days; raise ``ValueError`` with the text if it is none."""
    if text.lower() in NOTHING or text in _NOTHING_OF_PANDAS:
        return math.nan
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(text) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / DAY


def date_of(day: float) -> str:
    """Return the date that is a number of days after 1 January 1970, such as 2026-01-31.

    Example:
        >>> date_of(20484.5)
        '2026-01-31'
    """
    ordinal = date(1970, 1, 1).toordinal() + math.floor(day)
    # A time zone can make a date that Python does not know of the first and the last one it knows.
    return date.fromordinal(max(1, min(ordinal, date.max.toordinal()))).isoformat()
