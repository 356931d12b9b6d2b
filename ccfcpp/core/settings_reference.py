"""Descriptions and possible values of a configuration's keys, taken from the fields.

The docstring of a field describes it. It is read when a description is asked for, and not when a
command starts.
"""

import ast
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ccfcpp.core.config import Section, kinds_of

_PLACEHOLDERS: dict[object, str] = {bool: "", int: "N", float: "NUMBER", str: "NAME"}
_NO_BOUND = 10**6
"""Upper bounds from here on only keep absurd numbers out."""


@dataclass(frozen=True)
class KeyDescription:
    """Description of a key of a configuration, for all kinds of the key's section together.

    Attributes:
        description: Meaning of the key.
        values: Possible values, in words; empty if the type says it.
        placeholder: Placeholder of a value in the help, such as ``N``.
        default: Default value.
    """

    description: str
    values: str
    placeholder: str
    default: object


def describe_keys(*kinds: type[Section]) -> dict[str, KeyDescription]:
    """Describe each key, by dotted name, of a configuration class or of a section's classes."""
    descriptions: dict[str, KeyDescription] = {}
    for name in dict.fromkeys(name for kind in kinds for name in kind.model_fields):
        having = [kind for kind in kinds if name in kind.model_fields]
        fields = [kind.model_fields[name] for kind in having]
        if sections := [section for field in fields for section in kinds_of(field)]:
            own = describe_keys(*sections)
            descriptions |= {f"{name}.{key}": setting for key, setting in own.items()}
        else:
            bases = dict.fromkeys(base for kind in having for base in reversed(kind.__mro__))
            texts = [_docstring(base, name) for base in bases if issubclass(base, Section)]
            descriptions[name] = _describe(" ".join(filter(None, texts)), fields)
    return descriptions


def _describe(description: str, fields: list[FieldInfo]) -> KeyDescription:
    leaves = [leaf for field in fields for leaf in _leaves(field.annotation, field.metadata)]
    choices = [str(value) for value, _ in leaves if isinstance(value, str | int)]
    ranges = [_range(bounds) for kind, bounds in leaves if kind in (int, float)]
    values = list(filter(None, dict.fromkeys([*choices, *ranges])))
    placeholders = dict.fromkeys(_PLACEHOLDERS[kind] for kind, _ in leaves if kind in _PLACEHOLDERS)
    return KeyDescription(
        description,
        " or ".join(filter(None, [", ".join(values[:-1]), *values[-1:]])),
        "|".join([*choices, *placeholders]) if placeholders else _PLACEHOLDERS[str],
        fields[0].default,
    )


def _leaves(annotation: object, bounds: list[object]) -> Iterator[tuple[object, list[object]]]:
    """Yield (type, bounds) for each basic type in an annotation, (value, []) for literals."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _leaves(arguments[0], [*bounds, *arguments[1:]])
    elif origin in (Union, types.UnionType):
        for one in arguments:
            yield from _leaves(one, bounds)
    elif origin is Literal:
        yield from ((value, []) for value in arguments)
    elif origin is tuple:
        yield from _leaves(arguments[0], bounds)
    else:
        own = [one.metadata if isinstance(one, FieldInfo) else [one] for one in bounds]
        yield annotation, [bound for each in own for bound in each]


def _range(bounds: list[object]) -> str:
    """Return the bounds of a number in words, such as "above 0 and at most 1"."""
    limits = {
        name: getattr(bound, name)
        for bound in bounds
        for name in ("ge", "gt", "le", "lt")
        if getattr(bound, name, _NO_BOUND) < _NO_BOUND
    }
    if limits.keys() == {"ge", "le"}:
        return f"{limits['ge']:g} to {limits['le']:g}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{words[name]} {bound:g}" for name, bound in limits.items())


def _docstring(kind: type[Section], field: str) -> str:
    return _docstrings(kind.__module__).get((kind.__name__, field), "")


@functools.cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of fields in a module, by (class name, field name)."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        (kind.name, field.target.id): " ".join(text.value.value.split()).replace("``", "")
        for kind in tree.body
        if isinstance(kind, ast.ClassDef)
        for field, text in pairwise(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }
