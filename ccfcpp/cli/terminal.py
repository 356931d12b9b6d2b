"""What commands share: running an experiment under a progress bar, and printing."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ccfcpp.cli.interruption import graceful_interruption
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.pace import followed
from ccfcpp.core.units import bytes_in_words

if TYPE_CHECKING:
    from ccfcpp.core.profiling import Profile
    from ccfcpp.runs.experiment import AnyExperiment
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.paths import Summary

INTERRUPTED = 130
"""Exit code of a command that was stopped."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Before a run, a file that cannot be used is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be used ({error.strerror})") from error


def progress_console() -> Console:
    """Where progress goes.

    A signal may come in the middle of a line and print one itself: emojis, whose table is imported
    with the first line, would then be half there.
    """
    return Console(stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False)


@contextmanager
def resumable(
    resumption: str, console: Console | None = None, checkpoint: Path | None = None
) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C stops what is done here after a round; then say how to go on.

    Args:
        resumption: The command.
        console: Where to; that of a live display where there is one.
        checkpoint: What a single run goes on from; None for several runs.

    Yields:
        A function that says whether a stop was asked for.

    Raises:
        typer.Exit: It was stopped.
    """
    console = console or progress_console()

    def announce() -> None:
        console.print(
            "stopping after this round; press Ctrl-C again to stop at once, and lose the round"
        )

    try:
        with graceful_interruption(announce) as should_stop:
            yield should_stop
    except StoppedError:
        console.print(f"stopped; go on with: {resumption}")
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        if checkpoint is not None and not checkpoint.exists():
            kept = "nothing of it is kept, since no round has ended; begin again with"
        else:
            kept = "what came after the last checkpoint is lost; go on with"
        console.print(f"stopped at once: {kept}: {resumption}")
        raise typer.Exit(INTERRUPTED) from None


def run_to_end(
    experiment: "AnyExperiment",
    folder: "RunFolder",
    headline: tuple[str, str],
    should_stop: Callable[[], bool],
    title: str | None = None,
    below: RenderableType | None = None,
) -> "Summary":
    """Run an experiment with progress on stderr.

    Args:
        experiment: What to run.
        folder: Its folder.
        headline: Key and name of the score that progress shows.
        should_stop: Asked after each round.
        title: Printed first.
        below: What a terminal shows below the bar.

    Raises:
        StoppedError: It was stopped.
    """
    from ccfcpp.cli.progress import RunProgress, shorter

    console = progress_console()
    if title is not None:
        console.print(title)
    samples = sum(member.samples for member in experiment.members)
    hint = shorter(experiment, folder.checkpoint.exists())
    progress = RunProgress(console, experiment.algorithm.rounds, headline, samples, below, hint)
    with progress, followed(progress.pace):
        return experiment.run(folder, progress, should_stop)


def resume_command(command: str, path: Path) -> str:
    """What the user types to go on."""
    return f"ccfcpp {command} --out {shlex.quote(str(path))} --resume"


def report_command(path: Path) -> str:
    """What the user types to see runs as a page."""
    return f"ccfcpp report {shlex.quote(str(path))}"


@contextmanager
def printed_profile() -> Iterator[None]:
    """Measure a run and say where its time went, also where it is interrupted."""
    from ccfcpp.core.profiling import profiling

    measured = None
    try:
        with profiling() as measured:
            yield
    finally:
        if measured is not None:
            _print_profile(measured)


def _print_profile(profile: "Profile") -> None:
    total = sum(profile.seconds.values())
    table = Table(
        "section", *(Column(name, justify="right") for name in ("seconds", "share", "calls"))
    )
    for name, seconds in sorted(profile.seconds.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{seconds:.2f}", f"{seconds / total:.1%}", f"{profile.calls[name]:,}")
    Console(stderr=True).print(table)


def print_facts(title: str, rows: Mapping[str, str]) -> None:
    """A table of names and values."""
    table = Table(show_header=False, title=Text(title))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console().print(table)


def column(name: str) -> Column:
    """A column whose name, such as a dotted key, is broken into lines rather than cut."""
    return Column(Text(re.sub(r"(?<=[a-z])[._](?=[a-z])", " ", name)), overflow="fold")


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """A table of rows, whose columns are all their keys."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*map(column, names), title=Text(title))
    for row in rows:
        table.add_row(*(Text(row.get(name, "")) for name in names))
    Console().print(table)


def traffic_rows(summary: "Summary") -> dict[str, str]:
    """The rows that every summary ends with."""
    return {
        "refused": f"{summary['refused_updates']} updates",
        "sent up": bytes_in_words(summary["bytes_up"]),
        "sent down": bytes_in_words(summary["bytes_down"]),
        "time": f"{summary['seconds']:.1f} s on {summary['device']}",
        "folder": summary["out"],
    }
