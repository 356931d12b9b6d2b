"""Shared parts of commands: running with a progress bar, stopping, and printing."""

import math
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ccfcpp.clustering.evaluation.summary_text import missing_clusters_warning, scores_caveat
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.progress import report_progress_to, watch_embedding
from ccfcpp.core.units import bytes_in_words, time_in_words, traffic_titles
from ccfcpp.runs.paths import Summary
from ccfcpp.runs.signals import handled_by

if TYPE_CHECKING:
    from ccfcpp.cli.participants import Attendance
    from ccfcpp.core.profiling import Profile
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.run import AnyRun

INTERRUPTED = 130
"""Exit code of a command that was stopped."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise ``UsageError`` for each ``OSError`` in the block, such as an unreadable file."""
    try:
        yield
    except OSError as error:
        # Without a file its text alone says what is wrong, such as that a disk is full.
        named = error.filename is not None
        why = f"{error.filename} cannot be used ({error.strerror})" if named else str(error)
        raise UsageError(why) from error


def progress_console() -> Console:
    """Return the console for progress, on stderr.

    It prints no emojis: rich imports their table with the first line, and a signal handler that
    prints during this import would fail.
    """
    return Console(stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False)


@dataclass
class Stop:
    """State of a user's request to stop a run.

    Attributes:
        asked: Whether it was made; the next signal then stops the run at once.
    """

    asked: bool = False

    def ask(self, now: bool = False) -> None:
        """Make the request from another thread, as Ctrl-C does; ``now`` stops the run at once."""
        if now or not self.asked:
            self.asked = now
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def graceful_interruption(
    announce: Callable[[], None], stop: Stop | None = None
) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after the current round.

    ``announce`` is called then. A second signal raises ``KeyboardInterrupt``.

    Yields:
        A function that returns whether a stop was asked for.
    """
    stop = stop or Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        announce()

    with handled_by(handle):
        yield lambda: stop.asked


@contextmanager
def resumable(
    resumption: str,
    console: Console | None = None,
    checkpoint: Path | None = None,
    stop: Stop | None = None,
) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C stop the work after a round, and say how to resume it.

    Args:
        resumption: Command that resumes the work.
        console: Console for messages, such as that of a live display.
        checkpoint: File from which a single run is resumed; None for several runs.
        stop: Request by which another thread can stop the work, too.

    Yields:
        A function that returns whether a stop was asked for.

    Raises:
        typer.Exit: It was stopped.
    """
    console = console or progress_console()

    def announce() -> None:
        console.print(
            "stopping after this round; press Ctrl-C again to stop at once, and lose the round"
        )

    try:
        with graceful_interruption(announce, stop) as should_stop:
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


