"""How tasks reach clients, and what becomes of the round where they do not."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import pytest
import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AbsentClientError,
    ClientSide,
    Exchange,
    Nothing,
    RefusedUpdateError,
    SummedWork,
    Task,
)
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import InProcess, Reply
from ccfcpp.engine.update_format import Sum
from tests.support.election import HOPELESS, Election, Mean, Vote, noise, voters
from tests.support.federation import (
    CPU,
    Fault,
    Faulty,
    Late,
    lost,
    never_accepted,
    not_finite,
    of_wrong_shape,
    of_wrong_type,
    over_a_wire,
)

TASK = Task("election", "vote", 3, 1)


def in_process(election: Election, clients: Sequence[Client]) -> InProcess:
    memories = ClientMemories(CPU, budget=10**9)
    side = election.client_side(ClientContext.of(clients))
    return InProcess(clients, side, memories, Randomness(0))


def votes(transport: InProcess, client: int) -> int:
    """How often a client remembers to have voted."""
    return int(transport.memories.take(client).get("votes", torch.tensor(0)))


# --- tasks --------------------------------------------------------------------------------------


def test_a_task_survives_json() -> None:
    assert Task(**json.loads(json.dumps(asdict(TASK)))) == TASK


# --- the clients of this process ----------------------------------------------------------------


def test_replies_come_in_the_order_in_which_the_members_were_given() -> None:
    clients = voters(0, 1, 2, 3, 4)
    transport = in_process(Election(1), clients)
    for order in ([4, 0, 3, 1, 2], [2, 1], [3]):
        members = [clients[number].member for number in order]
        replies = list(transport.deliver(TASK, Mean(torch.zeros(2)), members))
        assert [reply.client for reply in replies] == order
        for reply in replies:
            assert isinstance(reply.update, Vote)
            torch.testing.assert_close(reply.update.value, reply.client + noise(3, reply.client))


def test_a_memory_moves_on_only_where_the_update_was_accepted() -> None:
    clients = voters(0, 1, HOPELESS)
    transport = in_process(Election(1), clients)
    members = [client.member for client in clients]

    def replies() -> list[Reply]:
        return list(transport.deliver(TASK, Mean(torch.zeros(2)), members))

    for reply in replies():
        reply.accept()
    assert [votes(transport, number) for number in (0, 1, HOPELESS)] == [1, 1, 1]
    first, _, refusal = replies()
    assert isinstance(refusal.update, RefusedUpdateError)
    assert [votes(transport, number) for number in (0, 1, HOPELESS)] == [1, 1, 1]
    first.accept()
    assert [votes(transport, number) for number in (0, 1, HOPELESS)] == [2, 1, 1]
    # Whoever was not accepted has forgotten its second vote, and votes for the second time.
    for reply in replies():
        reply.accept()
    assert [votes(transport, number) for number in (0, 1, HOPELESS)] == [3, 2, 2]


def test_an_idle_client_holds_no_memory_but_the_kept_one() -> None:
    clients = voters(0)
    transport = in_process(Election(1), clients)
    for reply in transport.deliver(TASK, Mean(torch.zeros(2)), [clients[0].member]):
        assert clients[0].memory == {}
        reply.accept()
        assert clients[0].memory == {}


def test_versions_are_named_by_round_and_exchange() -> None:
    transport = in_process(Election(1), voters(0, 1))
    members = [client.member for client in voters(0, 1)]
    for reply in transport.deliver(TASK, Mean(torch.zeros(2)), members):
        reply.accept()
    assert transport.save() == {n: f"client-{n}-version-3.1.safetensors" for n in (0, 1)}


@dataclass(frozen=True)
class Total:
    """What adds up."""

    number: Tensor


class Totals(SummedWork[Nothing, Total]):
    """Sums, of which some notes say for how many clients each was asked for."""

    exchange = Exchange("totals", Nothing, Total, {"number": Sum()})

    def __init__(self) -> None:
        self.notes: list[int] = []

    def local_sum(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> Total:
        self.notes.append(len(clients))
        return Total(torch.tensor(float(len(clients))))


def test_sums_of_single_clients_are_formed_as_they_are_wanted() -> None:
    """No more than one of them is held where all clients together would be a single sum."""
    clients, memories = voters(0, 1, 2), ClientMemories(CPU, budget=0)
    members = [client.member for client in clients]
    for merges in (True, False):
        work = Totals()
        transport = InProcess(clients, ClientSide.of(work), memories, Randomness(0), merges)
        task = Task("sums", "totals", 0, 0)
        formed = [len(work.notes) for _ in transport.deliver(task, Nothing(), members)]
        assert formed == ([1] if merges else [1, 2, 3])
        assert work.notes == ([3] if merges else [1, 1, 1])


# --- faults -------------------------------------------------------------------------------------


def run(
    faults: dict[int, Fault], rounds: int = 2
) -> tuple[list[Mean], list[RoundReport], InProcess]:
    """An election of four clients in which something goes wrong with some replies."""
    election, clients = Election(rounds), voters(0, 1, 2, 3)
    whole = in_process(election, clients)
    federation = Federation(
        "election",
        election,
        [client.member for client in clients],
        Availability(),
        Randomness(0),
        Faulty(whole, faults),
    )
    ran = list(federation.run(election.initial_state(Randomness(0))))
    return [state for state, _ in ran], [report for _, report in ran], whole


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lost, "vote: no answer within 5 s"),
        (not_finite, "vote: value holds NaN or Inf"),
        (
            of_wrong_shape,
            "vote: 'value' is torch.float32 (1, 2), expected torch.float32 (2,)",
        ),
        (of_wrong_type, "vote: it is a Gibberish, expected a Vote"),
    ],
)
def test_the_round_goes_on_without_a_reply_that_cannot_be_used(fault: Fault, reason: str) -> None:
    states, reports, whole = run({2: fault})
    mean = (0 + 1 + 3 + noise(0, 0) + noise(0, 1) + noise(0, 3)) / 3
    torch.testing.assert_close(states[0].value, mean)
    assert "\n" not in reason
    # Round 1 holds two exchanges.
    assert [report.refused for report in reports] == [{2: [reason]}, {2: [reason, reason]}]
    assert [report.clients for report in reports] == [[0, 1, 2, 3]] * 2
    assert [votes(whole, number) for number in range(4)] == [3, 3, 0, 3]


def test_nothing_that_comes_up_is_not_counted_and_what_cannot_be_used_is() -> None:
    assert [report.bytes_up for report in run({2: lost}, 1)[1]] == [3 * 8]
    assert [report.bytes_up for report in run({2: not_finite}, 1)[1]] == [4 * 8]


def test_every_client_may_fail_in_a_round_and_the_state_stays() -> None:
    election, clients = Election(1), voters(0, 1)
    whole = in_process(election, clients)
    faulty = Faulty(whole, dict.fromkeys(range(2), lost))
    members = [client.member for client in clients]
    federation = Federation("election", election, members, Availability(), Randomness(0), faulty)
    state, report = federation.run_round(election.initial_state(Randomness(0)), 0)
    assert torch.equal(state.value, torch.zeros(2))
    assert list(report.refused) == [0, 1]
    assert whole.save() == {}


def test_a_client_that_does_not_hear_of_it_keeps_its_old_memory() -> None:
    """Its update counts all the same: the server has it."""
    (state,), (report,), whole = run({2: never_accepted}, 1)
    (expected,), _, _ = run({}, 1)
    assert torch.equal(state.value, expected.value)
    assert report.refused == {}
    assert [votes(whole, number) for number in range(4)] == [1, 1, 0, 1]


def test_word_that_comes_late_moves_the_memory_on_when_it_comes() -> None:
    late = Late()
    *_, whole = run({2: late}, 1)
    assert votes(whole, 2) == 0
    late.arrive()
    assert votes(whole, 2) == 1


# --- another process ----------------------------------------------------------------------------


def test_over_a_wire_an_election_is_the_same() -> None:
    """And what a client says of itself arrives as text."""
    clients = voters(0, 1, 2, HOPELESS)
    whole = Election(3)
    expected = [
        (state.value, report.refused, report.bytes_up)
        for state, report in Federation(
            "election",
            whole,
            [client.member for client in clients],
            Availability(),
            Randomness(0),
            in_process(whole, clients),
        ).run(Mean(torch.zeros(2)))
    ]
    wired = over_a_wire("election", Election(3), Election(3), voters(0, 1, 2, HOPELESS))
    found = list(wired.run(Mean(torch.zeros(2))))
    for (state, report), (value, refused, bytes_up) in zip(found, expected, strict=True):
        assert torch.equal(state.value, value)
        assert (report.refused, report.bytes_up) == (refused, bytes_up)
        assert refused[HOPELESS][0] == "vote: it has no vote"


def test_who_does_not_answer_is_absent_and_not_refused() -> None:
    def gone(reply: Reply) -> Reply:
        return replace(reply, update=AbsentClientError("it is not online"))

    states, reports, whole = run({2: gone}, 2)
    mean = (0 + 1 + 3 + noise(0, 0) + noise(0, 1) + noise(0, 3)) / 3
    torch.testing.assert_close(states[0].value, mean)
    why = "vote: it is not online"
    assert [report.absent for report in reports] == [{2: [why]}, {2: [why, why]}]
    assert [report.refused for report in reports] == [{}, {}]
    assert [report.clients for report in reports] == [[0, 1, 3]] * 2
    assert [report.bytes_down for report in reports] == [3 * 8, 2 * 3 * 8]
    assert votes(whole, 2) == 0


def test_a_log_speaks_of_absences_only_where_there_are_any() -> None:
    assert "absent" not in RoundReport(0, []).line()
    assert RoundReport(0, [], absent={1: ["vote: late"]}).line()["absent"] == {1: ["vote: late"]}


def test_a_task_counts_the_samples_of_those_that_are_asked_and_answered_last() -> None:
    """Client 2 is lost in round 0 and is back in round 1, in which it counts again from then on."""
    told: list[tuple[int, int]] = []

    class Noted(InProcess):
        def deliver(
            self, task: Task, message: object, members: Sequence[Member]
        ) -> Iterator[Reply]:
            told.append((task.round, task.samples))
            for reply in super().deliver(task, message, members):
                gone = task.round == 0 and reply.client == 2
                yield replace(reply, update=AbsentClientError("away")) if gone else reply

    clients, election = voters(0, 1, 2), Election(3)
    for client in clients:
        client.images = torch.zeros(10 + client.id, 1, 2, 2, dtype=torch.uint8)
    memories = ClientMemories(CPU, budget=10**9)
    side = election.client_side(ClientContext.of(clients))
    transport = Noted(clients, side, memories, Randomness(0))
    members = [client.member for client in clients]
    everyone, start = Availability(), Mean(torch.zeros(2))
    parts = "election", election, members, everyone, Randomness(0), transport
    for _ in Federation(*parts).run(start):
        pass
    assert told == [(0, 33), (1, 21), (1, 21), (2, 33)]

    class Budget:
        def allows(self, works: object) -> bool:
            return True

        def begins(self, number: int, works: object) -> None:
            pass

        def figures(self) -> dict[str, float]:
            return {}

    # With noise nobody is told who else takes part.
    told.clear()
    Federation(*parts, guard=Budget()).run_round(start, 0)
    assert told == [(0, 0)]
