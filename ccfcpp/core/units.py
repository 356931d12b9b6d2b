"""Formatting of counts, sizes and names for people."""

import re
from collections.abc import Mapping, Sequence

_MOST_NAMED = 20
_NO_LETTER = re.compile("[\0-\b\v\f\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, such as "3 images"."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def bytes_in_words(count: int) -> str:
    """Format a number of bytes in the largest unit of which there is at least one."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def time_in_words(seconds: float) -> str:
    """Format seconds roughly: "about 80 seconds", "about 80 minutes" or "about 2 hours"."""
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"about {format_count(round(seconds / size), unit)}"
    return f"about {format_count(max(1, round(seconds)), 'second')}"


def list_names(names: Sequence[str]) -> str:
    """Join names with commas and "and"; of more than 20, only the first 20, then "N more"."""
    *first, last = names[:_MOST_NAMED]
    if len(names) > _MOST_NAMED:
        first, last = [*first, last], f"{len(names) - _MOST_NAMED} more"
    return f"{', '.join(first)} and {last}" if first else last


def list_first(names: Sequence[object], most: int = _MOST_NAMED) -> str:
    """Join the first ``most`` names with commas, followed by the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Join names with their counts, such as "cat (3) and dog (5)"."""
    return (
        list_names([f"{printable_name(name)} ({count})" for name, count in counts.items()])
        if counts
        else ""
    )


def printable_name(name: str) -> str:
    """Return a file's name on one line, as a terminal can print it."""
    return name if name.isprintable() else ascii(name)


def drawable(text: str) -> str:
    """Return a text for a page or a plot, with replacements for what is not valid UTF-8."""
    return _NO_LETTER.sub("\ufffd", text)


def traffic_titles(deployed: bool) -> tuple[str, str]:
    """Return labels for the bytes to and from the server; "would travel" unless ``deployed``."""
    travels = "travelled" if deployed else "would travel"
    return f"{travels} to the server", f"{travels} to clients"
