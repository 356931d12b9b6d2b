"""Results of a reproduced table or figure as text and files."""

from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.files import write_atomically
from ccfcpp.core.tables import as_csv
from ccfcpp.core.units import format_count
from ccfcpp.reports.figure_files import as_svg, write_figure
from ccfcpp.runs.paths import Json
from ccfcpp.studies.reproduction.claims import summarize_claims
from ccfcpp.studies.reproduction.findings import Findings
from ccfcpp.studies.results import Result, images
from ccfcpp.studies.score_tables import ScoreTable
from ccfcpp.studies.tables import as_markdown

_SESSION_KEYS = ("revision", "processor", "threads", "device", "cuda_device")

_MOST_PLACES = 12
"""Largest number of axis values in a text table; the last ones are shown."""


def scale(results: Sequence[Result]) -> str:
    """Return a sentence on what was run: number of runs, data sets, rounds and seeds."""
    names = ", ".join(dict.fromkeys(map(images, results)))
    rounds = sorted({int(result.summary["rounds"]) for result in results})
    seeds = sorted({result.config.seed for result in results})
    diverged = sum(result.summary.get("effective_rank", 0) is None for result in results)
    return (
        f"{format_count(len(results), 'run')} on {names}; "
        f"{_range(rounds)} round{'s' if rounds != [1] else ''}; "
        f"seed{'s' if len(seeds) > 1 else ''} {_range(seeds)}"
        + (f"; {diverged} of them diverged and have no spectrum." if diverged else ".")
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def shown_tables(ours: ScoreTable, paper: ScoreTable | None) -> list[tuple[str, list[Json]]]:
    """Return a title and rows of text for each panel (data set); the paper's values in parentheses.

    If the paper's table has none of our panels, its panels follow as tables of their own.
    """
    tables = [(f"{ours.measure}: {panel}", _rows(ours, panel, paper)) for panel in ours.panels]
    if paper is not None and not set(paper.panels) & set(ours.panels):
        tables += [
            (f"{paper.measure} in the paper: {panel}", _rows(paper, panel, None))
            for panel in paper.panels
        ]
    return tables


def _rows(table: ScoreTable, panel: str, paper: ScoreTable | None) -> list[Json]:
    rows: list[Json] = []
    for system in table.systems:
        row = {f"system, by {table.axis}" if table.axis else "system": system}
        for place in table.places(panel)[-_MOST_PLACES:]:
            score, theirs = (
                table.get(panel, place, system),
                paper and paper.get(panel, place, system),
            )
            beside = f" ({theirs.mean:.3f})" if theirs else ""
            row[place] = f"{score}{beside}" if score else ""
        if any([*row.values()][1:]):
            rows.append(row)
    return rows


def numbers(ours: ScoreTable, paper: ScoreTable | None) -> list[Json]:
    """Return a table's scores as rows of a CSV file, the paper's (None if missing) beside ours."""
    return [
        {
            "images": at[0],
            ours.axis or "place": at[1],
            "system": at[2],
            ours.measure: score.mean,
            "deviation": score.deviation,
            "the paper": theirs.mean if paper and (theirs := paper.get(*at)) else None,
        }
        for at, score in ours.scores.items()
    ]


def findings_as_text(
    title: str, command: str, results: Sequence[Result], findings: Findings
) -> str:
    """Return a Markdown page: claims, tables, figures left out, and the machines of the runs."""
    claims = summarize_claims(scale(results), findings.claims)
    parts = [f"# {title}\n", f"`{command}`\n", f"{claims}\n"]
    for ours, paper in findings.tables:
        for name, rows in shown_tables(ours, paper):
            parts.append(f"{name}\n\n{as_markdown(rows)}")
    if findings.left_out:
        parts.append("Left out:\n\n" + "".join(f"- {line}\n" for line in findings.left_out))
    parts.append("Made by:\n\n" + "".join(f"- {line}\n" for line in describe_sessions(results)))
    return "\n".join(parts)


def describe_sessions(results: Sequence[Result]) -> list[str]:
    """Describe the source revisions and machines of the runs' sessions, without duplicates."""
    sessions = [session for result in results for session in result.folder.read_sessions()]
    known = ([f"{k} {own[k]}" for k in _SESSION_KEYS if own.get(k) is not None] for own in sessions)
    return sorted(set(map(", ".join, known)))


def write(folder: Path, text: str, findings: Findings) -> None:
    """Write ``result.md`` with ``text``, a CSV file for each table, and the figures to a folder."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for drawn in findings.figures:
        write_figure(figures, drawn, as_svg(drawn))
    for number, (ours, paper) in enumerate(findings.tables, start=1):
        write_atomically(folder / f"table-{number}.csv", as_csv(numbers(ours, paper)).encode())
    write_atomically(folder / "result.md", text.encode())
