"""Decorators that give commands flags for configuration keys, and shared options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperOption

from ccfcpp.cli.flags import ROUNDS, Flag, set_partition_kind
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, System
from ccfcpp.core.config import RunConfig, Section, Tree
from ccfcpp.core.config_layers import flatten, preset
from ccfcpp.core.errors import UsageError

if TYPE_CHECKING:
    from ccfcpp.core.settings_reference import KeyDescription

Command = Callable[..., None]
_EXPLAIN: dict[Command, Callable[[Iterable[object]], None]] = {}
"""For each command with flags, what sets the help of those of its options that are flags."""


def with_flags(
    flags: Sequence[Flag], *kinds: type[Section], base: Tree | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command flags, and passes their values to it as ``named``.

    Each field of a dataclass that the command takes becomes an option, too. If a setting is
    refused, the message names its flag and not the key behind it.

    Args:
        flags: Flags to add before the command's own options.
        kinds: Classes of the settings that they set; the help shows the defaults of the first one.
        base: The command's own settings, which override those of the preset.
    """

    def decorate(command: Command) -> Command:
        expanded, own = _expand_dataclasses(command)

        @functools.wraps(command)
        def wrapper(**given: object) -> None:
            values = {flag: given.pop(flag.name) for flag in flags}
            # A switch that is not given leaves the setting of a file as it is.
            typed = {flag: each for flag, each in values.items() if each not in (None, False, [])}
            named = {flag.key: value for flag, value in typed.items()}
            set_partition_kind(named)
            try:
                expanded(named=named, **given)
            except UsageError as error:
                known, user = ({flag.key: flag.option for flag in some} for some in (flags, typed))
                raise UsageError(error.by_flags(user, known)) from error

        keyword = inspect.Parameter.KEYWORD_ONLY
        others = [each.replace(kind=keyword) for each in own if each.name != "named"]
        parameters = [*(flag.parameter for flag in flags), *others]
        # Of the signature typer makes the command's options.
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        _EXPLAIN[wrapper] = functools.partial(_explain, flags, kinds, base or {})
        return wrapper

    return decorate


def _expand_dataclasses(command: Command) -> tuple[Command, list[inspect.Parameter]]:
    """Return a command that takes the fields of dataclasses in their place, and its parameters."""
    own = inspect.signature(command, eval_str=True).parameters
    groups = {
        name: inspect.signature(each.annotation, eval_str=True).parameters
        for name, each in own.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    def expanded(**given: object) -> None:
        made = {
            name: own[name].annotation(**{key: given.pop(key) for key in options})
            for name, options in groups.items()
        }
        command(**made, **given)

    return expanded, [each for name in own for each in groups.get(name, {name: own[name]}).values()]


def command_class(command: Command) -> type[TyperCommand]:
    """Return a subclass of ``TyperCommand`` that writes the help of flags when it is shown."""

    class Explained(TyperCommand):
        def get_help(self, ctx: Any) -> str:
            if explain := _EXPLAIN.get(command):
                explain(self.params)
            return super().get_help(ctx)

    return Explained


def _explain(
    flags: Sequence[Flag], kinds: Sequence[type[Section]], base: Tree, options: Iterable[object]
) -> None:
    """Set the help of each option that declares one of the flags, which set ``kinds``."""
    described = _settings(kinds)
    held = _default_values(kinds[0], described) | dict(flatten(base))
    by_name = {flag.name: flag for flag in flags}
    for option in options:
        if isinstance(option, TyperOption) and (flag := by_name.get(option.name or "")):
            flag.explain(option, described[flag.key], held[flag.key])
            option.rich_help_panel = flag.panel or _systems_with(flag, kinds)


def _own_systems() -> list[System]:
    """Return this library's own systems (methods): importing others can be slow or fail."""
    return [METHODS[name] for name in METHODS.own()]


def _settings(kinds: Sequence[type[Section]]) -> dict[str, KeyDescription]:
    """Return descriptions of the settings of ``kinds`` and of this library's systems, by key."""
    from ccfcpp.core.settings_reference import KeyDescription, describe_keys

    described = describe_keys(*kinds)
    if ClusterConfig in kinds:
        # Sections of classifiers have no flags, and to read them would import PyTorch.
        for system in _own_systems():
            for name, section in system.sections.items():
                own = describe_keys(section).items()
                described = {f"{name}.{key}": setting for key, setting in own} | described
    names = [", ".join(kind.methods()) for kind in kinds if issubclass(kind, RunConfig)]
    described["method"] = replace(described["method"], values="; to classify ".join(names))
    rounds = "Rounds; of CCFC and CCFC++ those after pre-training."
    return described | {ROUNDS.key: KeyDescription(rounds, "at least 1", "N", None)}


def _default_values(
    kind: type[Section], described: Mapping[str, KeyDescription]
) -> dict[str, object]:
    """Return the values that settings of class ``kind`` have for the default data set, by key."""
    held = {key: setting.default for key, setting in described.items()}
    if not issubclass(kind, RunConfig):
        return held
    presets = "cluster" if kind is ClusterConfig else "classify"
    held |= flatten(preset(presets, str(held["dataset"])))
    rounds, steps = (held.get(key, 1) for key in kind.keys_of_rounds(held))
    assert isinstance(rounds, int)
    assert isinstance(steps, int)
    return held | {ROUNDS.key: -(-rounds // steps)}


def _systems_with(flag: Flag, kinds: Sequence[type[Section]]) -> str:
    """Return the titles of the systems that have a flag's section of settings, or "All systems"."""
    if ClusterConfig not in kinds:
        return "All methods"
    section = flag.key.partition(".")[0]
    having = [
        system.title
        for system in _own_systems()
        if (system.rounds if flag.key == ROUNDS.key else section in system.sections)
    ]
    return ", ".join(having) or "All systems"
