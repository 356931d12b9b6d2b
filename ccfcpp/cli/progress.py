"""Progress of a run, or of the runs of a study, on stderr."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ccfcpp.core.config_layers import C
from ccfcpp.core.progress import RoundProgress
from ccfcpp.core.torchrun import process_count
from ccfcpp.core.units import format_count, list_names
from ccfcpp.deployment.link.server_status import MOST_SECONDS, ServerStatus
from ccfcpp.engine.federation import RoundReport
from ccfcpp.studies.study import Study

if TYPE_CHECKING:
    from ccfcpp.runs.run import AnyRun

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_TO_TELL = 3.0
"""Seconds of a first round after which the time of the whole run is estimated."""
_MOST_REMARKS = 50
_LONG = 20 * 60.0
"""Estimated seconds above which a hint says how to shorten the run."""
_FEW_IMAGES, _SMALL_SIDE = 2000, 32
"""Numbers of images, and of pixels a side, with which a run is short."""


class _Bar(Progress):
    below: RenderableType | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below is not None:
            yield self.below


@dataclass(eq=False)
class RunProgress:
    """Display of a run's progress: round, loss, a score and the time left.

    A terminal shows a live bar; elsewhere a line is printed every few seconds.

    Attributes:
        headline: Key and name of the score that is shown.
        samples: Images of all clients together.
        below: Content below the bar on a terminal.
        hint: A hint for a long run.
        names: Names of the clients, by their numbers.
        exchanges: Returns the number of exchanges of each round, from which the time left is
            estimated if progress within rounds is not measured by images.
        first_step: Time at which a round's first step ended, and the share of the round done then.
        remarks: The last lines about clients that were absent or refused.
    """

    console: Console
    rounds: int
    headline: tuple[str, str]
    samples: int = 0
    below: RenderableType | None = None
    hint: str = ""
    names: Mapping[int, str] = field(default_factory=dict)
    exchanges: Callable[[], Sequence[int]] = tuple
    first_step: tuple[float, float] | None = None
    estimated: bool = False
    score: str = ""
    last_line: float = -_SECONDS_BETWEEN_LINES

    def __post_init__(self) -> None:
        self.bar = _Bar(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.bar.below = self.below
        self.task = self.bar.add_task("rounds", total=self.rounds, figures="")
        # Of several processes each trains its share of the images, and the first shows progress.
        self.pace = RoundProgress(-(-self.samples // process_count()), self._update)
        self.ends: list[float] = []
        self.remarks: deque[str] = deque(maxlen=_MOST_REMARKS)
        self._one: float | None = None
        self._by_images = False

    def __enter__(self) -> Self:
        self.bar.start()
        self.ends = [time.monotonic()]
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, report: RoundReport, scores: dict[str, float]) -> None:
        """Show a finished round, and the clients that were absent or refused."""
        for what, clients in (("absent", report.absent), ("refused", report.refused)):
            for text, those in _by_reason(clients).items():
                who = list_names([self.names.get(number, f"client {number}") for number in those])
                self._remark(f"round {report.round + 1}: {who} {what}: {text}")
        if not report.clients:
            self._remark(f"round {report.round + 1}: no client took part")
        key, name = self.headline
        if key in scores:
            self.score = f"{name} {scores[key]:.4f}"
        loss = f"loss {report.figures['loss']:+.4f}" if "loss" in report.figures else ""
        self.ends.append(time.monotonic())
        last = report.round + 1 == self.rounds
        if not self.estimated and not last:
            self._estimate(self.ends[-1] - self.ends[0], report.round, "the first one's time")
        spent = f"ε {report.figures['epsilon']:.3g}" if "epsilon" in report.figures else ""
        figures = " ".join(f"{loss}  {self.score} {spent}  {self._time_left(report)}".split())
        self.bar.update(self.task, completed=report.round + 1, figures=figures)
        due = self.ends[-1] - self.last_line >= _SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (due or last):
            self.last_line = self.ends[-1]
            self.console.print(f"round {report.round + 1}/{self.rounds} {figures}")

    @property
    def server_status(self) -> ServerStatus:
        """The run's progress, as a server sends it to its clients."""
        number, share = self.pace.round, self.pace.share
        if number >= self.rounds or (number + 1 == self.rounds and share >= 1):
            return ServerStatus(phase="ending", rounds=self.rounds)
        there = self._work(number, self.rounds) - share * self._work(number, number + 1)
        known = self._by_images == self.pace.counts_images
        # A round that waited for clients for days could make it more than is allowed.
        left = min(self._one * there, MOST_SECONDS) if known and self._one is not None else None
        return ServerStatus(phase="training", round=number, rounds=self.rounds, left=left)

    def _remark(self, line: str) -> None:
        self.remarks.append(line)
        self.console.print(line)

    def _update(self) -> None:
        pace = self.pace
        self.bar.update(self.task, completed=pace.round + pace.share)
        if self.estimated or len(self.ends) != 1:
            return
        # The first step also waits for set-up that is done once. Images, once they are counted, are
        # a smaller share than the exchanges before them.
        now = time.monotonic()
        if self.first_step is None or pace.share < self.first_step[1]:
            self.first_step = now, pace.share
        began, before = self.first_step
        if now - began >= _SECONDS_TO_TELL and before < pace.share < 1:
            one = (now - began) / (pace.share - before)
            self._estimate(one, pace.round, "the first steps' time")

    def _estimate(self, one: float, number: int, source: str) -> None:
        """Print the time left for round ``number`` and later ones, if it takes ``one`` seconds."""
        self.estimated = True
        left = self._seconds_per_unit(one, number, number + 1) * self._work(number, self.rounds)
        rounds = format_count(self.rounds - number, "round")
        self.console.print(f"about {minutes(left)} min for {rounds}, by {source}")
        if left > _LONG and self.hint:
            self.console.print(self.hint)

    def _seconds_per_unit(self, seconds: float, first: int, end: int) -> float:
        """Compute and store the time per round or exchange, as ``_work`` counts.

        Rounds ``first`` to ``end`` − 1 took ``seconds``.
        """
        self._one = seconds / self._work(first, end)
        self._by_images = self.pace.counts_images
        return self._one

    def _work(self, first: int, end: int) -> int:
        """Count the rounds ``first`` to ``end`` − 1, or their exchanges if these are known."""
        if self.pace.counts_images or len(self._planned) < end:
            return end - first
        return max(1, sum(self._planned[first:end]))

    @cached_property
    def _planned(self) -> Sequence[int]:
        return self.exchanges()

    def _time_left(self, report: RoundReport) -> str:
        recent, done = self.ends[-10:], report.round + 1
        one = self._seconds_per_unit(recent[-1] - recent[0], done - len(recent) + 1, done)
        left = 0 if done == self.rounds else one * self._work(done, self.rounds)
        return f"{minutes(left)} left"


