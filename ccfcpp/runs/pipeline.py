"""The steps from settings to results, shared by a command, its Python function and its estimator.

A run is opened (its settings are checked, its folder is chosen), fitted to its images, run, and
ends with a summary. Opening a run imports no network library, so that a command can show its
settings at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import C, Layers, resolve, stack, unflatten, validate, values_of
from ccfcpp.core.encoders import refuse_program
from ccfcpp.core.unused_settings import refuse_unused
from ccfcpp.runs.paths import RunPaths, Summary, new_path, required_out
from ccfcpp.runs.tracking import check_tracker

if TYPE_CHECKING:
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.run import AnyLocalRun, AnyRun

R = TypeVar("R", bound="AnyLocalRun")
AnyR = TypeVar("AnyR", bound="AnyRun")


@dataclass(frozen=True)
class Opening(Generic[C]):
    """A run to be started or resumed, whose settings are checked as far as possible without images.

    Attributes:
        path: Folder of the run.
        config: Configuration of the run.
        goes_on: Whether the run is resumed.
        layers: The user's settings, nested; later mappings override earlier ones.
    """

    path: Path
    config: C
    goes_on: bool = False
    layers: Layers = ()

    def open(self, make: Callable[[C], AnyR]) -> tuple[AnyR, RunFolder]:
        """Make the run by ``make``, which may still refuse it; create or reopen its folder."""
        from ccfcpp.runs.folder import RunFolder

        run = make(self.config)
        if self.goes_on:
            return run, RunFolder(self.path)
        return run, RunFolder.create(self.path, self.config)


@dataclass(frozen=True)
class Pipeline(Generic[C, R]):
    """The steps from settings to results of one kind of run: clustering or classification.

    Attributes:
        command: Name of the command, and of the folder with the data sets' presets.
        kind: Class of the configurations.
        make: Makes the run of a configuration, on the given images; or, if they are None, on those
            that the configuration names.
        label: Returns the part of a new folder's name that tells the run's method.
        suited: Reads a user's own images and chooses settings that suit them; None for a data set
            with a preset.
        guesses: Returns the settings that may suit a user's own images, before they are read.
    """

    command: str
    kind: type[C]
    make: Callable[[C, Any], R]
    label: Callable[[C], str]
    suited: Callable[[C], tuple[Any, Tree] | None] = lambda config: None
    guesses: Callable[[C], Sequence[Tree]] = lambda config: ()

    def resolve_settings(self, layers: Layers, suited: Tree | None = None) -> C:
        """Return the configuration of a user's settings, merged over presets and ``suited``.

        Args:
            layers: The user's settings, nested; later mappings override earlier ones.
            suited: Settings chosen for the user's images; None if these are not read yet.

        Raises:
            UsageError: A setting is unknown, out of its range, or without effect.
        """
        config = resolve(self.kind, self.command, suited or {}, *layers)
        # Which settings have an effect may depend on images: with these it is checked again.
        possible = [config] if suited is not None else self._possible_settings(config, layers)
        refuse_unused(possible, self.command, layers)
        return config

    def _possible_settings(self, config: C, layers: Layers) -> list[C]:
        """Return ``config``, and those that may result once the user's own images are read."""
        guesses = (resolve(self.kind, self.command, each, *layers) for each in self.guesses(config))
        return [config, *guesses]

    def open(
        self, layers: Layers, out: Path | None, resume: bool = False, *, deployed: bool = False
    ) -> Opening[C]:
        """Open a new run, or resume one with the values with which it was started.

        Args:
            layers: The user's settings.
            out: Folder of the run; by default a new one under ``runs/``.
            resume: Whether the run is resumed.
            deployed: Whether the images are held by clients on other machines.

        Raises:
            UsageError: A setting does not fit, the folder of a new run is not empty, or there
                is no run to resume.
        """
        if resume:
            path = required_out(out)
            config = self._saved_settings(layers, RunPaths.reopen(path), deployed)
        else:
            config = self.resolve_settings(layers)
            dataset = "deployed" if deployed else config.dataset
            if out is None:
                label = self.label(config) if deployed else self._label(config, layers)
                out = new_path(label, dataset)
            path = out
            RunPaths(path).refuse_if_taken()
        check_tracker(config.track)
        return Opening(path, config, resume, layers)

    def _label(self, config: C, layers: Layers) -> str:
        """Return the label for a new folder's name; the command's name if it depends on images."""
        labels = set(map(self.label, self._possible_settings(config, layers)))
        return labels.pop() if len(labels) == 1 else self.command

    def _saved_settings(self, layers: Layers, paths: RunPaths, deployed: bool) -> C:
        if not deployed:
            paths.refuse_deployed()
        saved = paths.saved_config(self.kind)
        if not deployed:
            named = [layer.get("data", {}).get("encoder") for layer in layers]
            refuse_program(values_of(saved).get("data.encoder"), named)
        config = validate(self.kind, stack(self.kind, saved.model_dump(mode="json"), *layers))
        paths.refuse_other_config(config)
        refuse_unused([config], self.command, layers)
        return config

    def with_suited_settings(self, opening: Opening[C], suited: Tree) -> Opening[C]:
        """Add ``suited`` settings to a run; those that the user gave override them."""
        return replace(opening, config=self.resolve_settings(opening.layers, suited))

    def start(self, opening: Opening[C]) -> tuple[Opening[C], R, RunFolder]:
        """Choose settings that suit a user's own images, and make the run and its folder.

        Raises:
            UsageError: The images cannot be read, or do not fit the settings.
        """
        images = None
        if not opening.goes_on and (choice := self.suited(opening.config)) is not None:
            images, suited = choice
            opening = self.with_suited_settings(opening, suited)
        run, folder = opening.open(lambda config: self.make(config, images))
        return opening, run, folder

    def run(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        resume: bool = False,
    ) -> Summary:
        """Run an algorithm to its end, as the command does, and write the run's folder.

        Args:
            settings: Values over the data set's preset, nested or by dotted key, such as
                ``{"dataset": "mnist", "method": "ccfc", "partition.p": 0.75}`` to cluster, or
                ``{"dataset": "cifar10", "method": "moon", "partition.alpha": 0.05}`` to classify.
            out: Folder of the run; a new one under ``runs/`` if it is None.
            resume: Whether to resume the run in ``out``.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            UsageError: A key is unknown, a value does not fit, or the folder is taken.

        Example:
            >>> import tempfile
            >>> import ccfcpp
            >>> settings = {"dataset": "digits", "method": "k-fed", "data.images": 100}
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     summary = ccfcpp.run(settings, out=folder)
            >>> summary["method"], summary["clusters"]
            ('k-fed', 10)
        """
        from ccfcpp.engine.distributed import run_in_first
        from ccfcpp.runs.run import make_follower

        def lead() -> Summary:
            place = None if out is None else Path(out)
            _, run, folder = self.start(self.open([unflatten(settings or {})], place, resume))
            return run.run(folder)

        return run_in_first(lead, make_follower(self.remake))

    def remake(self, run: Tree) -> R:
        """Make a copy of the run of the first of torchrun's processes, from its ``config``."""
        return self.make(validate(self.kind, run["config"]), None)


AnyPipeline = Pipeline[Any, Any]
"""A pipeline for any kind of run."""
