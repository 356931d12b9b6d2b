"""A single run as a command shows it: what is about to happen, how far it is, what it came to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import typer

from ccfcpp.cli.flags import Flag
from ccfcpp.cli.header import absence, chosen_by_default, protection, setting
from ccfcpp.cli.terminal import (
    print_facts,
    printed_profile,
    progress_console,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
)
from ccfcpp.privacy.trust import trust_rows
from ccfcpp.runs.given import Given
from ccfcpp.runs.pipeline import M, Pipeline

if TYPE_CHECKING:
    from ccfcpp.cli.options import Asked
    from ccfcpp.runs.experiment import AnyExperiment
    from ccfcpp.runs.paths import Summary

E = TypeVar("E", bound="AnyExperiment")
Rows = dict[str, str]


@dataclass(frozen=True)
class Shown(Generic[M, E]):
    """How a command shows its runs.

    Attributes:
        pipeline: What the command runs.
        headline: Key and name of the score that progress shows.
        heading: What is about to be run, before there are images.
        worth_naming: Flags of which a user should know what holds without them.
        found: What holds by default where it follows from the images, by dotted key.
        notes: What else the images lead to, a line each.
        title: The title of the summary.
        rows: The rows of the summary.
    """

    pipeline: Pipeline[M, E]
    headline: tuple[str, str]
    heading: Callable[[M], str]
    worth_naming: Callable[[M], Iterable[Flag]]
    found: Callable[[E], dict[str, object]]
    title: Callable[[Summary], str]
    rows: Callable[[M, Summary], Rows]
    notes: Callable[[M], list[str]] = lambda config: []

    def run(self, asked: Asked, given: Given, profile: bool) -> None:
        """Run what was asked for, and print the summary."""
        pipeline, console = self.pipeline, progress_console()
        with usage_errors():
            opening = pipeline.open(given, asked.out, asked.resume)
        begun = "going on with " if opening.goes_on else ""
        console.print(f"{begun}{self.heading(opening.config)}: {opening.path}")

        from ccfcpp.runs.environment import keep_freed_memory, use_processors

        keep_freed_memory()
        use_processors()
        with usage_errors():
            opening, experiment, folder = pipeline.start(opening)
        lines = [setting(experiment), *protection(experiment), absence(experiment.absent_names)]
        if not opening.goes_on:
            flags = self.worth_naming(opening.config)
            found = self.found(experiment)
            lines.append(chosen_by_default(flags, given.layers, opening.config, found))
            lines += self.notes(opening.config)
        for line in filter(None, lines):
            console.print(line)
        resumption = resume_command(pipeline.command, folder.path)
        with (
            printed_profile() if profile else nullcontext(),
            resumable(resumption, checkpoint=folder.checkpoint) as should_stop,
        ):
            summary = run_to_end(experiment, folder, self.headline, should_stop)
        if asked.json_output:
            typer.echo(json.dumps(summary))
        else:
            rows = self.rows(opening.config, summary)
            print_facts(self.title(summary), rows | trust_rows(summary) | traffic_rows(summary))
