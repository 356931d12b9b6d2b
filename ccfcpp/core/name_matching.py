"""The rule for comparing names of classes, clients, columns and files."""

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?([0-9]{1,999}(\.0*)?|[1-9](\.[0-9]+)?e\+[0-9]{2})")
"""A whole number, also as pandas writes it beside a gap: ``1.0``, ``1e+16``."""
_DECIMAL = re.compile("[+-]?[0-9]*[.][0-9]+")
_ALIKE = {"true": "1", "false": "0"}


def tidy(name: str) -> str:
    """Return a name as it is displayed: in Unicode's form NFC, without space at its ends.

    Bytes of files' names that are not UTF-8 are escaped.
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    return unicodedata.normalize("NFC", name).strip()


def canonical(name: str) -> str:
    """Return the form of a name that comparisons use.

    It is a tidy name, and of a whole number its digits: pandas writes an integer beside a gap as
    ``1.0``, and a spreadsheet drops leading zeros.

    Example:
        >>> canonical("01.0"), canonical(" low "), canonical("1.10"), canonical("1.2e+03")
        ('1', 'low', '1.10', '1200')
    """
    name = tidy(name)
    if not _NUMBER.fullmatch(name):
        return name
    number = Decimal(name)
    return str(int(number)) if number == int(number) else name


def display_names(names: Iterable[str]) -> dict[str, str]:
    """Return the displayed name of each canonical name: as it is first written."""
    return {name: tidy(written[0]) for name, written in _grouped(names, canonical).items()}


def describe_spellings(names: Iterable[str], what: str) -> list[str]:
    """Return a line for names with one canonical form, and for names that only look alike.

    Args:
        names: Names as they are written.
        what: What they name, in the plural, such as "classes".
    """
    written = list(dict.fromkeys(names))
    shown = display_names(written)
    by_name = _grouped(sorted(written), canonical)
    return [
        f"{what} {_listed(group)} are taken for one, {shown[name]!r}"
        for name, group in by_name.items()
        if len(group) > 1
    ] + [
        f"{what} {_listed(group)} look alike: rename one if they are the same"
        for group in _grouped(by_name, _look).values()
        if len(group) > 1
    ]


@functools.lru_cache(1 << 16)
def _look(name: str) -> str:
    """Return the visible part of a name: without case, brackets and invisible letters."""
    name = unicodedata.normalize("NFKC", name).casefold().replace("\u2212", "-")
    name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    name = re.sub(r"[\s_()\[\]{}]+", " ", name).strip()
    return str(float(name)) if _DECIMAL.fullmatch(name) else canonical(_ALIKE.get(name, name))


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def _listed(names: list[str]) -> str:
    # As ASCII: two forms of one letter look the same otherwise.
    return " and ".join(map(ascii, names))
