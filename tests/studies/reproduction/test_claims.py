"""Statements held against numbers: each way of counting beside an obvious one."""

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.studies.reproduction.claims import (
    Claim,
    gains,
    keep_systems,
    select_shared,
    summarize_claims,
)
from ccfcpp.studies.score_tables import ANY, Place, Score, ScoreTable
from tests.support.reproduction import (
    Counting,
    best_differs,
    ends_higher,
    ends_lower,
    everywhere,
    falls,
    higher,
    highest,
    rises,
    somewhere,
)

PANELS, PLACES, SYSTEMS = ("digits", "MNIST"), ("0", "0.5", "1"), ("ours", "theirs", "KM")
PAIRS = [("ours", "theirs"), ("ours", "KM"), ("KM", "theirs")]


def line(system: str, *values: float | None) -> dict[Place, float]:
    """A system's values on the digits; None where it has none."""
    places = zip(PLACES, values, strict=True)
    return {("digits", place, system): value for place, value in places if value is not None}


# Few different values, so that there are ties.
VALUES = st.dictionaries(
    st.tuples(st.sampled_from(PANELS), st.sampled_from((*PLACES, ANY)), st.sampled_from(SYSTEMS)),
    st.integers(0, 2).map(float),
)


def conditions(values: dict[Place, float]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((panel, place) for panel, place, _ in values if place != ANY))


def at(values: dict[Place, float], panel: str, place: str, system: str) -> float | None:
    """A value, or that of any place; by hand."""
    if (panel, place, system) in values:
        return values[panel, place, system]
    return values.get((panel, ANY, system))


def lines_of(values: dict[Place, float]) -> dict[tuple[str, str], list[float | None]]:
    """Values along the axis by images and system, None where there is none."""
    return {
        (panel, system): [
            values.get((panel, place, system)) for own, place in conditions(values) if own == panel
        ]
        for panel in PANELS
        for system in SYSTEMS
    }


# --- by hand ------------------------------------------------------------------------------------


def test_a_system_to_which_the_axis_means_nothing_is_compared_at_every_place() -> None:
    table = {("digits", ANY, "KM"): 2.0} | line("ours", 3, None, 1)
    assert higher([("ours", "KM")])(table) == (1, 2)
    assert highest(["ours"])(table) == (1, 2)
    shown = ScoreTable("NMI", "p", {place: Score(value) for place, value in table.items()})
    assert shown.get("digits", "0", "KM") == shown.get("digits", "0.5", "KM") == Score(2.0)


def test_where_a_value_is_missing_nothing_is_said() -> None:
    table = line("ours", None, 2, 3) | line("theirs", 1, None, 2)
    assert higher([("ours", "theirs")])(table) == (1, 1)
    assert highest(["ours"])(table) == (1, 1)
    assert higher([("ours", "KM")])(table) == (0, 0)
    assert higher([])(table) == (0, 0)


def test_the_highest_of_several_must_be_above_all_others() -> None:
    table = line("ours", 3, 2, 1) | line("theirs", 2, 2, 0) | line("KM", 1, 1, 2)
    assert highest(["ours"])(table) == (1, 3)
    assert highest(["KM"])(table) == (1, 3)
    # Alone, a system is no highest one.
    assert highest(["ours"])(keep_systems(table, ["ours"])) == (0, 0)


def test_a_single_place_has_no_ends() -> None:
    table = {("digits", "0", "ours"): 1.0}
    assert ends_lower(["ours"])(table) == ends_higher(["ours"])(table) == (0, 0)
    assert ends_lower(["KM"])({("digits", ANY, "KM"): 1.0}) == (0, 0)