def shortening_hint(experiment: "AnyRun", begun: bool = False) -> str:
    """Return a hint on how to shorten a long run, and what happens if it is stopped.

    The settings of a run that has ``begun`` cannot change any more.
    """
    ways = [] if begun else _ways_to_shorten(experiment)
    mend = f"shorter: {' or '.join(ways)}; " if ways else ""
    return f"{mend}Ctrl-C keeps what is done, and --resume goes on"


def _ways_to_shorten(experiment: "AnyRun") -> list[str]:
    ways = []
    from ccfcpp.runs.run import LocalRun

    if isinstance(experiment, LocalRun):  # else clients are on other machines
        if sum(map(len, experiment.parts)) > _FEW_IMAGES:
            key = experiment.evaluator.images_key
            ways.append(f"part of the images (--set {key}={_FEW_IMAGES})")
        if min(experiment.data.values.shape[2:], default=0) > _SMALL_SIDE:
            ways.append(f"smaller ones (--set data.image_size={_SMALL_SIDE})")
    if experiment.algorithm.rounds > 1:
        ways.append("fewer rounds")
    return ways


def minutes(seconds: float) -> str:
    """Format seconds as minutes and seconds, such as ``2:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _by_reason(clients: Mapping[int, list[str]]) -> dict[str, list[int]]:
    by_reason: dict[str, list[int]] = {}
    for client, reasons in clients.items():
        by_reason.setdefault("; ".join(reasons), []).append(client)
    return by_reason


@contextmanager
def watch_runs(
    study: Study[C],
    console: Console,
    finished: Callable[[], RenderableType] = lambda: "",
    jobs: int = 1,
) -> Iterator[Callable[[], None]]:
    """Show the progress of a study's runs: live on a terminal, or else by a line for each run.

    Args:
        study: The study, a set of planned runs.
        console: Console for the display.
        finished: Returns what a terminal shows below; called at first, and after each run.
        jobs: Number of runs at once, to estimate the time left.

    Yields:
        A function that updates the display.
    """
    known: set[Path] = _finished_folders(study)
    console.print(_header(study, len(known)))

    # Also at first: an earlier session may have ended between a run's summary and the table.
    shown, left = finished(), _estimate_left(study, jobs)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look() -> None:
            nonlocal known, shown, left
            done = _finished_folders(study)
            if done != known:
                shown, left = finished(), _estimate_left(study, jobs)
            if console.is_terminal:
                live.update(Group(_list_running(study, len(done), left), shown), refresh=True)
            else:
                for folder in sorted(done - known):
                    console.print(f"{len(done)} of {len(study.runs)} runs finished{left}: {folder}")
            known = done

        yield look


def _estimate_left(study: Study[C], jobs: int) -> str:
    """Format the time left, estimated from runs of the same method; "" if unknown."""
    took: dict[str, list[float]] = {}
    left: list[str] = []
    for planned in study.runs:
        method = planned.config.model_dump()["method"]
        if study.is_finished(planned):
            seconds = study.folder(planned).read_summary().get("seconds", 0.0)
            took.setdefault(method, []).append(seconds)
        else:
            left.append(method)
    known = [statistics.fmean(took[method]) for method in left if method in took]
    if not known:
        return ""
    others = list(dict.fromkeys(method for method in left if method not in took))
    more = f" and an unknown time for {', '.join(others)}" if others else ""
    return f", about {minutes(sum(known) / min(jobs, len(left)))} min{more} left"


def _finished_folders(study: Study[C]) -> set[Path]:
    return {run.folder for run in study.runs if study.is_finished(run)}


def _header(study: Study[C], done: int) -> str:
    configs = [planned.config for planned in study.runs]
    names = [
        ", ".join(dict.fromkeys(str(getattr(config, key)) for config in configs))
        for key in ("method", "dataset")
    ]
    finished = f", {done} of them finished" if done else ""
    return f"{len(configs)} runs{finished}: {names[0]}; on {names[1]}; in {study.path}"


def _list_running(study: Study[C], done: int, left: str) -> Text:
    """Return a line for the study, and one for each unfinished run with its number of rounds."""
    lines = [f"{done} of {len(study.runs)} runs finished{left}"]
    for planned in study.runs:
        metrics = study.folder(planned).metrics
        if not study.is_finished(planned) and metrics.is_file():
            rounds = metrics.read_bytes().count(b"\n")
            lines.append(f"{planned.folder}: {rounds} rounds")
    return Text("\n".join(lines))
