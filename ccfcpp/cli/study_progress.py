"""How far the runs of a study are, live."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ccfcpp.runs.study import Study


@contextmanager
def watched(
    study: Study[Any],
    console: Console,
    finished: Callable[[], RenderableType] = lambda: "",
) -> Iterator[Callable[[], None]]:
    """Say how far runs are: live on a terminal, or else by a line a run.

    Args:
        study: The runs.
        console: Where to.
        finished: Called at first and whenever a run has ended; what it gives is shown below.

    Yields:
        A function that looks at what has changed.
    """
    known: set[Path] = _done(study)
    # Also at once: what ended a run before may have come between a summary and its table.
    shown = finished()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look() -> None:
            nonlocal known, shown
            done = _done(study)
            if done != known:
                shown = finished()
            if console.is_terminal:
                live.update(Group(_running(study, len(done)), shown), refresh=True)
            else:
                for folder in sorted(done - known):
                    console.print(f"{len(done)} of {len(study.runs)} runs finished: {folder}")
            known = done

        yield look


def _done(study: Study[Any]) -> set[Path]:
    return {run.folder for run in study.runs if study.is_finished(run)}


def _running(study: Study[Any], done: int) -> Text:
    """How far the runs are, and a line for each that has begun, with the rounds behind it."""
    lines = [f"{done} of {len(study.runs)} runs finished"]
    for planned in study.runs:
        metrics = study.folder(planned).metrics
        if not study.is_finished(planned) and metrics.is_file():
            rounds = metrics.read_bytes().count(b"\n")
            lines.append(f"{planned.folder}: {rounds} rounds")
    return Text("\n".join(lines))
