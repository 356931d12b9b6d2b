"""Colours that colour-blind readers can distinguish, and colours that a page can replace."""

from typing import Any

Look = dict[str, Any]
"""Matplotlib's keyword arguments."""

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
"""Colours of ten categories (Petroff 2021, *Accessible Color Sequences for Data Visualization*)."""

_MARKERS = "os^DvPX<>h"
_DASHES: tuple[tuple[int, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (6, 1.5, 1.5, 1.5)),
)

INK, MUTED, GRID, PAPER = "#1d2127", "#5b626d", "#e3e5e9", "#fffffe"
"""Colours of text, minor lines, grids and background. Nothing else in a figure has them, so that a
page can replace them by its own."""

INKS = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
"""Names of these colours, which are the names of the page's CSS variables."""


def colours(count: int) -> list[str]:
    """Return colours for ``count`` categories, such as ``#3f90da``; they repeat after ten."""
    return [CATEGORIES[number % len(CATEGORIES)] for number in range(count)]


def marker(number: int) -> str:
    """Return the marker of a category, counted from 0; it changes each time the colours repeat."""
    return _MARKERS[number // len(CATEGORIES) % len(_MARKERS)]


def line_style(number: int) -> Look:
    """Return colour, dashes and marker of line ``number``, from 0, as arguments of matplotlib."""
    return {
        "color": CATEGORIES[number % len(CATEGORIES)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def ink_on(*colour: float) -> str:
    """Return black or white, whichever is more legible on ``colour``: red, green, blue, 0 to 1.

    Source: WCAG 2.2, relative luminance; both contrasts are equal at 0.179.
    """
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"
