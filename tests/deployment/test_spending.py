"""What a client counts of its privacy is never less than what it has cost."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.deployment.client.privacy_spent import FILE, Spending, SumCost, epsilon_spent
from ccfcpp.engine.exchange import Exchange, Images, Nothing
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.accountant import Release, epsilon_of_all

pytest.importorskip("dp_accounting")

DELTA = 1e-5
SHARES = {"large": 0.5, "small": 0.01}
PRIVACY = PrivacyConfig.model_validate({"level": "image", "noise": 4.0})


def part(steps: str, trip: int, run: str = "a") -> SumCost:
    exchange = Exchange(
        f"{steps}, trip {trip + 1}",
        Nothing,
        Nothing,
        images=Images(share=SHARES[steps]),
        follows=trip > 0,
    )
    return SumCost.of(run, PRIVACY, exchange)


def true_cost(asked: list[tuple[str, int]]) -> float:
    """Each first trip draws a sample, and the others are over the last one of the same steps."""
    open_steps: dict[str, list[int]] = {}
    samples: list[tuple[str, list[int]]] = []
    for steps, trip in asked:
        if trip == 0:
            open_steps[steps] = []
            samples.append((steps, open_steps[steps]))
        open_steps.setdefault(steps, []).append(trip)
    releases = Counter(Release(SHARES[steps], len(trips)) for steps, trips in samples)
    return epsilon_of_all({4.0: releases}, DELTA)


def test_steps_in_order_cost_what_their_samples_cost() -> None:
    asked = [("large", trip) for _ in range(3) for trip in range(4)]
    asked += [("small", trip) for trip in range(2)]
    assert epsilon_spent([part(*each) for each in asked], DELTA) == true_cost(asked)


def test_a_cheap_step_between_trips_makes_none_of_them_cheaper() -> None:
    asked = [each for trip in range(4) for each in (("large", trip), ("small", 0))]
    counted = epsilon_spent([part(*each) for each in asked], DELTA)
    assert counted >= true_cost(asked)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["large", "small"]), st.integers(0, 2)), max_size=8))
def test_no_order_of_requests_is_counted_too_low(asked: list[tuple[str, int]]) -> None:
    # A trip of steps that have not begun is refused, and gives nothing away.
    begun = {s: next((i for i, each in enumerate(asked) if each == (s, 0)), 99) for s in SHARES}
    answered = [each for i, each in enumerate(asked) if i >= begun[each[0]]]
    assert epsilon_spent([part(*each) for each in asked], DELTA) >= true_cost(answered) - 1e-6


def filled(folder: Path) -> Spending:
    spending = Spending(folder)
    for steps, trip in [("large", 0), ("large", 1), ("small", 0)]:
        spending.record(part(steps, trip), DELTA, None, None)
    return spending


@pytest.mark.parametrize("kept", [1, 20, 60, -1])
def test_a_line_that_was_cut_short_makes_nothing_cheaper(kept: int, tmp_path: Path) -> None:
    """As by a full disk: the client goes on, and no cut of the file's end lowers what is spent."""
    before = filled(tmp_path).epsilon(DELTA)
    path = tmp_path / FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:kept])
    again = Spending(tmp_path)
    spent = again.epsilon(DELTA)
    assert spent >= before
    assert again.epsilon(DELTA, "a") == spent
    again.record(part("small", 0, "b"), DELTA, None, None)
    assert Spending(tmp_path).epsilon(DELTA) == again.epsilon(DELTA) > spent
    assert all(json.loads(line)["noise"] == 4.0 for line in path.read_text().splitlines())


def test_a_first_line_that_was_cut_short_has_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"run": "a", "noi')
    spending = Spending(tmp_path)
    spending.record(part("large", 0), DELTA, None, None)
    assert Spending(tmp_path).epsilon(DELTA) == pytest.approx(true_cost([("large", 0)]), rel=1e-3)
