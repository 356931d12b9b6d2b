"""The loop, with a small algorithm whose every number can be worked out by hand."""

import re
import weakref
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import format_count
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, sort_by_size
from ccfcpp.engine.exchange import Metrics, RefusedUpdateError, Task
from tests.support.election import (
    HOPELESS,
    VOTE,
    Counting,
    Election,
    Mean,
    Vote,
    Voting,
    noise,
    voters,
)
from tests.support.federation import federated


def run(
    election: Election, who: list[Client], availability: Availability | None = None, seed: int = 0
) -> tuple[list[Mean], list[dict[str, object]]]:
    federation = federated("election", election, who, seed, availability)
    pairs = list(federation.run(election.initial_state(Randomness(seed))))
    return [state for state, _ in pairs], [vars(report) for _, report in pairs]


def test_a_round_by_hand() -> None:
    (state,), (report,) = run(Election(1), voters(3, 8))
    torch.testing.assert_close(state.value, 5.5 + (noise(0, 3) + noise(0, 8)) / 2)
    assert report["clients"] == [3, 8]
    assert report["bytes_down"] == report["bytes_up"] == 2 * 2 * 4
    assert report["figures"] == {"votes": 2}
    assert report["refused"] == {}


def test_a_round_may_hold_several_exchanges() -> None:
    _, reports = run(Election(2), voters(0, 1))
    assert [report["bytes_up"] for report in reports] == [16, 32]


def test_what_does_not_travel_needs_no_connection_and_counts_no_bytes() -> None:
    election = Election(1)
    election.voting.exchange = election.counting.exchange = replace(VOTE, travels=False)
    (state,), (report,) = run(election, voters(0, 1), Availability(dropout_rate=1.0))
    torch.testing.assert_close(state.value, 0.5 + (noise(0, 0) + noise(0, 1)) / 2)
    assert report["clients"] == [0, 1]
    assert report["bytes_down"] == report["bytes_up"] == 0


def test_a_run_ends_where_the_algorithm_has_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    election = Election(9)
    monkeypatch.setattr(election, "has_converged", lambda state: bool(state.value[0] > 1))
    states, reports = run(election, voters(0, 1))
    assert 1 < len(reports) < 9
    assert [bool(state.value[0] > 1) for state in states] == [False] * (len(states) - 1) + [True]


def test_the_order_of_the_clients_does_not_matter() -> None:
    first, _ = run(Election(3), voters(0, 1, 2, 3))
    second, _ = run(Election(3), voters(2, 0, 3, 1))
    assert all(torch.equal(a.value, b.value) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (torch.tensor([1.0, float("nan")]), "vote: value holds NaN or Inf"),
        (torch.tensor([float("inf"), 0.0]), "vote: value holds NaN or Inf"),
        (
            torch.zeros(3),
            r"vote: 'value' is torch.float32 \(3,\), expected torch.float32 \(2,\)",
        ),
        (torch.zeros(2, dtype=torch.int64), "torch.int64"),
    ],
)
def test_an_update_that_cannot_be_used_is_refused_and_the_round_goes_on(
    bad: Tensor, reason: str
) -> None:
    (state,), (report,) = run(Election(1, {1: bad}), voters(0, 1, 2))
    refused = report["refused"]
    assert isinstance(refused, dict)
    assert list(refused) == [1]
    (said,) = refused[1]
    assert re.search(reason, said)
    torch.testing.assert_close(state.value, 1 + (noise(0, 0) + noise(0, 2)) / 2)
    assert report["clients"] == [0, 1, 2]


def test_a_client_may_say_itself_that_it_has_no_update() -> None:
    who = voters(0, HOPELESS)
    (state,), (report,) = run(Election(1), who)
    assert report["refused"] == {HOPELESS: ["vote: it has no vote"]}
    assert (report["bytes_down"], report["bytes_up"]) == (16, 8)
    torch.testing.assert_close(state.value, noise(0, 0))


