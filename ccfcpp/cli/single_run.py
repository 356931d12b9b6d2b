"""The display of a single run: its description, progress and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import typer

from ccfcpp.cli import terminal
from ccfcpp.cli.flags import BY_FOLDER, Flag
from ccfcpp.core.config_layers import Layers, flatten, values_of
from ccfcpp.core.units import format_count, list_first
from ccfcpp.privacy.trust_summary import trust_rows
from ccfcpp.runs.pipeline import M, Pipeline

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ccfcpp.cli.options import RunOptions
    from ccfcpp.runs.paths import Summary
    from ccfcpp.runs.run import AnyLocalRun, AnyRun


def describe_run(experiment: AnyLocalRun) -> str:
    """Describe the samples, clients, rounds and device of a run in a line."""
    data = experiment.data
    labels = f"{len(data.classes)} classes" if data.classes else "no labels"
    return (
        f"{format_count(len(data), data.unit)} of {size_in_words(data.values.shape[1:])}, "
        f"{labels}; "
        f"{format_count(len(experiment.parts), 'client')}; "
        f"{format_count(experiment.algorithm.rounds, 'round')} on {experiment.device}"
    )


def size_in_words(shape: Sequence[int]) -> str:
    """Format the shape of an image (channels first) or a vector, such as ``28x28 pixels``."""
    return f"{shape[1]}x{shape[2]} pixels" if len(shape) == 3 else format_count(shape[0], "column")


def describe_protection(experiment: AnyRun) -> list[str]:
    """Return lines on a run's attackers, defence and privacy protection."""
    lines = [experiment.attackers.header()] if experiment.attackers else []
    if experiment.defender:
        lines.append(f"defence: {experiment.defender.config.rule}")
    return lines + (experiment.protection.header() if experiment.protection else [])


def describe_absent(names: Sequence[str]) -> str:
    """Return a line that names the clients absent for the whole run; "" without any."""
    if not names:
        return ""
    return f"absent for the whole run: {list_first(names)}"


def chosen_by_default(
    flags: Iterable[Flag], layers: Layers, config: BaseModel, derived: Mapping[str, object]
) -> str:
    """Return a line with the values of ``flags`` that the user did not set; "" without any.

    ``layers`` are the user's settings. ``derived`` has values that depend on the images, by dotted
    key; others are in ``config``.
    """
    chosen = {key for tree in layers for key, _ in flatten(tree)}
    values = values_of(config) | dict(derived)
    left = [flag for flag in flags if flag.key not in chosen and values.get(flag.key) is not None]
    words = ", ".join(f"{flag.option} {_short(values[flag.key])}" for flag in left)
    return f"by default: {words}" if words else ""


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


E = TypeVar("E", bound="AnyLocalRun")
Rows = dict[str, str]


@dataclass(frozen=True)
class RunDisplay(Generic[M, E]):
    """Texts and tables by which a command shows a run.

    Attributes:
        pipeline: Pipeline of the command's runs.
        headline: Key and name of the score that progress shows.
        heading: Returns a line on the run, before images are read.
        worth_naming: Returns flags whose values are shown if the user did not set them.
        found: Returns values that depend on the images, by dotted key.
        title: Returns the title of the printed summary.
        rows: Returns the rows of the printed summary.
        notes: Returns further lines on the run, after images are read.
        tables: Returns tables to print after the summary, by title.
    """

    pipeline: Pipeline[M, E]
    headline: tuple[str, str]
    heading: Callable[[M], str]
    worth_naming: Callable[[M], Iterable[Flag]]
    found: Callable[[E], dict[str, object]]
    title: Callable[[Summary], str]
    rows: Callable[[M, Summary], Rows]
    notes: Callable[[M], list[str]] = lambda config: []
    tables: Callable[[Summary], Mapping[str, Sequence[Rows]]] = lambda summary: {}

    def run(self, options: RunOptions, layers: Layers, profile: bool) -> None:
        """Start or resume a run, show its progress, and print its summary."""
        pipeline, console = self.pipeline, terminal.progress_console()
        with terminal.usage_errors():
            opening = pipeline.open(layers, options.out, options.resume)
        # The settings for a user's own images depend on these.
        known = opening.goes_on or not pipeline.guesses(opening.config)
        begun = "going on with " if opening.goes_on else ""
        what = self.heading(opening.config) if known else f"reading {opening.config.dataset}"
        console.print(f"{begun}{what}: {opening.path}")

        from ccfcpp.data.image_files import describe_reading

        terminal.prepare()
        with terminal.usage_errors():
            opening, experiment, folder = pipeline.start(opening)
        if not known:
            console.print(self.heading(opening.config))
        lines = [
            describe_run(experiment),
            *describe_protection(experiment),
            describe_absent(experiment.absent_names),
        ]
        if not opening.goes_on:
            flags = self.worth_naming(opening.config)
            derived = self.found(experiment)
            lines.append(chosen_by_default(flags, layers, opening.config, derived))
            lines += self.notes(opening.config)
        lines += describe_reading(experiment.data)
        values = values_of(opening.config)
        if experiment.data.owners is not None and values["partition.kind"] not in BY_FOLDER:
            lines.append(f"clients of {opening.config.dataset} are not used: see --partition")
        for line in filter(None, lines):
            console.print(line)
        resumption = terminal.resume_command(
            pipeline.command, folder.path, values.get("data.encoder")
        )
        with (
            terminal.printed_profile() if profile else nullcontext(),
            terminal.resumable(resumption, checkpoint=folder.checkpoint) as should_stop,
        ):
            summary = terminal.run_to_end(experiment, folder, self.headline, should_stop)
        if options.json_output:
            typer.echo(json.dumps(summary))
        else:
            rows = self.rows(opening.config, summary)
            terminal.print_facts(
                self.title(summary), rows | trust_rows(summary) | terminal.traffic_rows(summary)
            )
            for title, table in self.tables(summary).items():
                terminal.print_rows(title, table)
            typer.echo(f"as a page: {terminal.report_command(folder.path)}")