@pytest.mark.parametrize(
    ("bounds", "inside"),
    [
        ({"above": 1, "below": 3}, [2.0]),
        ({"at_least": 1, "at_most": 3}, [1.0, 2.0, 3.0]),
        ({"at_least": 2}, [2.0, 3.0, 4.0]),
        ({"below": 1}, [0.0]),
        ({}, [0.0, 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_a_range_has_bounds_within_and_without(
    bounds: dict[str, float], inside: list[float]
) -> None:
    inside_of = [everywhere(bounds)({("", "", ""): float(value)})[0] for value in range(5)]
    assert [float(value) for value in range(5) if inside_of[value]] == inside


def test_the_best_place_differs_where_two_panels_have_other_ones() -> None:
    table = line("ours", 1, 2, 1) | {("MNIST", "0.5", "ours"): 3.0}
    assert best_differs("ours")(table) == (0, 1)
    other = table | {("MNIST", "1", "ours"): 4.0}
    assert best_differs("ours")(other) == (1, 1)


def test_all_systems_are_those_of_the_table() -> None:
    table = line("ours", 1, 2, 2) | line("theirs", 3, None, 1)
    for way in (rises, falls, ends_higher, ends_lower):
        assert way("all")(table) == way(["ours", "theirs"])(table)


def test_one_value_is_enough_for_somewhere() -> None:
    table = line("ours", 1, 2, 3)
    assert somewhere({"above": 2})(table) == (1, 1)
    assert somewhere({"above": 3})(table) == (0, 1)
    assert somewhere({})({}) == (0, 0)


def test_one_of_several_systems_must_be_above_all_others() -> None:
    table = line("ours", 3, 1, 1) | line("theirs", 2, 3, 2) | line("KM", 1, 2, 2)
    assert highest(["ours", "theirs"])(table) == (2, 3)
    assert highest(["KM"])(table) == (0, 3)
    # Where all are among them, or none is, nothing is said.
    assert highest(["ours", "theirs", "KM"])(table) == (0, 0)
    assert highest(["nobody"])(table) == (0, 0)


def test_the_paper_is_counted_where_we_have_runs() -> None:
    """On the images that both have, at our places; else on all of the paper's."""
    rising = rises(["ours"])
    paper = (
        line("ours", 1, 2, 1)
        | {("MNIST", place, "ours"): float(place) for place in PLACES}
        | {("MNIST", ANY, "KM"): 0.0}
    )
    ours = line("ours", 1, 2, None)
    assert rising(select_shared(paper, ours)) == (1, 1)
    mnist = {("MNIST", place, "ours"): 0.0 for place in PLACES[1:]}
    assert rising(select_shared(paper, mnist)) == (1, 1)
    assert higher([("ours", "KM")])(select_shared(paper, mnist)) == (2, 2)
    others = {("STL-10", "0", "ours"): 0.0}
    assert rising(select_shared(paper, others)) == (3, 4)


# --- in general ---------------------------------------------------------------------------------


@given(VALUES)
def test_what_is_higher_is_not_lower(values: dict[Place, float]) -> None:
    table = values
    for first, second in PAIRS:
        known = [
            (a, b)
            for panel, place in conditions(values)
            if (a := at(values, panel, place, first)) is not None
            and (b := at(values, panel, place, second)) is not None
        ]
        ties = sum(a == b for a, b in known)
        above, places = higher([(first, second)])(table)
        below, same_places = higher([(second, first)])(table)
        assert places == same_places == len(known)
        assert above == sum(a > b for a, b in known)
        assert above + below + ties == places


@given(VALUES)
def test_several_pairs_count_as_each_alone(values: dict[Place, float]) -> None:
    table = values
    single = [higher([pair])(table) for pair in PAIRS]
    assert higher(PAIRS)(table) == tuple(map(sum, zip(*single, strict=True)))


@given(VALUES)
def test_gains_are_differences(values: dict[Place, float]) -> None:
    pair = ("ours", "KM")
    expected = {}
    for panel, place in conditions(values):
        first, second = (at(values, panel, place, system) for system in pair)
        if first is not None and second is not None:
            expected[panel, place, "ours - KM"] = first - second
    gained = gains(values, [pair])
    assert gained == expected


@given(VALUES)
def test_at_most_one_system_is_the_highest(values: dict[Place, float]) -> None:
    table = values
    expected = 0
    for panel, place in conditions(values):
        known = [at(values, panel, place, system) for system in SYSTEMS]
        found = sorted(value for value in known if value is not None)
        expected += len(found) > 1 and found[-1] > found[-2]
    assert sum(highest([system])(table)[0] for system in SYSTEMS) == expected


Comparison = Callable[[float, float], bool]


@pytest.mark.parametrize(("count", "compare"), [(rises, operator.gt), (falls, operator.lt)])
@given(values=VALUES)
def test_steps_are_those_of_a_loop(
    count: Callable[[tuple[str, ...]], Counting], compare: Comparison, values: dict[Place, float]
) -> None:
    steps = []
    for along in lines_of(values).values():
        known = [value for value in along if value is not None]
        for number in range(1, len(known)):
            steps.append(compare(known[number], known[number - 1]))
    assert count(SYSTEMS)(values) == (sum(steps), len(steps))


@pytest.mark.parametrize(
    ("count", "compare"), [(ends_higher, operator.gt), (ends_lower, operator.lt)]
)
@given(values=VALUES)
def test_ends_are_those_of_a_loop(
    count: Callable[[tuple[str, ...]], Counting], compare: Comparison, values: dict[Place, float]
) -> None:
    tests = []
    for along in lines_of(values).values():
        if len(along) > 1 and along[0] is not None and along[-1] is not None:
            tests.append(compare(along[-1], along[0]))
    assert count(SYSTEMS)(values) == (sum(tests), len(tests))


# --- text ---------------------------------------------------------------------------------------


def test_a_claim_names_the_papers_count_where_there_is_one() -> None:
    published = Claim("it rises", 1, 2, (2, 2))
    assert str(published) == "it rises: 1 of 2 (in the paper 2 of 2)"
    assert str(Claim("it rises", 1, 2)) == "it rises: 1 of 2"


def test_a_verdict_counts_statements_and_leaves_out_those_of_nothing() -> None:
    counts = [(3, 3), (2, 3), (1, 2), (0, 3), (0, 0)]
    claims = [Claim(f"c{n}", *count) for n, count in enumerate(counts)]
    assert summarize_claims("6 runs.", claims) == (
        "6 runs. Of the paper's statements (4) 1 held throughout, 1 in more than half of the "
        "places, 2 in half of them or fewer. C0: 3 of 3; c1: 2 of 3; c2: 1 of 2; c3: 0 of 3."
    )


def test_our_reading_is_no_statement_of_the_paper() -> None:
    stated = Claim("it rises", 1, 2)
    read_in = [
        Claim(text, *count, stated=False)
        for text, count in (("it shines", (2, 2)), ("it is loud", (0, 0)), ("it rests", (0, 1)))
    ]
    assert [each.stated for each in (stated, *read_in)] == [True, False, False, False]
    tally = (
        "Of the paper's statements (1) 0 held throughout, 0 in more than half of the places, 1 in "
        "half of them or fewer. It rises: 1 of 2."
    )
    ours = "Our reading, which the paper does not state so: It shines: 2 of 2; it rests: 0 of 1."
    assert (
        summarize_claims("1 run.", [read_in[0], stated, *read_in[1:]]) == f"1 run. {tally} {ours}"
    )
    assert summarize_claims("1 run.", read_in) == f"1 run. {ours}"
    assert summarize_claims("1 run.", read_in[1:2]) == "1 run."
