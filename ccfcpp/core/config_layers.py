"""Configurations, merged from layers: presets, files and single values.

A layer is a nested dictionary of settings, and overrides the layers before it: the defaults, the
data set's preset, the user's files, and the user's single values. A layer that names a method also
sets the values that this method fixes.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError, create_model

from ccfcpp.core.config import RunConfig, Tree, fields_of, kinds_of
from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.presets import find_preset, preset_file, variants

try:
    from yaml import CSafeDumper as SafeDumper
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml, and takes forty times as long.
    from yaml import SafeDumper, SafeLoader  # type: ignore[assignment]

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

C = TypeVar("C", bound=RunConfig)
B = TypeVar("B", bound=BaseModel)
Layers = Sequence[Tree]
"""A user's settings, each tree overriding those before it: files first, single values last."""
DEFAULT_PRESET = "default"
_NEITHER = "file and no preset"
# PyYAML lets the errors of dates that do not exist, of wrong tags and of deep nesting through.
_YAML_ERRORS = (yaml.YAMLError, ValueError, AttributeError, LookupError, RecursionError)


class Shipped(Tree):
    """Settings from a preset of the library; unlike a user's, some may have no effect."""


class _Loader(SafeLoader):
    """YAML's safe loader, which also refuses a key twice (YAML 1.2, §3.2.1.3), or of no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line} has the key {key.value!r} a second time")
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if others := [key for key in mapping if not isinstance(key, str)]:
            raise yaml.YAMLError(f"the key {others[0]!r} is no text: write a name, or quote it")
        return mapping


def resolve(kind: type[C], presets: str, *layers: Tree) -> C:
    """Merge a user's settings onto the presets that they build on, and validate the result.

    Args:
        kind: Class of the configuration.
        presets: Folder of the data sets' presets, under ``configs``, such as ``cluster``.
        layers: The user's settings; each layer overrides those before it.

    Raises:
        UsageError: A key is unknown or a value is out of its range.
    """
    below = presets_below(presets, merge(*layers))
    return validate(kind, stack(kind, *below, *layers))


def presets_below(presets: str, given: Mapping[str, object]) -> list[Tree]:
    """Return the presets on which settings build: the data set's, a variant, its method's part.

    The variant is the one that the key ``preset`` in ``given`` names, if ``presets`` has a folder
    of that name. A file for the data set in a method's folder there holds for this method alone.
    """
    dataset = str(given.get("dataset", "digits"))
    section = given.get("data")
    encoder = section.get("encoder") if isinstance(section, Mapping) else None
    below = [preset(presets, dataset, encoder)]
    named = str(given.get("preset", DEFAULT_PRESET))
    if named in variants(presets):
        below.append(preset(f"{presets}/{named}", dataset, encoder))
        method = merge(*below, given).get("method")
        if preset_file(f"{presets}/{named}/{method}/{dataset}").is_file():
            below.append(preset(f"{presets}/{named}/{method}", dataset, encoder))
    return below


def stack(kind: type[RunConfig], *layers: Tree) -> Tree:
    """Merge layers of settings (nested dictionaries); a later layer overrides an earlier one.

    The values that a method fixes override all layers before the one that names the method. The
    key ``rounds`` is replaced by the method's own key for its number of rounds.

    Args:
        kind: Class of the configuration, which knows the methods.
        layers: Settings by key, the settings of a section in a dictionary of their own.

    Raises:
        UsageError: A layer has an unknown key; only a complete configuration (``is_whole``) may.
    """
    both = [part for layer in layers for part in (kind.fixed_by(layer), layer)]
    found = merge(*both)
    known = {**kind.known_fields(found), "rounds": None}
    for layer in layers:
        if not is_whole(layer):
            _check_keys(known, layer)
    if "rounds" not in found:
        return found
    of_system = (_with_rounds(kind, part, found) if "rounds" in part else part for part in both)
    return merge(*of_system)


def is_whole(layer: Tree) -> bool:
    """Return whether a layer has every field of ``RunConfig``, as a run's ``config.yaml`` has."""
    return RunConfig.model_fields.keys() <= layer.keys()