def test_what_a_refused_client_learnt_is_forgotten() -> None:
    election = Election(3, {1: torch.full((2,), float("nan"))})
    federation = federated("election", election, voters(0, 1))
    list(federation.run(election.initial_state(Randomness(0))))
    assert federation.transport.memories.take(0)["votes"] == 4  # Round 1 holds two exchanges.
    assert federation.transport.memories.take(1) == {}


def test_every_reason_of_a_round_is_kept() -> None:
    _, reports = run(Election(2, {1: torch.zeros(3)}), voters(0, 1))
    assert [len(r["refused"][1]) for r in reports if isinstance(r["refused"], dict)] == [1, 2]


NAN = torch.full((2,), torch.nan)


@pytest.mark.parametrize(
    ("election", "availability"),
    [(Election(1, {0: NAN}), Availability()), (Election(1), Availability(dropout_rate=1.0))],
)
def test_in_a_round_without_an_update_the_state_stays(
    election: Election, availability: Availability
) -> None:
    federation = federated("election", election, voters(0), 0, availability)
    state, report = federation.run_round(Mean(torch.zeros(2)), 0)
    assert torch.equal(state.value, torch.zeros(2))
    assert report.figures == {}


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("planned", [1, 9])
def test_a_run_ends_where_every_update_is_refused(planned: int, numbers: tuple[int, ...]) -> None:
    election = Election(planned, dict.fromkeys(numbers, NAN))
    rounds = federated("election", election, voters(*numbers)).run(Mean(torch.zeros(2)))
    seen = min(planned, 2)
    for _ in range(seen):  # The log has the rounds' reasons.
        assert next(rounds)[1].refused.keys() == set(numbers)
    wanted = f"of {format_count(len(numbers), 'client')}; client 0: vote: value holds NaN or Inf"
    with pytest.raises(FederationError, match=f"refused in round 1, {wanted}"):
        next(rounds)


@pytest.mark.parametrize("availability", [Availability(dropout_rate=0.6), Availability()])
def test_one_client_that_spoils_its_updates_ends_no_run(availability: Availability) -> None:
    """Also in rounds in which it is alone."""
    states, reports = run(Election(30, {0: NAN}), voters(0, 1, 2), availability)
    assert len(reports) == 30
    assert states[-1].value[0] != 0
    assert any(r["clients"] == [0] for r in reports) == bool(availability.dropout_rate)


@pytest.mark.parametrize(
    ("hopeless", "availability", "wanted"),
    [
        ((0, 1, 2), Availability(sample_fraction=0.4), "refused in round 1, of 1 client"),
        ((), Availability(dropout_rate=1.0), "no client has sent an update in any round"),
    ],
)
def test_a_run_of_which_no_update_is_taken_has_no_result(
    hopeless: tuple[int, ...], availability: Availability, wanted: str
) -> None:
    with pytest.raises(FederationError, match=wanted):
        run(Election(4, dict.fromkeys(hopeless, NAN)), voters(0, 1, 2), availability)


@pytest.mark.parametrize(("refused", "ends"), [((2,), False), ((2, 4), False), ((2, 3), True)])
def test_clients_may_begin_anew_in_the_middle_of_a_round(
    refused: tuple[int, ...], ends: bool
) -> None:
    class Restarting(Voting):
        def local_updates(
            self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
        ) -> list[Vote | RefusedUpdateError]:
            if task.round in refused:
                return [RefusedUpdateError("it has not begun this round") for _ in clients]
            return super().local_updates(task, message, clients, randomness)

    election = Election(6)
    election.voting = Restarting()
    with pytest.raises(FederationError, match="in round 3") if ends else nullcontext():
        assert len(run(election, voters(0, 1))[0]) == 6


