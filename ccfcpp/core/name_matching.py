"""The rule for comparing names of classes, clients, columns and files."""

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?([0-9]{1,999}(\.0*)?|[1-9](\.[0-9]+)?e\+[0-9]{2})")
"""A whole number, also as pandas writes it in a column with gaps: ``1.0``, ``1e+16``."""
_DECIMAL = re.compile("[+-]?[0-9]*[.][0-9]+")
_ALIKE = {"true": "1", "false": "0"}


def tidy(name: str) -> str:
    """Return a name as it is displayed: in Unicode's NFC form, without spaces at its ends.

    Bytes of files' names that are not UTF-8 are escaped.
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    return unicodedata.normalize("NFC", name).strip()


def canonical(name: str) -> str:
    """Return the form of a name by which names are compared.

    It is the result of ``tidy``. Whole numbers are reduced to their digits, since pandas writes an
    integer as ``1.0`` if a value of its column is missing, and spreadsheets drop leading zeros.

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
    """Map each canonical name to the name to display: its first spelling."""
    return {name: tidy(written[0]) for name, written in _grouped(names, canonical).items()}


def describe_spellings(names: Iterable[str], what: str) -> list[str]:
    """Return a warning for each group of names that are treated as one, or that only look alike.

    Args:
        names: Names as they are spelled in the data.
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
    """Reduce a name to a form that is equal for names that look alike, such as "A 1" and "a_1"."""
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