@contextmanager
def interruptible(line: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block at once; for blocks that lose no results.

    Args:
        line: The message to print then.

    Raises:
        typer.Exit: It was ended by a signal.
    """
    with handled_by(signal.default_int_handler):
        try:
            yield
        except KeyboardInterrupt:
            progress_console().print(line)
            raise typer.Exit(INTERRUPTED) from None


def run_to_end(
    experiment: "AnyRun",
    folder: "RunFolder",
    headline: tuple[str, str],
    should_stop: Callable[[], bool],
    title: str | None = None,
    attendance: "Attendance | None" = None,
) -> Summary:
    """Run an experiment to its end, show its progress on stderr, and return its summary.

    The progress includes the score ``headline`` (key and name) and, on a terminal, the status of
    clients on other machines (``attendance``). The title is printed first.

    Raises:
        StoppedError: It was stopped.
    """
    from ccfcpp.cli.progress import RunProgress, shortening_hint

    console = progress_console()
    if title is not None:
        console.print(title)
    samples = sum(member.samples for member in experiment.members)
    hint = shortening_hint(experiment, folder.checkpoint.exists())
    names = {member.id: member.name for member in experiment.members}
    rounds = experiment.algorithm.rounds
    exchanges = experiment.planned_exchanges  # later: planning imports what only results need
    progress = RunProgress(console, rounds, headline, samples, attendance, hint, names, exchanges)
    if attendance is not None:
        attendance.progress = progress
    with progress, report_progress_to(progress.pace):
        summary = experiment.run(folder, progress, should_stop)
    if line := missing_clusters_warning(summary):
        console.print(line)
    return summary


def resume_command(command: str, path: Path, encoder: object = None) -> str:
    """Return the command to resume a run; it gives ``--encoder`` if the encoder is a program."""
    line = f"ccfcpp {command} --out {shlex.quote(str(path))} --resume"
    program = isinstance(encoder, str) and EncoderName.parse(encoder).is_program
    return f"{line} --encoder {shlex.quote(str(encoder))}" if program else line


def report_command(path: Path) -> str:
    """Return the command that makes the HTML page of a run or study (a set of runs)."""
    return f"ccfcpp report {shlex.quote(str(path))}"


@contextmanager
def printed_profile() -> Iterator[None]:
    """Print the seconds that each profiled section of the block took, even if it is interrupted."""
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
    """Print a table of names and values."""
    table = Table(show_header=False, title=Text(title))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console().print(table)


def _column(name: str) -> Column:
    """Return a column whose name, such as a dotted key, is wrapped rather than cut."""
    return Column(Text(re.sub(r"(?<=[a-z])[._](?=[a-z])", " ", name)), overflow="fold")


def make_table(title: str, rows: Sequence[Mapping[str, str | Text]]) -> Table:
    """Return a table with a column for each key of the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*map(_column, names), title=Text(title))
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table of rows."""
    Console().print(make_table(title, rows))


def score_rows(summary: Summary) -> dict[str, str]:
    """Format the scores of a summary, by their titles; a score that is None becomes ""."""
    scores = {"NMI": "nmi", "Kappa": "kappa", "accuracy": "accuracy", "ARI": "ari"}
    return {
        title: "" if summary[key] is None else f"{summary[key]:.4f}{scores_caveat(summary)}"
        for title, key in scores.items()
        if key in summary
    }


def prepare() -> None:
    """Set up memory and threads for training, and have the progress of encoders shown."""
    from ccfcpp.runs.environment import keep_freed_memory, use_processors

    keep_freed_memory()
    use_processors()
    watch_embedding(EmbeddingProgress(progress_console()))


_SOON = 5.0
"""Progress of an encoder that takes fewer seconds is not shown."""


class EmbeddingProgress:
    """Display of an encoder's progress and the time left.

    A terminal shows one line that is rewritten; elsewhere a line a minute is printed. Work of a few
    seconds is not shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = -math.inf

    def __call__(self, encoder: str, done: int, of: int, seconds: float) -> None:
        """Show, now and then, that ``done`` of ``of`` samples were embedded in ``seconds``."""
        whole, live = seconds * of / done, self._console.is_terminal
        if whole < _SOON or (done < of and seconds - self._last_line < (1 if live else 60)):
            return
        self._last_line = seconds if done < of else -math.inf
        left = f"{time_in_words(whole - seconds)} left" if done < of else "kept for other runs"
        line = f"embedding by {encoder}: {done:,} of {of:,}, {left}"
        text = line.ljust(79) if live else line
        self._console.print(text, end="\r" if live and done < of else "\n")


def traffic_rows(summary: Summary) -> dict[str, str]:
    """Format refused updates, traffic, time and folder for the end of a printed summary."""
    up, down = traffic_titles(deployed=summary.get("deployed", False))
    return {
        "refused": f"{summary['refused_updates']} updates",
        up: bytes_in_words(summary["bytes_up"]),
        down: bytes_in_words(summary["bytes_down"]),
        "time": f"{summary['seconds']:.1f} s on {summary['device']}",
        "folder": summary["out"],
    }
