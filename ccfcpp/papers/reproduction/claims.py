"""Statements of the papers, held against numbers: in how many places they are true."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ccfcpp.core.config import Section
from ccfcpp.papers.reproduction.scores import Pairs, ScoreTable

Count = tuple[int, int]
"""In how many places a statement holds, and of how many."""
Counting = Callable[[ScoreTable], Count]
Systems = Sequence[str] | Literal["all"]


class Range(Section):
    """Bounds of a number."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )


@dataclass(frozen=True)
class Claim:
    """A statement, and in how many places, of how many, it held in our runs.

    Attributes:
        paper: The same two numbers for the paper's own table, where it has been published.
        stated: Whether the paper states it; else it is our reading.
    """

    text: str
    held: int
    of: int
    paper: Count | None = None
    stated: bool = True

    def __str__(self) -> str:
        published = "" if self.paper is None else " (in the paper {} of {})".format(*self.paper)
        return f"{self.text}: {self.held} of {self.of}{published}"


def claim(
    text: str,
    count: Counting,
    ours: ScoreTable,
    paper: ScoreTable | None = None,
    stated: bool = True,
) -> Claim:
    """Hold a statement against our values and, where they are published, against the paper's.

    Of the paper's values those for our images count, where there are some.
    """
    published = None if paper is None else count(paper.beside(ours))
    return Claim(text, *count(ours), published, stated)


# --- ways of counting ---


def _counted(tests: Sequence[bool]) -> Count:
    return sum(tests), len(tests)


def higher(pairs: Pairs) -> Counting:
    """Count where the first system of a pair has a higher value than the second."""
    return lambda table: _counted([gain > 0 for _, gain in table.differences(pairs)])


def highest(systems: Sequence[str]) -> Counting:
    """Count the conditions under which one of some systems has a higher value than all others."""

    def count(table: ScoreTable) -> Count:
        tests = []
        for panel, place in table.conditions:
            values = table.under(panel, place)
            own = [value for name, value in values.items() if name in systems]
            others = [value for name, value in values.items() if name not in systems]
            if own and others:
                tests.append(max(own) > max(others))
        return _counted(tests)

    return count


def everywhere(bounds: Range) -> Counting:
    """Count the values that are within bounds."""
    return lambda table: _counted([bounds.holds(score.mean) for score in table.scores.values()])


def somewhere(bounds: Range) -> Counting:
    """Ask whether one value at least is within bounds: one place, where anything is known."""

    def count(table: ScoreTable) -> Count:
        held, known = everywhere(bounds)(table)
        return min(held, 1), min(known, 1)

    return count


def _of_systems(
    view: Callable[[ScoreTable], ScoreTable], bounds: Range
) -> Callable[[Systems], Counting]:
    """Make a check that counts values of some systems in a table made from the given one."""

    def check(systems: Systems) -> Counting:
        return lambda table: everywhere(bounds)(
            view(table).where(lambda at: systems == "all" or at[2] in systems)
        )

    return check


rises = _of_systems(ScoreTable.steps, Range(above=0))
"""Count where a system's value rises from a place on the axis to the next."""
falls = _of_systems(ScoreTable.steps, Range(below=0))
"""Count where a system's value falls from a place on the axis to the next."""
ends_lower = _of_systems(ScoreTable.losses, Range(above=0))
"""Count where a system's value is lower at the last place on the axis than at the first."""
ends_higher = _of_systems(ScoreTable.losses, Range(below=0))
"""Count where a system's value is higher at the last place on the axis than at the first."""


def best_differs(system: str) -> Counting:
    """Ask whether a system has its highest value at another place in one panel than in another."""

    def count(table: ScoreTable) -> Count:
        return int(len({table.best_place(panel, system) for panel in table.panels}) > 1), 1

    return count


CHECKS: Mapping[str, Callable[..., Counting]] = {
    "higher": higher,
    "highest": highest,
    "rises": rises,
    "falls": falls,
    "ends_lower": ends_lower,
    "ends_higher": ends_higher,
    "everywhere": everywhere,
    "somewhere": somewhere,
    "best_differs": best_differs,
}
"""Ways of counting by name; each takes what an item's claim has under that name."""

# --- text ---


def verdict(scale: str, claims: Sequence[Claim]) -> str:
    """Write a paragraph on what was run, in a sentence, and on what held.

    Statements without a place in which they could hold are left out.
    """
    stated = [each for each in claims if each.of and each.stated]
    read_in = [each for each in claims if each.of and not each.stated]
    parts = [scale]
    if stated:
        parts.append(f"{_tally(stated)} {_clauses(stated)}.")
    if read_in:
        parts.append(f"Our reading, which the paper does not state so: {_clauses(read_in)}.")
    return " ".join(parts)


def _tally(claims: Sequence[Claim]) -> str:
    throughout = sum(each.held == each.of for each in claims)
    mostly = sum(each.of > each.held > each.of / 2 for each in claims)
    return (
        f"Of the paper's statements ({len(claims)}) {throughout} held throughout, {mostly} in more "
        f"than half of the places, {len(claims) - throughout - mostly} in half of them or fewer."
    )


def _clauses(claims: Sequence[Claim]) -> str:
    text = "; ".join(map(str, claims))
    return text[0].upper() + text[1:]
