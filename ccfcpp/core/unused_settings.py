"""Refusal of a user's settings that have no effect.

A setting has no effect if the system, or a section of its kind, does not have it, or if a rule of
``Section.unused`` says so. One check serves flags, files, ``--set``, Python, comparisons and
deployed runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import get_args

from ccfcpp.core.config import RunConfig, Section, Tree, kinds_of, require
from ccfcpp.core.config_layers import Layers, Shipped, is_whole, resolve
from ccfcpp.core.errors import KeyValue, Piece, UsageError, join_pieces

_ABSENT = object()


def refuse_unused(configs: Sequence[RunConfig], presets: str, layers: Layers) -> None:
    """Refuse settings of a user that have no effect in any of the runs.

    A single value may switch off settings of a file. A complete configuration, such as a run's
    ``config.yaml``, and a preset of the library may have settings without effect.

    Args:
        configs: The configurations of all runs that follow from the layers.
        presets: Folder of the data sets' presets, under ``configs``.
        layers: The user's settings.

    Raises:
        UsageError: A setting has no effect; the message says why, and what would give it one.
    """
    *files, values = layers or [{}]
    idle = _unused(configs, values)
    if (first := next(idle, None)) is not None:
        raise _refusal(configs, *first)
    own = [layer for layer in files if not (isinstance(layer, Shipped) or is_whole(layer))]
    for key, value in (each for layer in own for each in _unused(configs, layer)):
        named = {"dataset": configs[0].dataset, "method": configs[0].method}
        alone = resolve(type(configs[0]), presets, named, *files)
        if needs_of(alone, key) is not None:
            raise _refusal(configs, key, value)


def needs_of(config: RunConfig, key: str) -> list[Sequence[Piece]] | None:
    """Return what a setting without effect needs to have one; None if it has an effect.

    The list is empty if the method never reads the setting.
    """
    name, _, rest = key.partition(".")
    section = getattr(config, name, None)
    if not isinstance(section, Section):
        return None if name in type(config).model_fields and not rest else []
    if rest not in type(section).model_fields:
        return [needs] if (needs := _kind_with(config, name, rest)) else []
    idle = [needs for part, needs in config.unused() if key == part or key.startswith(f"{part}.")]
    return [needs for needs in idle if needs] if idle else None


def _kind_with(config: RunConfig, name: str, key: str) -> Sequence[Piece]:
    """Return the kind that section ``name`` must have for a setting ``key``; () if none has it."""
    field = type(config).model_fields[name]
    by = str(field.discriminator)
    kinds = [kind.model_fields for kind in kinds_of(field) if key in kind.model_fields]
    values = [value for kind in kinds for value in get_args(kind[by].annotation)]
    return [require(f"{name}.{by}", " or ".join(values))] if kinds else ()


def _unused(configs: Sequence[RunConfig], layer: Tree) -> Iterator[tuple[str, object]]:
    """Yield the settings of a layer that have no effect in any run, with their values."""
    for key in configs[0].known_fields({**layer, "method": configs[0].method}) if configs else ():
        value: object = layer
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT and all(needs_of(config, key) is not None for config in configs):
            yield key, value


def _refusal(configs: Sequence[RunConfig], key: str, value: object) -> UsageError:
    """Return the error for a setting that has no effect in any of the runs."""
    said = KeyValue(key, value)
    if needs := next(filter(None, (needs_of(config, key) for config in configs)), None):
        needed = join_pieces(" and ", needs)
        return UsageError(
            said, " has no effect: it needs ", *needed, "; give that, or leave it out"
        )
    methods = ", ".join(dict.fromkeys(config.method for config in configs))
    kind = type(configs[0])
    users = _methods_with(kind, key, kind.methods().own()) or _methods_with(
        kind, key, kind.methods()
    )
    instead = f", or take one of {', '.join(users)}" if users else ""
    return UsageError(said, f" has no effect on {methods}: leave it out{instead}")


def _methods_with(kind: type[RunConfig], key: str, names: Iterable[str]) -> list[str]:
    """Return those of the named methods that use a setting; a package that is broken has none."""
    users = []
    for name in names:
        with suppress(UsageError):
            if key in kind.fields_with(name) and key not in kind.methods()[name].ignores:
                users.append(name)
    return users