def _with_rounds(kind: type[RunConfig], layer: Tree, found: Tree) -> Tree:
    """Replace a layer's key ``rounds`` by the method's own key, which it must not have, too.

    A method that counts steps gets rounds × steps per round. ``found``: all layers, merged.
    """
    (key, steps), value = kind.keys_of_rounds(found), layer["rounds"]
    if not key:
        raise UsageError(
            KeyValue("rounds", value),
            f" has no effect on {found['method']}, whose number of rounds is fixed: leave it out",
        )
    known = kind.known_fields(found)
    own = str(dict(flatten(found)).get(steps, known[steps].default) if steps else 1)
    # What is no number of steps is refused later, by its own key.
    in_round = max(1, int(own)) if own.isdecimal() else 1
    count = int(str(value)) * in_round if str(value).isdecimal() else value
    fields: dict[str, Any] = {"rounds": (known[key].annotation, known[key])}
    try:
        validated(create_model("Rounds", **fields), {"rounds": count})
    except UsageError as error:
        raise UsageError(KeyValue("rounds", value), *error.parts[1:]) from None
    rest = {name: own for name, own in layer.items() if name != "rounds"}
    if key in (given := dict(flatten(rest))):
        raise UsageError(
            KeyValue("rounds", value),
            " and ",
            KeyValue(key, given[key]),
            " set the same: give one of them",
        )
    return merge(nest(key, count), rest)


def preset(presets: str, dataset: str, encoder: object = None) -> Tree:
    """Return the preset of a data set; for a path, the one for a user's own images or vectors.

    With an encoder, which turns samples into vectors, it is the one for vectors.
    """
    named = preset_file(f"{presets}/{dataset}")
    if "/" not in dataset and named.is_file() and not encoder:
        return read_yaml(named)
    own = preset_file(f"{presets}/{kind_of(dataset, encoder) or 'images'}")
    # Nothing is published of vectors, and they are not classified.
    found = read_yaml(own) if own.is_file() else {}
    return found | {"dataset": dataset}


def read_configs(given: Iterable[Path], groups: Sequence[str] = ()) -> list[Tree]:
    """Read each of the paths ``given``, or else the preset so named, such as ``feddecorr/table1``.

    The last part of a preset's name is enough if it is unique, or in one of the folders ``groups``.

    Raises:
        UsageError: There is neither such a file nor such a preset, or it cannot be read.
    """
    return [
        # A folder is no such file: it may have the name of a data set.
        read_yaml(path)
        if path.exists() and not path.is_dir()
        else Shipped(read_yaml(preset_file(find_preset(path.as_posix(), groups, _NEITHER))))
        for path in given
    ]


def read_yaml(path: Path) -> Tree:
    """Read a YAML file that holds a mapping.

    Raises:
        UsageError: There is no such file, or it is not YAML, or not a mapping.
    """
    try:
        tree = parse_yaml(path.read_text())
    except OSError as error:
        raise UsageError(f"configuration {path} cannot be read: {error}") from error
    except ValueError as error:
        raise UsageError(f"configuration {path} is not valid YAML: {error}") from error
    if tree is not None and not isinstance(tree, dict):
        raise UsageError(f"configuration {path} must hold keys and values, such as 'seed: 0'")
    return tree or {}


def parse_yaml(text: str | bytes) -> Any:
    """Parse YAML; raise ``ValueError``, with a reason of one line, if it is not valid."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
    except _YAML_ERRORS as error:
        raise ValueError(" ".join(str(error).split())) from error


def parse_assignments(assignments: Iterable[str]) -> Tree:
    """Parse ``a.b=c`` to ``{a: {b: c}}``, with the value as YAML.

    Raises:
        UsageError: An assignment is not of that form.
    """
    tree: Tree = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {assignment} is not of the form key=value, such as loss.lam=0")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise UsageError(f"--set {assignment}: {text!r} is not a YAML value") from error
        tree = merge(tree, nest(key, value))
    return tree


def nest(key: str, value: object) -> Tree:
    """Nest a value under its dotted key: return ``{a: {b: value}}`` for the key ``a.b``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def unflatten(values: Mapping[str, object]) -> Tree:
    """Return a nested dictionary of values given by dotted key; the inverse of ``flatten``."""
    return merge(*(nest(key, value) for key, value in values.items()))


def merge(*trees: Mapping[str, object]) -> Tree:
    """Merge nested dictionaries key by key; each overrides those before it."""
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            below = merged.get(key)
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                value = merge(below, value)
            merged[key] = value
    return merged


def flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (``prefix`` + dotted key, value) for each value in a nested dictionary."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def values_of(config: BaseModel) -> dict[str, object]:
    """Return the values of a configuration as JSON types, by dotted key."""
    return dict(flatten(config.model_dump(mode="json")))


