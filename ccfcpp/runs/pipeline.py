"""From settings to results: what stands behind a command, its function and its estimator.

A run is opened (its settings are checked, its folder is chosen), fitted to its images, run, and
ends with a summary. To open a run imports no network library: a command can say at once what it is
about to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ccfcpp.core.config import MethodConfig, Tree
from ccfcpp.core.config_layers import resolve, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.given import Given, refuse_idle
from ccfcpp.runs.opening import Opening, new_path, required_out
from ccfcpp.runs.paths import RunPaths

if TYPE_CHECKING:
    from ccfcpp.data import ImageData
    from ccfcpp.runs.experiment import AnyExperiment
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.paths import Summary

M = TypeVar("M", bound=MethodConfig)
E = TypeVar("E", bound="AnyExperiment")


@dataclass(frozen=True)
class Pipeline(Generic[M, E]):
    """One kind of run.

    Attributes:
        command: Its command, and the folder of the data sets' presets.
        kind: The kind of its configurations.
        make: Makes the experiment of a configuration, on the images given or on those that the
            configuration names.
        label: What the folder of a new run is called after, beside its data set.
        rounds: The dotted key of the number of rounds under a configuration, empty where it is
            fixed; and that of the steps in a round, where the first counts steps, else empty.
        suited: Reads a user's own images and gives settings that suit them; None for a data set
            that has a preset.
    """

    command: str
    kind: type[M]
    make: Callable[[M, ImageData | None], E]
    label: Callable[[M], str]
    rounds: Callable[[M], tuple[str, str]]
    suited: Callable[[M], tuple[ImageData, Tree] | None] = lambda config: None

    def resolved(self, given: Given, suited: Tree | None = None) -> M:
        """The configuration that a user's settings lead to.

        Args:
            given: What the user gave.
            suited: Settings under those, which suit the images.

        Raises:
            UsageError: A setting is unknown, out of its range, or without effect.
        """
        config = resolve(self.kind, self.command, suited or {}, *given.layers)
        if given.rounds is not None:
            key, value = self._rounds(given, config)
            try:
                layers = given.under(key, value).layers
                config = resolve(self.kind, self.command, suited or {}, *layers)
            except UsageError as error:
                text = str(error).replace(f"{key} = {value}", f"rounds = {given.rounds}")
                raise UsageError(text) from None
        refuse_idle(given, [config], self.command)
        return config

    def open(
        self, given: Given, out: Path | None = None, *, label: str | None = None
    ) -> Opening[M]:
        """A new run.

        Args:
            given: What the user gave.
            out: Its folder; a new one under ``runs/`` where it is None.
            label: What the folder is called after, in place of the data set.

        Raises:
            UsageError: A setting does not fit, or the folder holds something.
        """
        config = self.resolved(given)
        path = out or new_path(self.label(config), label or config.dataset)
        return Opening.new(path, config, given)

    def reopen(self, given: Given, out: Path | None, *, deployed: bool = False) -> Opening[M]:
        """A run that goes on.

        Args:
            given: What the user gave; only where the run takes place may differ from before.
            out: Its folder.
            deployed: Whether its images may be with clients on other machines.

        Raises:
            UsageError: There is no such run, or it was started with other values.
        """
        path = required_out(out)
        if given.rounds is not None:
            saved = RunPaths.reopen(path).saved_config(self.kind)
            given = given.under(*self._rounds(given, saved))
        return Opening.going_on(path, self.kind, *given.layers, deployed=deployed)

    def fitted(self, opening: Opening[M], suited: Tree) -> Opening[M]:
        """A run with settings that suit its images, under those that the user gave."""
        return replace(opening, config=self.resolved(opening.given, suited))

    def start(self, opening: Opening[M]) -> tuple[Opening[M], E, RunFolder]:
        """The run fitted to its images, its experiment and its folder.

        Raises:
            UsageError: The images cannot be read, or do not fit the settings.
        """
        found = None if opening.goes_on else self.suited(opening.config)
        images = None
        if found is not None:
            images, suited = found
            opening = self.fitted(opening, suited)
        experiment, folder = opening.open(lambda config: self.make(config, images))
        return opening, experiment, folder

    def run(
        self, settings: Mapping[str, object] | None, out: str | Path | None, resume: bool
    ) -> Summary:
        """Run everything, and give the summary."""
        given, place = Given.of(settings), None if out is None else Path(out)
        opening = self.reopen(given, place) if resume else self.open(given, place)
        _, experiment, folder = self.start(opening)
        return experiment.run(folder)

    def _rounds(self, given: Given, config: M) -> tuple[str, object]:
        """The method's key for the number of rounds, and the value that the key gets."""
        key, steps = self.rounds(config)
        if not key:
            raise UsageError(
                f"rounds = {given.rounds} has no effect on {config.method}, whose number of rounds "
                "is fixed: leave it out"
            )
        count = str(given.rounds)
        if not steps or not count.isdecimal():
            return key, count
        return key, int(count) * values_of(config)[steps]


AnyPipeline = Pipeline[Any, Any]
"""A pipeline of whatever kind of run."""
