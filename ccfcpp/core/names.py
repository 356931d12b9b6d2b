"""The one rule by which names are compared: names of classes, clients, columns and files."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from decimal import Context, Decimal

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def canonical(name: str) -> str:
    """Return the spelling by which a name is known.

    Names are compared in Unicode's form NFC and without space at their ends, and numbers by their
    value: pandas writes an integer beside a gap as ``1.0``, and a spreadsheet drops leading zeros.
    Bytes of files' names that are no UTF-8 are written out.

    Example:
        >>> canonical("1.0"), canonical(" low "), canonical("12e1")
        ('1', 'low', '120')
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    name = unicodedata.normalize("NFC", name).strip()
    if not _NUMBER.fullmatch(name):
        return name
    # A context of so many digits rounds no number, however long.
    number = Decimal(name).normalize(Context(prec=len(name)))
    return format(number, "f") if number else "0"


def spellings(names: Iterable[str], what: str) -> list[str]:
    """Return a line for names that the rule takes for one, and for names that only look alike.

    Args:
        names: Names as they are written, in any order.
        what: What they name, in the plural, such as "classes".
    """
    written = sorted(set(names))
    by_name = _grouped(written, canonical)
    by_look = _grouped(by_name, lambda name: " ".join(name.casefold().split()))
    return [
        f"{what} {_listed(group)} are taken for one, {name!r}"
        for name, group in by_name.items()
        if len(group) > 1
    ] + [
        f"{what} {_listed(group)} differ only in case or spaces: rename one if they are the same"
        for group in by_look.values()
        if len(group) > 1
    ]


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def _listed(names: list[str]) -> str:
    # As ASCII: two forms of one letter look the same otherwise.
    return " and ".join(map(ascii, names))
