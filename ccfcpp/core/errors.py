"""Errors that a user sees as one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeyValue:
    """A setting named in a message, printed as in a configuration file: ``key = value``.

    Attributes:
        key: The dotted key.
        value: The value; an ellipsis to print the key alone.
        advised: Whether the message advises this setting; otherwise the user has given it.
    """

    key: str
    value: object = ...
    advised: bool = False

    def __str__(self) -> str:
        return f"{self.key} = {in_file(self.value)}" if self.value is not ... else self.key

    def by_flag(self, flags: Mapping[str, str]) -> str:
        """Return the setting with its flag in ``flags`` (by key); without one, ``key = value``."""
        if self.key not in flags:
            return str(self)
        if self.value is True or self.value is ...:
            return flags[self.key]
        values = self.value if isinstance(self.value, list | tuple) else [self.value]
        return f"{flags[self.key]} {','.join(map(in_file, values))}"


Piece = str | KeyValue
"""A part of an error message: text, or a setting."""


def join_pieces(separator: str, groups: Iterable[Sequence[Piece]]) -> list[Piece]:
    """Join groups of message parts to one list, with a separator between groups."""
    return [part for group in groups for part in (separator, *group)][1:]


class UsageError(ValueError):
    """An error in what the user asked for.

    The message is one line that names the value, the rule and the remedy; commands print it alone.
    It consists of parts, so that a command can show the flags that a user typed in place of keys.
    """

    def __init__(self, *parts: Piece) -> None:
        super().__init__(*parts)
        self.parts = parts

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def by_flags(self, typed: Mapping[str, str], known: Mapping[str, str]) -> str:
        """Return the message with flags in place of keys.

        Args:
            typed: The flags that the user typed, by key, for settings that the user gave.
            known: All flags, by key, for settings that the message advises.
        """
        return "".join(
            part if isinstance(part, str) else part.by_flag(known if part.advised else typed)
            for part in self.parts
        )


class FederationError(RuntimeError):
    """A run cannot continue, although everything that the user asked for is valid."""


class StoppedError(Exception):
    """A run was asked to stop, and stopped after a checkpoint."""


def in_file(value: object) -> str:
    """Format a value as in a YAML configuration file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_file, value))}]"
    # Bytes of the command line that are no UTF-8 are escaped: pydantic cannot take them.
    return str(value).encode("utf-8", "backslashreplace").decode()
