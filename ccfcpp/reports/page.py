"""HTML page of figures and facts."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ccfcpp.core.tables import csv_bytes
from ccfcpp.reports import summary_tables
from ccfcpp.reports.contents import Contents
from ccfcpp.reports.drawing import DrawnFigure
from ccfcpp.reports.figure_files import for_page
from ccfcpp.reports.labels import slug
from ccfcpp.reports.run_reader import RecordedRun

_MOST_EMBEDDED = 100_000
"""Bytes of the numbers of a figure that a page has in itself."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def study_page(figures: Contents, svgs: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """Render the page of a study: one file without scripts or other files.

    It has the SVG of each figure by its name, and the facts that ``study.html`` shows.
    """
    return TEMPLATES.get_template("study.html").render(sections=_sections(figures, svgs), **facts)


def page(runs: Sequence[RecordedRun], found: Contents, svgs: Mapping[str, str]) -> str:
    """Render the page of runs: one file without scripts or other files.

    Several runs are labelled; it has the SVG of each figure by its name.
    """
    several = len(runs) > 1
    return TEMPLATES.get_template("page.html").render(
        title=f"{len(runs)} runs side by side" if several else summary_tables.heading(runs[0]),
        runs=[_describe(run) for run in runs],
        several=several,
        notes=[note for note in map(summary_tables.note, runs) if note],
        results=summary_tables.results_table(runs) if several else [],
        differences=summary_tables.differences_table(runs) if several else [],
        sections=_sections(found, svgs),
        left_out=found.left_out,
    )


def _sections(
    found: Contents, svgs: Mapping[str, str]
) -> list[tuple[str, str, list[list[dict[str, object]]]]]:
    return [
        (slug(title), title, [[_embed(drawn, svgs[drawn.name]) for drawn in r] for r in rows])
        for title, rows in found.sections.items()
    ]


def _describe(run: RecordedRun) -> dict[str, object]:
    return {
        "label": run.label,
        "heading": summary_tables.heading(run),
        "folder": run.path.resolve().name,
        "setting": summary_tables.setting(run),
        "results": summary_tables.results(run),
        "scored_by": summary_tables.scored_by(run),
        "leakage": summary_tables.leakage_tables(run.leakage),
        "sessions": [summary_tables.environment(session) for session in run.sessions],
        "config": (run.path / "config.yaml").read_text(),
    }


def _embed(drawn: DrawnFigure, svg: str) -> dict[str, object]:
    return {
        "name": drawn.name,
        "title": drawn.title,
        "caption": drawn.caption,
        "listed": drawn.listed,
        "numbers": _numbers(drawn),
        # Matplotlib has escaped the texts inside.
        "svg": Markup(for_page(svg, drawn.name, str(escape(drawn.title)))),  # noqa: S704
    }


def _numbers(drawn: DrawnFigure) -> str:
    """Say where a figure's numbers are: in the page, or, if they are many, in a file."""
    content = csv_bytes(drawn.rows)
    if len(content) > _MOST_EMBEDDED:
        return f"figures/{drawn.name}.csv"
    return f"data:text/csv;base64,{base64.b64encode(content).decode()}"
