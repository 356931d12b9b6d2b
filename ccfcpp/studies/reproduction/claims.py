"""Claims of the papers, checked against score tables: for how many values they hold.

A claim is a sequence of *views*, functions from values to values, such as differences between
systems, and a *check*: one more view, and bounds on the values that it gives. Values have keys
(panel, place, system): data set, value on the table's axis, such as p = 0.5, and method.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from ccfcpp.studies.score_tables import ANY, Place

Values = Mapping[Place, float]
Count = tuple[int, int]
"""Number of values for which a claim holds, and number of all values."""
Pairs = Sequence[tuple[str, str]]
"""Pairs of systems; the first is compared with the second."""
Systems = Sequence[str] | Literal["all"]


_BOUNDS = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}
Range = Mapping[Literal["above", "at_least", "below", "at_most"], float]
"""Bounds of a number."""


# --- values, seen along the axis or across systems ---


def group_by_place(values: Values) -> dict[tuple[str, str], dict[str, float]]:
    """Group values by panel (data set) and place (axis value); a group maps systems to values.

    A value at ``ANY``, of a system that does not depend on the axis, is in every group.
    """
    groups: dict[tuple[str, str], dict[str, float]] = {
        (panel, place): {} for panel, place, _ in values if place != ANY
    }
    for (panel, place), known in groups.items():
        for own in (ANY, place):
            known |= {at[2]: value for at, value in values.items() if at[:2] == (panel, own)}
    return groups


def group_by_system(values: Values) -> dict[tuple[str, str], dict[str, float]]:
    """Group values by panel (data set) and system; a group maps places (axis values) to values."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for panel, place in group_by_place(values):
        for (own, at, system), value in values.items():
            if (own, at) == (panel, place):
                groups.setdefault((panel, system), {})[place] = value
    return groups


# --- views ---


def gains(values: Values, pairs: Pairs) -> Values:
    """Subtract each pair's second system from its first, for each data set and axis value."""
    return {
        (panel, place, f"{first} - {second}"): known[first] - known[second]
        for (panel, place), known in group_by_place(values).items()
        for first, second in pairs
        if {first, second} <= known.keys()
    }


def margins(values: Values, systems: Sequence[str]) -> Values:
    """Subtract the other systems' best value from that of ``systems``, for each data set and place.

    A place is a value on the table's axis, such as p = 0.5. Higher values are better.
    """
    differences = {}
    for (panel, place), known in group_by_place(values).items():
        own = [value for name, value in known.items() if name in systems]
        others = [value for name, value in known.items() if name not in systems]
        if own and others:
            differences[panel, place, ""] = max(own) - max(others)
    return differences


def keep_systems(values: Values, systems: Systems) -> Values:
    """Select the values of the given systems; with ``"all"``, keep all values."""
    return {at: value for at, value in values.items() if systems == "all" or at[2] in systems}


def steps(
    values: Values, systems: Systems = "all", change: Callable[[float, float], float] = operator.sub
) -> Values:
    """Return each system's change from one value on the axis (place) to the next.

    ``change`` computes it from the later value and the earlier one.
    """
    return {
        (panel, f"{first} to {second}", system): change(line[second], line[first])
        for (panel, system), line in group_by_system(keep_systems(values, systems)).items()
        for first, second in pairwise(line)
    }


def losses_along(values: Values, systems: Systems = "all") -> Values:
    """Return each system's score at the first axis value minus that at the last, by data set."""
    losses = {}
    for (panel, system), line in group_by_system(values).items():
        places = [place for own, place in group_by_place(values) if own == panel]
        first, last = places[0], places[-1]
        if first != last and {first, last} <= line.keys():
            losses[panel, f"{first} to {last}", system] = line[first] - line[last]
    return keep_systems(losses, systems)


def below_best(values: Values, system: str) -> Values:
    """Return how far a system is below its own best on a data set, at each value on the axis."""
    return {
        (panel, place, system): max(line.values()) - value
        for (panel, _), line in group_by_system(keep_systems(values, [system])).items()
        for place, value in line.items()
    }


def places_to_last_of(values: Values, system: str) -> Values:
    """Return the first round at which each system reaches the last score of ``system``.

    Rounds are the places on the axis. If it never does, it is the last round + 1.
    """
    first_places: dict[Place, float] = {}
    all_lines = group_by_system(values)
    for (panel, name), line in all_lines.items():
        last, goal = [*all_lines[panel, system].items()][-1]
        reached = [int(at) for at, value in line.items() if value >= goal]
        first_places[panel, "", name] = [*reached, int(last) + 1][0]
    return first_places


