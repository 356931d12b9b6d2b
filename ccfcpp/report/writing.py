"""Figures as files: PNG, SVG, and their numbers as CSV."""

import io
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from ccfcpp.core.files import write_whole
from ccfcpp.report.drawing import Drawn, style
from ccfcpp.report.palette import INKS
from ccfcpp.runs.study import as_csv

_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_PNG_DPI = 200


def write_figure(folder: Path, drawn: Drawn, svg: str) -> None:
    """Write a figure's three files, each of which appears whole.

    Args:
        folder: Where to.
        drawn: The figure.
        svg: What ``as_svg`` makes of it.
    """
    write_whole(folder / f"{drawn.name}.svg", svg.encode())
    write_whole(folder / f"{drawn.name}.png", _saved(drawn, "png", dpi=_PNG_DPI))
    write_whole(folder / f"{drawn.name}.csv", as_csv(drawn.rows).encode())


def as_svg(drawn: Drawn) -> str:
    """A figure as an SVG file, the same at every call."""
    return _saved(drawn, "svg", metadata=_NO_METADATA).decode()


def for_page(svg: str, name: str, label: str) -> str:
    """An SVG to stand in a page among others, in the page's inks.

    Args:
        svg: The content of a file.
        name: The figure's, which its parts' names get so that they differ from other figures'.
        label: What readers hear who do not see it; HTML.
    """
    element = svg[svg.index("<svg") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', partial(_prefixed, name), element)
    element = re.sub(r"<style type=\"text/css\">.*?</style>", "", element, flags=re.DOTALL)
    for ink, variable in INKS.items():
        element = element.replace(f": {ink}", f": var(--{variable})")
    start = f'<svg role="img" aria-label="{label}" '
    width = re.compile(r'\s(width|height)="[\d.]+pt"')
    head, end, rest = element.partition(">")
    return start + width.sub("", head.removeprefix("<svg ")) + end + rest


def _prefixed(name: str, found: re.Match[str]) -> str:
    return f"{found[0]}{name}-"


def _saved(drawn: Drawn, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with style(drawn.name), warnings.catch_warnings():
        # A name in a script that the font does not have is drawn as boxes, without a complaint.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        drawn.figure.savefig(buffer, format=form, **options)
    return buffer.getvalue()
