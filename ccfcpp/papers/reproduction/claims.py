"""Statements of the papers, held against numbers: in how many places they are true."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ccfcpp.papers.reproduction.results import Place, Score, ScoreTable

Count = tuple[int, int]
"""In how many places a statement holds, and of how many."""
Counting = Callable[[ScoreTable], Count]
Pairs = Sequence[tuple[str, str]]
"""Systems of which the first is said to have the higher value."""


@dataclass(frozen=True)
class Claim:
    """A statement, and where it held.

    Attributes:
        text: The statement.
        held: In how many places it held in our runs.
        of: Of how many.
        paper: The same two numbers for the paper's own table, where it has been published.
        stated: Whether the paper has it; else it is our reading of it.
    """

    text: str
    held: int
    of: int
    paper: Count | None = None
    stated: bool = True

    def __str__(self) -> str:
        """In one clause."""
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

    Args:
        text: The statement.
        count: In how many places of a table it holds, and of how many.
        ours: Our values.
        paper: The paper's values. Of these the ones for our images count, where there are some.
        stated: Whether the paper has the statement.
    """
    published = None if paper is None else count(paper.beside(ours))
    return Claim(text, *count(ours), published, stated)


def _counted(tests: Sequence[bool]) -> Count:
    return sum(tests), len(tests)


def higher(pairs: Pairs) -> Counting:
    """One system has a higher value than another, under each condition."""

    def count(table: ScoreTable) -> Count:
        return _counted([gain > 0 for _, gain in _differences(table, pairs)])

    return count


def highest(system: str) -> Counting:
    """A system has the highest value of all, under each condition."""
    return led_by([system])


def led_by(systems: Sequence[str]) -> Counting:
    """One of some systems has the highest value of all, under each condition."""

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


def rises(systems: Sequence[str]) -> Counting:
    """A system's value rises from each place on the axis to the next."""

    def count(table: ScoreTable) -> Count:
        return _counted([change > 0 for change in _changes(table, systems)])

    return count


def falls(systems: Sequence[str]) -> Counting:
    """A system's value falls from each place on the axis to the next."""

    def count(table: ScoreTable) -> Count:
        return _counted([change < 0 for change in _changes(table, systems)])

    return count


def _changes(table: ScoreTable, systems: Sequence[str]) -> list[float]:
    """From each place on the axis to the next one that has a value."""
    changes: list[float] = []
    for panel, system in itertools.product(table.panels, systems):
        found = [table.scores.get((panel, place, system)) for place in table.places(panel)]
        means = [score.mean for score in found if score is not None]
        changes += [after - before for before, after in itertools.pairwise(means)]
    return changes


def ends_lower(systems: Sequence[str]) -> Counting:
    """A system's value is lower at the last place on the axis than at the first."""

    def count(table: ScoreTable) -> Count:
        lost = table.losses().scores
        return _counted([loss.mean > 0 for (_, _, name), loss in lost.items() if name in systems])

    return count


def ends_higher(systems: Sequence[str]) -> Counting:
    """A system's value is higher at the last place on the axis than at the first."""

    def count(table: ScoreTable) -> Count:
        lost = table.losses().scores
        return _counted([loss.mean < 0 for (_, _, name), loss in lost.items() if name in systems])

    return count


def everywhere(test: Callable[[float], bool]) -> Counting:
    """All values pass a test."""

    def count(table: ScoreTable) -> Count:
        return _counted([test(score.mean) for score in table.scores.values()])

    return count


def somewhere(test: Callable[[float], bool]) -> Counting:
    """One value at least passes a test: one place, where anything is known."""

    def count(table: ScoreTable) -> Count:
        tests = [test(score.mean) for score in table.scores.values()]
        return int(any(tests)), int(bool(tests))

    return count


def gains(table: ScoreTable, pairs: Pairs) -> ScoreTable:
    """What the first of each pair has over the second, as a table under the first one's name.

    Each system is the first one of a single pair.
    """
    scores = {place: Score(gain) for place, gain in _differences(table, pairs)}
    return ScoreTable(f"gain in {table.measure}", table.axis, scores)


def _differences(table: ScoreTable, pairs: Pairs) -> list[tuple[Place, float]]:
    """What the first of each pair has over the second, wherever both are known."""
    found: list[tuple[Place, float]] = []
    for panel, place in table.conditions:
        values = table.under(panel, place)
        found += [
            ((panel, place, first), values[first] - values[second])
            for first, second in pairs
            if first in values and second in values
        ]
    return found


def verdict(scale: str, claims: Sequence[Claim]) -> str:
    """A paragraph on what held.

    Args:
        scale: What was run, in a sentence.
        claims: The statements; those without a place in which they could hold are left out.
    """
    known = [each for each in claims if each.of]
    stated = [each for each in known if each.stated]
    read_in = [each for each in known if not each.stated]
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
