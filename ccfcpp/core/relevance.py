"""Refusal of a user's settings that have no effect.

A system declares which sections and keys it heeds, and a field declares on which other settings it
depends (``ccfcpp.core.conditions``). One check reads that for flags, files, ``--set``, Python,
comparisons and deployed runs.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic.fields import FieldInfo

from ccfcpp.core.conditions import Condition, Either, Unless, When, in_file
from ccfcpp.core.config import MethodConfig, Section, Tree
from ccfcpp.core.config_layers import Shipped, presets_below, stack, validate
from ccfcpp.core.errors import UsageError

_CONDITIONS = (When, Unless, Either)


def refuse_idle(
    configs: Sequence[MethodConfig],
    presets: str,
    files: Sequence[Tree] = (),
    values: Tree | None = None,
    flags: Mapping[str, str] | None = None,
) -> None:
    """Refuse a user's settings that count in none of some runs.

    A single value is refused wherever it does not count. A file's value is refused only where it
    also differs from the value without it. A layer with every section is a whole configuration,
    such as the ``config.yaml`` of a run; that and a preset of the library may hold what does not
    count.

    Args:
        configs: The configurations of all runs that follow from the layers.
        presets: Folder of the data sets' presets, under ``configs``.
        files: Content of the user's files.
        values: Single values of the user: flags, ``--set``, and settings from Python.
        flags: The flags by the keys for which they stand, without keys that ``--set`` gave.

    Raises:
        UsageError: The first such value, why it has no effect, and what would give it one.
    """
    if not configs:
        return
    kind, runs = type(configs[0]), [Heeded(config) for config in configs]
    for key in _given(kind, [values or {}]):
        if _is_idle(key, runs):
            raise UsageError(_complaint(key, runs, flags or {}, flags or {}))
    if in_files := [key for key in _given(kind, files) if _is_idle(key, runs)]:
        without = _without(configs[0], presets)
        alone = Heeded(_by_files(configs[0], presets, files))
        for key in in_files:
            # What counts in a file by itself was switched off by a single value over it.
            if runs[0].values[key] != without.get(key) and alone.unmet(key) is not None:
                raise UsageError(_complaint(key, runs, {}, flags or {}))


@functools.cache
def declared(kind: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a configuration and of its sections, by dotted key."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= {f"{name}.{key}": own for key, own in declared(field.annotation).items()}
        else:
            found[name] = field
    return found


def settings_of(config: MethodConfig) -> dict[str, object]:
    """Return the values of a configuration by dotted key, lists and mappings as they are."""
    tree = config.model_dump(mode="json")
    return {
        key: functools.reduce(operator.getitem, key.split("."), tree)
        for key in declared(type(config))
    }


class Heeded:
    """The settings that a run heeds."""

    def __init__(self, config: MethodConfig) -> None:
        self.config = config
        self.values = settings_of(config)
        self.fields = declared(type(config))

    def unmet(self, key: str) -> Sequence[Condition] | None:
        """Return the unmet conditions of a setting without effect; None where it has an effect.

        There are none where the method never looks at the setting.
        """
        if key not in self.fields or not self.heeds(self.config.method, key):
            return ()
        return [need for need in self.conditions(key) if not need.holds(self.values)] or None

    def conditions(self, key: str) -> Iterator[Condition]:
        """Yield the conditions of the method on a setting, and those of its field."""
        for part, needed in self.config.methods()[self.config.method].needs.items():
            if _belongs(key, part):
                yield from needed
        yield from (each for each in self.fields[key].metadata if isinstance(each, _CONDITIONS))

    def heeds(self, name: str, key: str) -> bool:
        """Return whether a method ever looks at a setting."""
        method, section = self.config.methods()[name], key.partition(".")[0]
        if any(_belongs(key, part) for part in method.ignores):
            return False
        return section in method.sections or section in self.config.common_fields()


def _belongs(key: str, part: str) -> bool:
    """Return whether a key is another one, or lies in a section."""
    return key == part or key.startswith(f"{part}.")


def _given(kind: type[MethodConfig], layers: Iterable[Tree]) -> list[str]:
    """Return the keys that layers hold, but for those of presets and of whole configurations."""
    every = {key.partition(".")[0] for key in declared(kind) if "." in key}
    parts = [own for own in layers if not (isinstance(own, Shipped) or every <= own.keys())]
    return [key for key in declared(kind) if any(_holds(layer, key) for layer in parts)]


def _holds(tree: Tree, key: str) -> bool:
    section, _, rest = key.partition(".")
    if section not in tree:
        return False
    return not rest or (isinstance(tree[section], Mapping) and _holds(tree[section], rest))


def _is_idle(key: str, runs: Sequence[Heeded]) -> bool:
    return all(run.unmet(key) is not None for run in runs)


def _without(config: MethodConfig, presets: str) -> dict[str, object]:
    """Return what would hold for a method and a data set if the user had given nothing else."""
    values = settings_of(config)
    named = {"dataset": config.dataset, "method": config.method}
    below = presets_below(presets, values)
    return settings_of(validate(type(config), stack(type(config), *below, named)))


def _by_files(config: MethodConfig, presets: str, files: Sequence[Tree]) -> MethodConfig:
    """Return what would hold if the user had given files alone."""
    named = {"dataset": config.dataset, "method": config.method}
    given = stack(type(config), named, *files)
    return validate(type(config), stack(type(config), *presets_below(presets, given), given))


def _complaint(
    key: str, runs: Sequence[Heeded], typed: Mapping[str, str], flags: Mapping[str, str]
) -> str:
    """Return the line that refuses a setting that counts in none of the runs.

    ``typed`` are flags that may have been typed for it, ``flags`` those that may turn it on.
    """
    value = next(run.values[key] for run in runs if key in run.values)
    said = _spelled(key, value, typed)
    if needs := next(filter(None, (run.unmet(key) for run in runs)), None):
        needed = " and ".join(need.in_words(lambda k, v: _spelled(k, v, flags)) for need in needs)
        return f"{said} has no effect: it needs {needed}; give that, or leave it out"
    methods = ", ".join(dict.fromkeys(run.config.method for run in runs))
    users = [name for name in runs[0].config.own_methods() if runs[0].heeds(name, key)]
    instead = f", or take one of {', '.join(users)}" if users else ""
    return f"{said} has no effect on {methods}: leave it out{instead}"


def _spelled(key: str, value: object, flags: Mapping[str, str]) -> str:
    """Return a setting as its flag where there is one, and else as a file has it."""
    if key not in flags:
        return f"{key} = {in_file(value)}"
    return flags[key] if value is True else f"{flags[key]} {in_file(value)}"