def validate(kind: type[C], tree: Tree) -> C:
    """Build a validated configuration from a nested dictionary of settings.

    Keys that belong to other methods, or to kinds of a section that are not chosen, are dropped.

    Raises:
        UsageError: A key or value does not fit; the message names the first, and what would fit.
    """
    own, known = kind.kind_for(tree), kind.known_fields(tree)
    # Sections of other methods may be those of an earlier version.
    _check_keys(known, tree, but=tree.keys() - own.model_fields)
    return validated(own, _select_fields(own, tree))


def _check_keys(known: Collection[str], tree: Tree, but: Collection[str] = ()) -> None:
    """Raise ``UsageError`` for an unknown key, or for a single value in place of a section.

    ``known`` are dotted keys; unknown keys in the sections ``but`` are allowed.
    """
    sections = {key.partition(".")[0] for key in known if "." in key}
    for name, content in tree.items():
        if name in sections and not isinstance(content, Mapping):
            raise UsageError(KeyValue(name, content), " is refused: it should hold keys and values")
        if name not in sections and name not in known:
            raise _unknown(name, known)
        for key, _ in flatten({name: content}) if name not in but else ():
            parts = key.split(".")
            if not any(".".join(parts[:end]) in known for end in range(1, len(parts) + 1)):
                raise _unknown(key, known)


def _select_fields(kind: type[BaseModel], tree: Mapping[str, object]) -> Tree:
    """Drop the keys of nested settings for which a configuration class has no field.

    A section of an unknown kind stays as it is; ``validate`` refuses it.
    """
    selected: Tree = {}
    for name in kind.model_fields.keys() & tree.keys():
        field, value = kind.model_fields[name], tree[name]
        if isinstance(value, Mapping) and (kinds := kinds_of(field)):
            by = field.discriminator
            if isinstance(by, str):
                value = {by: getattr(field.default, by)} | dict(value)
                kinds = [
                    one for one in kinds if value[by] in get_args(one.model_fields[by].annotation)
                ]
            if kinds:
                value = _select_fields(kinds[0], value)
        selected[name] = value
    return selected


def validated(kind: type[B], tree: Tree) -> B:
    """Build a configuration or section of class ``kind``; raise errors as ``validate`` does."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _refusal(kind, error.errors()[0]) from None


def _refusal(kind: type[BaseModel], error: "ErrorDetails") -> UsageError:
    """Convert pydantic's error to one that names the key, the value and the rule."""
    place, context = list(error["loc"]), error.get("ctx", {})
    if isinstance(refusal := context.get("error"), UsageError):
        return refusal
    if error["type"] == "value_error":
        return UsageError(error["msg"].removeprefix("Value error, "))
    value, rule = error["input"], error["msg"].replace("Input", "it", 1)
    if error["type"] == "union_tag_invalid":
        place, value = [*place, context["discriminator"].strip("'")], context["tag"]
        rule = "it should be " + " or ".join(context["expected_tags"].rsplit(", ", 1))
    elif (section := kind.model_fields.get(str(place[0]))) and section.discriminator:
        del place[1]  # The kind of the section.
    key = ".".join(map(str, place))
    if error["type"] == "extra_forbidden":
        return _unknown(key, fields_of(kind))
    return UsageError(KeyValue(key, value), f" is refused: {rule}")


def _unknown(key: str, known: Iterable[str]) -> UsageError:
    leaf, names = key.rpartition(".")[2], [*known]
    sections = {} if "." in key else dict.fromkeys(name.partition(".")[0] for name in names)
    nearest = max(
        [*names, *sections],
        key=lambda name: _likeness(key, name) + _likeness(leaf, name.rpartition(".")[2]),
    )
    return UsageError(f"unknown key {key!r}: did you mean {nearest!r}?")


def _likeness(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def dump_yaml(config: BaseModel) -> str:
    """Return a configuration as YAML, with default values included."""
    return to_yaml(config.model_dump(mode="json"))


def to_yaml(tree: Mapping[str, object]) -> str:
    """Return a nested dictionary as YAML, with its keys in their order."""
    text: str = yaml.dump(tree, Dumper=SafeDumper, sort_keys=False, allow_unicode=True)
    return text


def differing_keys(first: BaseModel, second: BaseModel) -> list[str]:
    """Return the dotted keys whose values differ between two configurations of one class."""
    left, right = values_of(first), values_of(second)
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
