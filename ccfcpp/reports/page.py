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
from ccfcpp.reports.profile import distinctions, profile_table
from ccfcpp.reports.run_reader import RecordedRun

_MOST_EMBEDDED = 100_000
"""Most bytes of a figure's numbers that are embedded in a page."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def study_page(figures: Contents, svgs: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """Render a study, a set of related runs, as one HTML file without scripts.

    Args:
        figures: The study's figures.
        svgs: SVG text of each figure, by the figure's name.
        facts: Values of the variables in the template ``study.html``.
    """
    return TEMPLATES.get_template("study.html").render(sections=_sections(figures, svgs), **facts)


def page(runs: Sequence[RecordedRun], figures: Contents, svgs: Mapping[str, str]) -> str:
    """Render runs as one HTML file without scripts.

    Args:
        runs: The runs, with labels if there are several.
        figures: Their figures.
        svgs: SVG text of each figure, by the figure's name.
    """
    several = len(runs) > 1
    return TEMPLATES.get_template("page.html").render(
        title=f"{len(runs)} runs side by side" if several else summary_tables.heading(runs[0]),
        runs=[_describe(run) for run in runs],
        several=several,
        notes=[note for note in map(summary_tables.note, runs) if note],
        results=summary_tables.results_table(runs) if several else [],
        differences=summary_tables.differences_table(runs) if several else [],
        sections=_sections(figures, svgs),
        left_out=figures.left_out,
    )


def _sections(
    figures: Contents, svgs: Mapping[str, str]
) -> list[tuple[str, str, list[list[dict[str, object]]]]]:
    return [
        (slug(title), title, [[_embed(drawn, svgs[drawn.name]) for drawn in r] for r in rows])
        for title, rows in figures.sections.items()
    ]


def _describe(run: RecordedRun) -> dict[str, object]:
    return {
        "label": run.label,
        "heading": summary_tables.heading(run),
        "folder": run.path.resolve().name,
        "setting": summary_tables.setting(run),
        "results": summary_tables.results(run),
        "scored_by": summary_tables.scored_by(run),
        "distinctions": distinctions(run.profile),
        "profile": profile_table(run.profile),
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
    """Return a link to a figure's numbers as CSV: a data URL, or, if they are many, a path."""
    content = csv_bytes(drawn.rows)
    if len(content) > _MOST_EMBEDDED:
        return f"figures/{drawn.name}.csv"
    return f"data:text/csv;base64,{base64.b64encode(content).decode()}"