def test_a_client_that_drops_out_is_missing_from_its_round_only() -> None:
    _, reports = run(Election(30), voters(0, 1, 2), Availability(dropout_rate=0.5))
    sizes = {len(who) for r in reports if isinstance(who := r["clients"], list)}
    assert sizes == {0, 1, 2, 3}


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped() -> None:
    availability = Availability(dropout_rate=0.3, sample_fraction=0.7)
    whole, _ = run(Election(6), voters(0, 1, 2, 3), availability)
    federation = federated("election", Election(6), voters(0, 1, 2, 3), 0, availability)
    rest = [state for state, _ in federation.run(whole[2], first_round=3)]
    assert all(torch.equal(a.value, b.value) for a, b in zip(whole[3:], rest, strict=True))


def test_a_look_at_a_local_model_is_no_part_of_the_rounds_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock on which a cohort works for 1 s, and a look takes 100 s."""
    seconds = 0.0
    seen: list[tuple[int, int]] = []

    class Slow(Voting):
        def local_updates(
            self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
        ) -> list[Vote | RefusedUpdateError]:
            nonlocal seconds
            seconds += 1
            return super().local_updates(task, message, clients, randomness)

    def look(number: int, client: int, model: dict[str, Tensor]) -> None:
        nonlocal seconds
        seconds += 100
        assert list(model) == ["vote"]
        seen.append((number, client))

    monkeypatch.setattr("ccfcpp.engine.federation.time", SimpleNamespace(monotonic=lambda: seconds))
    election = Election(2)
    election.voting = Slow({1: torch.full((2,), torch.nan)})
    federation = federated("election", election, voters(0, 1, 2, HOPELESS))
    federation.observer = look
    reports = [report for _, report in federation.run(Mean(torch.zeros(2)))]
    # Client 1 and the hopeless one are refused; round 1 holds two exchanges, of two cohorts each.
    assert seen == [(0, 0), (0, 2), (1, 0), (1, 2), (1, 0), (1, 2)]
    assert [report.seconds for report in reports] == [2, 4]


def test_updates_without_a_local_model_are_not_shown() -> None:
    class Secret(Counting):
        def local_model(self, update: Vote) -> None:  # type: ignore[override]
            return None

    election = Election(1)
    election.counting = Secret()
    federation = federated("election", election, voters(0, 1))
    federation.observer = lambda number, client, model: pytest.fail("shown")
    list(federation.run(Mean(torch.zeros(2))))


def test_clients_work_from_large_ones_to_small_ones() -> None:
    who = [Client(n, "", torch.zeros(size, 1, 2, 2)) for n, size in enumerate((3, 9, 9, 1, 5))]
    assert [member.id for member in sort_by_size(client.member for client in who)] == [
        1,
        2,
        4,
        0,
        3,
    ]
    cohorts: list[list[int]] = []

    class Noted(Voting):
        def local_updates(
            self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
        ) -> list[Vote | RefusedUpdateError]:
            cohorts.append([client.id for client in clients])
            return super().local_updates(task, message, clients, randomness)

    for order in (who, who[::-1]):
        for cohort in (2, 9):
            election = Election(1)
            election.voting = Noted()
            election.voting.cohort = cohort
            run(election, order)
    assert cohorts == [[1, 2], [4, 0], [3], [1, 2, 4, 0, 3]] * 2


def test_updates_are_aggregated_while_the_clients_work() -> None:
    """No more than a cohort's updates exist at a time, where the aggregation keeps none."""
    alive: set[int] = set()
    most = 0

    class Counted(Voting):
        def local_updates(
            self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
        ) -> list[Vote | RefusedUpdateError]:
            votes = super().local_updates(task, message, clients, randomness)
            for vote in votes:
                alive.add(id(vote))
                weakref.finalize(vote, alive.discard, id(vote))
            return votes

    class Running(Counting):
        def aggregate(
            self, state: Mean, updates: Iterable[Vote], randomness: Randomness
        ) -> tuple[Mean, Metrics]:
            nonlocal most
            total = torch.zeros(2)
            for update in updates:
                most = max(most, len(alive))
                total += update.value
            return Mean(total), {}

    election = Election(1)
    election.voting, election.counting = Counted(), Running()
    run(election, voters(*range(20)))
    assert 0 < most <= 4  # One cohort that is read, and the last of the one before.
