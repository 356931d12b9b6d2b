"""Conditions under which a setting counts, declared beside a field's type.

    threshold: Annotated[Positive | None, When("privacy.secure_sums")] = None

A field with several conditions counts where all of them hold. ``ccfcpp.core.relevance`` refuses a
setting that a user gave and that does not count. This module imports nothing of the library, so
that every section, also one of an installed package, can declare conditions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

Values = Mapping[str, object]
"""The settings of a run, by dotted key."""
Spell = Callable[[str, object], str]
"""Maps a key and its value to what a user types for the two."""


class Condition(Protocol):
    """A condition on the settings of a run."""

    def holds(self, values: Values) -> bool:
        """Return whether the settings meet the condition."""
        ...

    def in_words(self, spell: Spell) -> str:
        """Return what the settings need, such as ``privacy.secure_sums = true``."""
        ...


class When:
    """Condition that the setting ``key`` has one of some values, or without values is true."""

    def __init__(self, key: str, *values: object) -> None:
        self.key = key
        self.values = values or (True,)

    def holds(self, values: Values) -> bool:
        """Return whether the other setting has one of the values."""
        return values.get(self.key) in self.values

    def in_words(self, spell: Spell) -> str:
        """Return the other setting with its values."""
        first, *others = self.values
        return " or ".join([spell(self.key, first), *map(in_file, others)])


class Unless(When):
    """Condition that the setting ``key`` has none of some values."""

    def holds(self, values: Values) -> bool:
        """Return whether the other setting has another value."""
        return not super().holds(values)

    def in_words(self, spell: Spell) -> str:
        """Return the values that the other setting must not have."""
        listed = " or ".join(map(in_file, self.values))
        return f"{self.key} other than {listed}"


class WhenText(When):
    """Condition that the setting ``key`` is a text, such as the one given, and not a number."""

    def holds(self, values: Values) -> bool:
        """Return whether the other setting is a text."""
        return isinstance(values.get(self.key), str)


class UnlessText(Unless):
    """Condition that the setting ``key`` is no text, such as the one given."""

    def holds(self, values: Values) -> bool:
        """Return whether the other setting is a number, or null."""
        return not isinstance(values.get(self.key), str)


class Either:
    """Condition that one of several conditions holds."""

    def __init__(self, *conditions: Condition) -> None:
        self.conditions = conditions

    def holds(self, values: Values) -> bool:
        """Return whether one of the conditions holds."""
        return any(condition.holds(values) for condition in self.conditions)

    def in_words(self, spell: Spell) -> str:
        """Return all conditions, of which one is enough."""
        return ", or ".join(condition.in_words(spell) for condition in self.conditions)


class On(When):
    """Condition that the data are ``images`` or ``vectors``; it holds where that is unknown."""

    def __init__(self, kind: str) -> None:
        super().__init__("dataset", kind)
        self.kind = kind

    def holds(self, values: Values) -> bool:
        """Return whether the data set may be of the kind."""
        from ccfcpp.core.kinds import kind_of  # which looks at files

        found = kind_of(str(values.get("dataset")), values.get("data.encoder"))
        return found in (self.kind, None)

    def in_words(self, spell: Spell) -> str:
        """Return the kind of the data."""
        return f"a dataset of {self.kind}"


@dataclass(frozen=True)
class Affects:
    """Mark of a setting that changes ``what`` it says, such as files, and not a run's figures."""

    what: str


def in_file(value: object) -> str:
    """Return a value as a configuration file has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_file, value))}]"
    return str(value)
