"""The type of a figure, and the style, axes and labels that all figures share."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ccfcpp.core.units import drawable
from ccfcpp.reports.palette import GRID, INK, MUTED, PAPER, Look, line_style

WIDTH, HEIGHT = 4.8, 3.3
"""Size of a figure in inches. It is narrow, so that its text can be read on a phone."""
MOST_NAMES = 20
"""Most categories that a figure names or numbers; the names of more would overlap."""
_LONGEST_NAME = 14

_STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 160,
    "figure.facecolor": PAPER,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "grid.color": GRID,
    "image.interpolation": "none",
    "legend.fontsize": 9,
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
class DrawnFigure:
    """A figure, its texts and the numbers that it shows.

    Attributes:
        name: Name of its files, without their suffixes.
        title: Title of a few words.
        caption: Caption of a sentence or two.
        figure: Matplotlib's figure.
        rows: The numbers, as rows of a table.
        listed: Texts to print below it, such as names of files, by a heading, such as a cluster.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    rows: Rows
    listed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A figure that cannot be drawn: the title that it would have had, and the reason."""

    title: str
    reason: str


@contextmanager
def style(name: str = "") -> Iterator[None]:
    """Set matplotlib to the report's style within the context, whatever style the user has set.

    Identifiers in an SVG written there are derived from ``name``, the figure's name.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = name or "ccfcpp"
        yield


@contextmanager
def new_figure(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """Yield a new figure and its only axes, in the report's style; ``height`` is in inches."""
    with style():
        figure = Figure(figsize=(WIDTH, height))
        yield figure, figure.add_subplot()


@contextmanager
def new_picture(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """Yield a new figure and axes without grid, frame and tick marks; ``height`` is in inches."""
    with new_figure(height) as (figure, axes):
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        yield figure, axes


Curve = Sequence[tuple[float, float]]
"""Points (x, y) of a line."""


@contextmanager
def line_chart(curves: Mapping[str, Curve], x: str, y: str) -> Iterator[tuple[Figure, Axes]]:
    """Draw named lines with a legend; ``x`` and ``y`` label the axes; x values are integers."""
    with new_figure() as (figure, axes):
        for number, (name, curve) in enumerate(curves.items()):
            spacing = max(1, len(curve) // 12)
            # Markers of different lines are at different places, so that none hides another.
            start = min(number * spacing // len(curves), len(curve) - 1)
            look = line_style(number) | {"markersize": 4.5, "markevery": (start, spacing)}
            axes.plot(*zip(*curve, strict=True), label=short(name, 24), linewidth=1.6, **look)
        yield figure, axes
        axes.set(xlabel=x, ylabel=y)
        axes.xaxis.set_major_locator(whole_numbers())
        axes.yaxis.set_major_formatter(axis_number)
        legend_above(axes)


def whole_numbers() -> MaxNLocator:
    """Return a locator that places ticks at whole numbers."""
    return MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])


def colour_bar(axes: Axes, picture: ScalarMappable, label: str, look: Look) -> Colorbar:
    """Add a colour bar beside the axes; ``look`` has further keyword arguments of matplotlib."""
    bar = axes.figure.colorbar(picture, ax=axes, label=label, pad=0.02, **look)
    bar.outline.set_visible(False)
    return bar


def legend_above(axes: Axes, columns: int = 4) -> None:
    """Add a legend with at most ``columns`` columns above the axes, where it covers nothing."""
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


def axis_number(value: float, place: float = 0) -> str:
    """Format the number at a tick of an axis; matplotlib also passes its ``place``, unused here."""
    return with_minus(f"{value:,.6g}")


def with_minus(text: str) -> str:
    """Replace hyphens by minus signs, which are as wide as digits."""
    return text.replace("-", "\N{MINUS SIGN}")


def power(value: float, place: float = 0) -> str:
    """Format the number at a tick of an axis as a power of ten, such as 10⁻³."""
    exponent = str(round(math.log10(value)))
    return "10" + exponent.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Shorten a name to ``longest`` letters: its start, an ellipsis and its end."""
    name, tail = drawable(name), longest // 3
    return name if len(name) <= longest else f"{name[: longest - tail - 1]}…{name[-tail:]}"


def thin_ticks(names: Sequence[str], most: int = MOST_NAMES) -> tuple[list[int], list[str]]:
    """Return positions and shortened names of an axis's ticks, at most ``most``, evenly spaced."""
    step = -(-len(names) // most)
    places = list(range(0, len(names), step))
    return places, [short(names[place]) for place in places]
