"""Colours that colour-blind readers can tell apart, and inks that a page can change."""

from itertools import cycle, islice
from typing import Any

CATEGORIES = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
"""Ten categories. Source: Petroff 2021, *Accessible Color Sequences for Data Visualization*."""

_MARKERS = "os^DvPX<>h"
_DASHES: tuple[tuple[int, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (6, 1.5, 1.5, 1.5)),
)

INK, MUTED, GRID, PAPER = "#1d2127", "#5b626d", "#e3e5e9", "#fffffe"
"""Inks of a figure on white: text, lesser lines, grids, ground. Nothing else has these colours, so
that a page can put its own in their place."""

INKS = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
"""Their names, which are those of the page's variables."""


def colours(count: int) -> list[str]:
    """Colours of ``count`` categories; beyond ten they come again."""
    return list(islice(cycle(CATEGORIES), count))


def marker(number: int) -> str:
    """The marker of a category: another one where its colour comes again.

    Args:
        number: The category, from 0.
    """
    return _MARKERS[number // len(CATEGORIES) % len(_MARKERS)]


def line_style(number: int) -> dict[str, Any]:
    """How the line of a category differs from the others: colour, dash and marker."""
    return {
        "color": CATEGORIES[number % len(CATEGORIES)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def ink_on(red: float, green: float, blue: float) -> str:
    """Black or white, whichever is the more legible on a colour.

    Args:
        red: Its shares, from 0 to 1.
        green: The same.
        blue: The same.

    Source: WCAG 2.2, relative luminance, at which both contrasts are equal.
    """
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"