def best_places(values: Values, system: str) -> Values:
    """Count the distinct axis values at which a system is at its best, one for each data set."""
    of_system = group_by_system(keep_systems(values, [system])).values()
    return {("", "", system): len({max(line, key=line.__getitem__) for line in of_system})}


VIEWS: Mapping[str, Callable[[Values, Any], Values]] = {
    "places_to_last_of": places_to_last_of,
    "below_best": below_best,
    "gains": gains,
    "losses": lambda values, _: losses_along(values),
    "steps": lambda values, _: steps(values),
    "ratios": lambda values, _: steps(values, change=operator.truediv),
    "by_place": lambda values, _: {(p, system, at): v for (p, at, system), v in values.items()},
    "at": lambda values, places: {at: v for at, v in values.items() if at[1] in places},
    "without": lambda values, place: {at: v for at, v in values.items() if at[1] != place},
    "of": lambda values, system: keep_systems(values, [system]),
}
"""Views by the field of ``ClaimSpec`` that gives their argument; applied in this order."""
_UP: Range = {"above": 0}
_DOWN: Range = {"below": 0}
CHECKS: Mapping[str, tuple[Callable[[Values, Any], Values], Range | None]] = {
    "higher": (gains, _UP),
    "highest": (margins, _UP),
    "rises": (steps, _UP),
    "falls": (steps, _DOWN),
    "ends_lower": (losses_along, _UP),
    "ends_higher": (losses_along, _DOWN),
    "everywhere": (lambda values, _: values, None),
    "somewhere": (lambda values, _: values, None),
    "best_differs": (best_places, {"above": 1}),
}
"""Checks by the field of ``ClaimSpec`` that gives their argument: a view, which takes the argument,
and bounds on its values; None: the argument is the bounds."""


def count(check: str, argument: Any, values: Values) -> Count:
    """Count the values that pass a check, and all values that it tests.

    ``check`` is a name in ``CHECKS``, ``argument`` what it takes, such as systems. The check
    ``somewhere`` counts as one value.
    """
    view, bounds = CHECKS[check]
    limits = (argument if bounds is None else bounds).items()
    tests = [
        all(_BOUNDS[name](value, limit) for name, limit in limits)
        for value in view(values, argument).values()
    ]
    most = 1 if check == "somewhere" else len(tests)
    return min(sum(tests), most), min(len(tests), most)


def select_shared(paper: Values, ours: Values) -> Values:
    """Select the paper's values at our data sets and axis values; all if no data set is shared."""
    panels = {panel for panel, _, _ in ours}
    there = {*group_by_place(ours), *((panel, ANY) for panel in panels)}
    shared = any(panel in panels for panel, _, _ in paper)
    return {at: value for at, value in paper.items() if not shared or at[:2] in there}


@dataclass(frozen=True)
class Claim:
    """Claim of a paper, with the number of values for which it holds.

    Attributes:
        text: The claim.
        held: Number of our values for which it holds.
        of: Number of our values for which it was checked.
        paper: The same two numbers for the paper's own table; None if that is not published.
        stated: Whether the paper states the claim; if not, it is our reading of its table.
    """

    text: str
    held: int
    of: int
    paper: Count | None = None
    stated: bool = True

    def __str__(self) -> str:
        published = "" if self.paper is None else " (in the paper {} of {})".format(*self.paper)
        return f"{self.text}: {self.held} of {self.of}{published}"


def count_verdicts(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """Count the claims that hold for all of our values, for most, and for half of them or fewer."""
    whole = sum(claim.held == claim.of for claim in claims)
    mostly = sum(claim.of > claim.held > claim.of / 2 for claim in claims)
    return whole, mostly, len(claims) - whole - mostly


def summarize_claims(scale: str, claims: Sequence[Claim]) -> str:
    """Return a paragraph: what was run (the sentence ``scale``), and which claims held.

    Claims that could not be checked for any value are left out.
    """
    stated = [each for each in claims if each.of and each.stated]
    read_in = [each for each in claims if each.of and not each.stated]
    parts = [scale]
    if stated:
        throughout, mostly, rest = count_verdicts(stated)
        parts.append(
            f"Of the paper's statements ({len(stated)}) {throughout} held throughout, {mostly} in "
            f"more than half of the places, {rest} in half of them or fewer. {_clauses(stated)}."
        )
    if read_in:
        parts.append(f"Our reading, which the paper does not state so: {_clauses(read_in)}.")
    return " ".join(parts)


def _clauses(claims: Sequence[Claim]) -> str:
    text = "; ".join(map(str, claims))
    return text[0].upper() + text[1:]
