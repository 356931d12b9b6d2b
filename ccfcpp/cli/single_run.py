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
    """Describe the images, the clients and the rounds of a run."""
    data = experiment.data
    labels = f"{len(data.classes)} classes" if data.classes else "no labels"
    return (
        f"{format_count(len(data), data.unit)} of {size_in_words(data.values.shape[1:])}, "
        f"{labels}; "
        f"{format_count(len(experiment.parts), 'client')}; "
        f"{format_count(experiment.algorithm.rounds, 'round')} on {experiment.device}"
    )


def size_in_words(shape: Sequence[int]) -> str:
    """Return the size of images, or of vectors, in words."""
    return f"{shape[1]}x{shape[2]} pixels" if len(shape) == 3 else format_count(shape[0], "column")


def describe_protection(experiment: AnyRun) -> list[str]:
    """Describe the protection beyond keeping images at clients, line by line."""
    lines = [experiment.attackers.header()] if experiment.attackers else []
    if experiment.defender:
        lines.append(f"defence: {experiment.defender.config.rule}")
    return lines + (experiment.protection.header() if experiment.protection else [])


def describe_absent(names: Sequence[str]) -> str:
    """Return which clients are absent for the whole run; empty if none is."""
    if not names:
        return ""
    return f"absent for the whole run: {list_first(names)}"


def chosen_by_default(
    flags: Iterable[Flag], layers: Layers, config: BaseModel, found: Mapping[str, object]
) -> str:
    """Return the defaults of important flags that the user did not set; empty if there are none.

    Values that follow from the images are in ``found``, by dotted key; others in the configuration.
    """
    chosen = {key for tree in layers for key, _ in flatten(tree)}
    values = values_of(config) | dict(found)
    left = [flag for flag in flags if flag.key not in chosen and values.get(flag.key) is not None]
    words = ", ".join(f"{flag.option} {_short(values[flag.key])}" for flag in left)
    return f"by default: {words}" if words else ""


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


E = TypeVar("E", bound="AnyLocalRun")
Rows = dict[str, str]


@dataclass(frozen=True)
class RunDisplay(Generic[M, E]):
    """How a command shows its runs.

    Attributes:
        headline: Key and name of the score that progress shows.
        heading: Returns the line on the run, before there are images.
        worth_naming: Flags whose defaults a user should know.
        found: Defaults that follow from the images, by dotted key.
        notes: Further lines that follow from the images.
        tables: Tables after the summary, by title.
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
        """Run what was asked for, and print the summary."""
        pipeline, console = self.pipeline, terminal.progress_console()
        with terminal.usage_errors():
            opening = pipeline.open(layers, options.out, options.resume)
        # What a user's own images are decides on the system.
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
            found = self.found(experiment)
            lines.append(chosen_by_default(flags, layers, opening.config, found))
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
