"""Files of a figure: PNG, SVG, and its numbers as CSV."""

import io
import re
import warnings
from pathlib import Path

import matplotlib as mpl

from ccfcpp.core.files import write_atomically, write_table
from ccfcpp.reports.drawing import DrawnFigure, style
from ccfcpp.reports.palette import INKS, Look

_OPTIONS: dict[str, Look] = {
    "png": {"dpi": 200},
    "svg": {"metadata": dict.fromkeys(("Date", "Creator", "Format", "Type"))},
}


def write_figure(folder: Path, drawn: DrawnFigure, svg: str) -> None:
    """Write a figure's SVG (from ``as_svg``), PNG and numbers (CSV), each file atomically."""
    write_atomically(folder / f"{drawn.name}.svg", svg.encode())
    write_atomically(folder / f"{drawn.name}.png", _render(drawn, "png"))
    write_table(folder / f"{drawn.name}.csv", drawn.rows)


def as_svg(drawn: DrawnFigure) -> str:
    """Render a figure as SVG; equal figures give equal files."""
    return _render(drawn, "svg").decode()


def for_page(svg: str, name: str, label: str) -> str:
    """Prepare an SVG to be embedded in a page, in the page's colours.

    The figure's ``name`` prefixes the identifiers inside, so that those of several figures differ.
    ``label``, escaped for HTML, is what a screen reader says.
    """
    element = svg[svg.index("<svg") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<0>{name}-", element)
    element = re.sub(r"<style type=\"text/css\">.*?</style>", "", element, flags=re.DOTALL)
    for ink, variable in INKS.items():
        element = element.replace(f": {ink}", f": var(--{variable})")
    start = f'<svg role="img" aria-label="{label}" '
    width = re.compile(r'\s(width|height)="[\d.]+pt"')
    head, end, rest = element.partition(">")
    return start + width.sub("", head.removeprefix("<svg ")) + end + rest


def _render(drawn: DrawnFigure, format_name: str) -> bytes:
    buffer = io.BytesIO()
    with style(drawn.name), warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        if drawn.figure.get_layout_engine():
            # The layout is made once for both formats: it takes a third of a figure's time.
            drawn.figure.draw_without_rendering()
            mpl.rcParams["figure.constrained_layout.use"] = False
            drawn.figure.set_layout_engine(None)
        drawn.figure.savefig(buffer, format=format_name, **_OPTIONS[format_name])
    return buffer.getvalue()
