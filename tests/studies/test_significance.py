"""Differences between cells of a study, against SciPy's p-values and Holm's rule step by step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ccfcpp.studies.significance import corrected_p_values, holm, paired_t

P_VALUES = st.dictionaries(st.integers(0, 20), st.floats(0, 1), max_size=8)


def rejected(p_values: dict[int, float], level: float) -> set[int]:
    """Holm's steps: the smallest is held against level / m, the next against level / (m − 1)."""
    found: set[int] = set()
    for place, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        if p_values[name] > level / (len(p_values) - place):
            break
        found.add(name)
    return found


@given(P_VALUES, st.floats(0.001, 0.999))
def test_corrected_p_values_reject_what_holms_steps_reject(
    p_values: dict[int, float], level: float
) -> None:
    corrected = holm(p_values)
    assert list(corrected) == list(p_values)
    clear = {name for name, p in corrected.items() if p < level * (1 - 1e-9)}
    near = {name for name, p in corrected.items() if p <= level * (1 + 1e-9)}
    assert clear <= rejected(p_values, level) <= near


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
def test_runs_are_paired_by_seed(pairs: list[tuple[float, float]]) -> None:
    first = {seed: a for seed, (a, _) in enumerate(pairs)}
    second = {seed: b for seed, (_, b) in reversed(list(enumerate(pairs)))}
    differences = [a - b for a, b in pairs]
    found = paired_t(first, second | {99: 0.5})
    assert found is not None
    mean = math.fsum(differences) / len(differences)
    spread = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (len(pairs) - 1))
    if spread > 1e-6:
        t = mean / (spread / math.sqrt(len(pairs)))
        assert found == pytest.approx(2 * stats.t.sf(abs(t), len(pairs) - 1), rel=1e-6, abs=1e-12)


def test_few_seeds_say_nothing_and_equal_runs_do_not_differ() -> None:
    same = {0: 0.5, 1: 0.25, 2: 0.75}
    assert paired_t({0: 0.1, 1: 0.2}, same) is None
    assert paired_t(same, same) == 1.0
    assert paired_t({seed: own + 0.25 for seed, own in same.items()}, same) == 0.0
    found = corrected_p_values({"a": same, "b": {0: 0.1}, "c": same}, "a")
    assert found == {"c": 1.0}
