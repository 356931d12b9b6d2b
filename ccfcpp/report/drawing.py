"""What all figures share: what one is, its paper and its axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ccfcpp.report.palette import GRID, INK, MUTED, PAPER

WIDTH, HEIGHT = 4.8, 3.3
"""Inches. Narrow, so that text can be read where the figure is as wide as a phone."""
MOST_NAMES = 20
"""More categories than these are not named or numbered in a figure, for they would overlap."""
_LONGEST_NAME = 14

_STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 160,
    "figure.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "image.interpolation": "none",
    "legend.edgecolor": GRID,
    "legend.facecolor": PAPER,
    "legend.fontsize": 9,
    "legend.framealpha": 0.9,
    "savefig.dpi": "figure",
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}

Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Drawn:
    """A figure.

    Attributes:
        name: Stem of its files.
        title: What it shows, in a few words.
        caption: What one sees, and how to read it, in a sentence or two.
        figure: The drawing.
        rows: The numbers behind it.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    rows: Rows


@dataclass(frozen=True)
class LeftOut:
    """A figure that cannot be drawn.

    Attributes:
        title: What it would have shown.
        reason: Why it does not.
    """

    title: str
    reason: str


Outcome = Drawn | LeftOut


@contextmanager
def style(name: str = "") -> Iterator[None]:
    """Draw, or write, in the report's style, whatever the user's own is.

    Args:
        name: The figure's, on which the names inside its SVG depend.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = name or "ccfcpp"
        yield


@contextmanager
def paper(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """A new figure of one pair of axes; ``height`` is in inches."""
    with style():
        figure = Figure(figsize=(WIDTH, height))
        yield figure, figure.add_subplot()


@contextmanager
def plate(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """The same for what fills its axes: no grid, and no frame."""
    with paper(height) as (figure, axes):
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        yield figure, axes


def legend_above(axes: Axes, columns: int = 4) -> None:
    """A legend over the axes, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    # Long names take more room than a quarter of the width.
    columns = min(columns, len(labels), max(1, int(56 / (6 + max(map(len, labels), default=1)))))
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=max(columns, 1),
        frameon=False,
        borderaxespad=0.2,
        handlelength=2.6,
        columnspacing=1.2,
    )


def plain(value: float, place: float = 0) -> str:
    """A number at an axis, in full."""
    return with_minus(f"{value:,.6g}")


def with_minus(text: str) -> str:
    """A number with the sign that is as wide as a digit."""
    return text.replace("-", "\N{MINUS SIGN}")


def power(value: float, place: float = 0) -> str:
    """A power of ten at an axis."""
    exponent = str(round(math.log10(value)))
    return "10" + exponent.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name that fits into a figure: its start and its end, by which long names differ."""
    tail = longest // 3
    return name if len(name) <= longest else f"{name[: longest - tail - 1]}…{name[-tail:]}"


def thinned(names: Sequence[str], most: int = MOST_NAMES) -> tuple[list[int], list[str]]:
    """Places and names of ticks: of all, or of every so many where they would overlap."""
    step = -(-len(names) // most)
    places = list(range(0, len(names), step))
    return places, [short(names[place]) for place in places]
