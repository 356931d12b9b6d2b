"""Settings that a user gave and that have no effect are refused, in one line.

What counts is declared: a system says which sections and keys it heeds, and a field says on which
other settings it depends (``ccfcpp.core.conditions``). One check reads that for flags, files,
``--set``, Python, comparisons and deployed runs.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic.fields import FieldInfo

from ccfcpp.core.conditions import Condition, Either, Unless, When, in_file
from ccfcpp.core.config import MethodConfig, Section, Tree
from ccfcpp.core.config_layers import presets_below, stack, validate
from ccfcpp.core.errors import UsageError

_CONDITIONS = (When, Unless, Either)


def refuse_idle(
    configs: Sequence[MethodConfig],
    presets: str,
    files: Sequence[Tree] = (),
    values: Tree | None = None,
    flags: Mapping[str, str] | None = None,
) -> None:
    """Refuse what a user gave and what counts in none of some runs.

    A single value is refused wherever it does not count. What a file holds is refused only where
    it also differs from what would hold without it. A layer with every section states a whole
    configuration, as the ``config.yaml`` of a run does; it may hold what does not count.

    Args:
        configs: The configurations of all runs that come of the layers.
        presets: Folder of the data sets' presets, under ``configs``.
        files: What the user's files hold.
        values: Single values of the user: flags, ``--set``, and settings from Python.
        flags: The flag that stands for a key, by the key. A single value is called by its flag, so
            leave out a key that was given by ``--set``.

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
    return {key: _value(tree, key) for key in declared(type(config))}


class Heeded:
    """What a run heeds of its settings.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: MethodConfig) -> None:
        self.config = config
        self.values = settings_of(config)
        self.fields = declared(type(config))

    def unmet(self, key: str) -> Sequence[Condition] | None:
        """Return why a setting has no effect.

        Returns:
            The conditions that are not met, none where the method never looks at the setting; None
            where the setting has an effect.
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
    """Return the keys that layers hold, but for those of layers that hold every section."""
    every = {key.partition(".")[0] for key in declared(kind) if "." in key}
    parts = [layer for layer in layers if not every <= layer.keys()]
    return [key for key in declared(kind) if any(_holds(layer, key) for layer in parts)]


def _holds(tree: Tree, key: str) -> bool:
    section, _, rest = key.partition(".")
    if section not in tree:
        return False
    return not rest or (isinstance(tree[section], Mapping) and _holds(tree[section], rest))


def _value(tree: Tree, key: str) -> object:
    section, _, rest = key.partition(".")
    return _value(tree[section], rest) if rest else tree[section]


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
    """Return the line that refuses a setting.

    Args:
        key: Its key.
        runs: The runs, in none of which it counts.
        typed: Flags by key, of what may have been typed for the setting.
        flags: Flags by key, of what may be typed to turn it on.
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
