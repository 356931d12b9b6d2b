"""How far the runs of a study are, live."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ccfcpp.cli.progress import minutes
from ccfcpp.runs.paths import C
from ccfcpp.runs.study import Study


@contextmanager
def watched(
    study: Study[C],
    console: Console,
    finished: Callable[[], RenderableType] = lambda: "",
) -> Iterator[Callable[[], None]]:
    """Say how far runs are: live on a terminal, or else by a line a run.

    At first, and whenever a run has ended, ``finished`` is called; what it gives is shown below.

    Yields:
        A function that looks at what has changed.
    """
    known: set[Path] = _done(study)
    before, began = len(known), time.monotonic()
    console.print(_header(study, before))

    def left(done: int) -> str:
        """How long the others take if they are like those that ended here."""
        if done in (before, len(study.runs)):
            return ""
        each = (time.monotonic() - began) / (done - before)
        return f", about {minutes(each * (len(study.runs) - done))} min left"

    # Also at once: what ended a run before may have come between a summary and its table.
    shown = finished()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look() -> None:
            nonlocal known, shown
            done = _done(study)
            if done != known:
                shown = finished()
            if console.is_terminal:
                live.update(Group(_running(study, len(done), left(len(done))), shown), refresh=True)
            else:
                for folder in sorted(done - known):
                    console.print(
                        f"{len(done)} of {len(study.runs)} runs finished{left(len(done))}: {folder}"
                    )
            known = done

        yield look


def _done(study: Study[C]) -> set[Path]:
    return {run.folder for run in study.runs if study.is_finished(run)}


def _header(study: Study[C], done: int) -> str:
    """What is about to be run."""
    configs = [planned.config for planned in study.runs]
    names = [
        ", ".join(dict.fromkeys(str(getattr(config, key)) for config in configs))
        for key in ("method", "dataset")
    ]
    finished = f", {done} of them finished" if done else ""
    return f"{len(configs)} runs{finished}: {names[0]}; on {names[1]}; in {study.path}"


def _running(study: Study[C], done: int, left: str) -> Text:
    """How far the runs are, and a line for each that has begun, with the rounds behind it."""
    lines = [f"{done} of {len(study.runs)} runs finished{left}"]
    for planned in study.runs:
        metrics = study.folder(planned).metrics
        if not study.is_finished(planned) and metrics.is_file():
            rounds = metrics.read_bytes().count(b"\n")
            lines.append(f"{planned.folder}: {rounds} rounds")
    return Text("\n".join(lines))
