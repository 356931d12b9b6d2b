"""The display of a single run: its description, progress and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import typer
from pydantic import BaseModel

from ccfcpp.cli import terminal
from ccfcpp.cli.flags import BY_FOLDER, Flag
from ccfcpp.cli.options import RunOptions
from ccfcpp.core.config_layers import C, Layers, flatten, values_of
from ccfcpp.core.errors import in_file
from ccfcpp.core.units import format_count, list_first
from ccfcpp.privacy.trust_summary import trust_rows
from ccfcpp.runs.paths import Summary
from ccfcpp.runs.pipeline import Pipeline, R

if TYPE_CHECKING:
    from ccfcpp.runs.run import AnyLocalRun, AnyRun

Rows = dict[str, str]


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
    words = ", ".join(f"{flag.option} {in_file(values[flag.key])}" for flag in left)
    return f"by default: {words}" if words else ""


@dataclass(frozen=True)
class RunDisplay(Generic[C, R]):
    """Texts and tables by which a command shows a run.

    Attributes:
        pipeline: Pipeline of the command's runs.
        headline: Key and name of the score that progress shows.
        system: Returns the title of the run's method.
        details: Returns what the run's heading says after its method and data set.
        worth_naming: Returns flags whose values are shown if the user did not set them.
        found: Returns values that depend on the images, by dotted key.
        rows: Returns the rows of the printed summary.
        notes: Returns further lines on the run, after images are read.
        tables: Returns tables to print after the summary, by title.
    """

    pipeline: Pipeline[C, R]
    headline: tuple[str, str]
    system: Callable[[C], str]
    details: Callable[[C], str]
    worth_naming: Callable[[C], Iterable[Flag]]
    found: Callable[[R], dict[str, object]]
    rows: Callable[[C, Summary], Rows]
    notes: Callable[[C], list[str]] = lambda config: []
    tables: Callable[[Summary], Mapping[str, Sequence[Rows]]] = lambda summary: {}

    def _heading(self, config: C) -> str:
        return f"{self.system(config)} on {config.dataset}, {self.details(config)}"

    def run(self, options: RunOptions, layers: Layers, profile: bool) -> None:
        """Start or resume a run, show its progress, and print its summary."""
        pipeline, console = self.pipeline, terminal.progress_console()
        with terminal.usage_errors():
            opening = pipeline.open(layers, options.out, options.resume)
        # The settings for a user's own images depend on these.
        known = opening.goes_on or not pipeline.guesses(opening.config)
        begun = "going on with " if opening.goes_on else ""
        what = self._heading(opening.config) if known else f"reading {opening.config.dataset}"
        console.print(f"{begun}{what}: {opening.path}")

        from ccfcpp.data.image_files import describe_reading

        terminal.prepare()
        with terminal.usage_errors():
            opening, experiment, folder = pipeline.start(opening)
        if not known:
            console.print(self._heading(opening.config))
        lines = [describe_run(experiment), *describe_protection(experiment)]
        if experiment.absent_names:
            lines.append(f"absent for the whole run: {list_first(experiment.absent_names)}")
        if not opening.goes_on:
            flags, derived = self.worth_naming(opening.config), self.found(experiment)
            lines.append(chosen_by_default(flags, layers, opening.config, derived))
            lines += self.notes(opening.config)
        lines += describe_reading(experiment.data)
        values = values_of(opening.config)
        if experiment.data.owners is not None and values["partition.kind"] not in BY_FOLDER:
            lines.append(f"clients of {opening.config.dataset} are not used: see --partition")
        for line in filter(None, lines):
            console.print(line)
        encoder = values.get("data.encoder")
        resumption = terminal.resume_command(pipeline.command, folder.path, encoder)
        with (
            terminal.printed_profile() if profile else nullcontext(),
            terminal.resumable(resumption, checkpoint=folder.checkpoint) as should_stop,
        ):
            summary = terminal.run_to_end(experiment, folder, self.headline, should_stop)
        if options.json_output:
            typer.echo(json.dumps(summary))
        else:
            title = f"{self.system(opening.config)} on {summary['dataset']}"
            rows = self.rows(opening.config, summary)
            rows = rows | trust_rows(summary) | terminal.traffic_rows(summary)
            terminal.print_facts(title, rows)
            for title, table in self.tables(summary).items():
                terminal.print_rows(title, table)
            typer.echo(f"as a page: {terminal.report_command(folder.path)}")
