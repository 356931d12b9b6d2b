"""The command ``ccfcpp verify-theory``, which checks the papers' theorems by simulation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import print_rows, progress_console
from ccfcpp.core.files import write_atomically
from ccfcpp.core.tables import as_csv
from ccfcpp.runs.paths import require_empty, writable

if TYPE_CHECKING:
    from ccfcpp.studies.theory.claim_checks import Statement


def verify_theory(
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all random numbers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the numbers as CSV: statements, paths, heat maps."),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Check the papers' theorems against small linear networks under gradient flow."""
    from ccfcpp.runs.environment import use_processors
    from ccfcpp.studies.theory.theorems import verify_statements

    if out is not None:
        with writable(out):
            require_empty(out)
    use_processors()
    console = progress_console()
    began = time.perf_counter()
    statements, tables = verify_statements(seed, lambda subject: console.print(f"{subject} …"))
    seconds = round(time.perf_counter() - began, 1)
    if out is not None:
        for name, rows in tables.items():
            write_atomically(out / f"{name}.csv", as_csv(rows).encode())
    if json_output:
        place = None if out is None else str(out)
        typer.echo(
            json.dumps(
                {"seed": seed, "seconds": seconds, "out": place, "statements": tables["statements"]}
            )
        )
        return
    for subject, group in statements.items():
        print_rows(subject, [_shown(each) for each in group])
    typer.echo(f"seed {seed}, {seconds} s" + ("" if out is None else f"; CSV files in {out}"))


def _shown(statement: Statement) -> dict[str, str]:
    bound = "below " if statement.relation == "<" else ""
    error = statement.relative_error
    return {
        "statement": statement.text,
        "predicted": f"{bound}{statement.predicted:.4g}",
        "simulated": f"{statement.simulated:.4g}",
        "relative error": "" if error is None else f"{error:.1e}",
        "verdict": statement.verdict,
    }
