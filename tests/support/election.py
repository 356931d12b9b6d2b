"""A small algorithm whose every number can be worked out by hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    ClientSide,
    ClientWork,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.payload import pack
from ccfcpp.engine.update_format import UpdateFormat, format_of


@dataclass(frozen=True)
class Mean:
    """What the server knows, and what goes down."""

    value: Tensor


@dataclass(frozen=True)
class Vote:
    """What comes up."""

    value: Tensor


VOTE = Exchange("vote", Mean, Vote, uses_memory=True)
HOPELESS = 99
"""A client that says itself that it has no update."""


class Voting(ClientWork[Mean, Vote]):
    """Each client votes old value + its number + noise of its own, and counts its votes."""

    exchange = VOTE
    cohort = 2

    def __init__(self, bad: dict[int, Tensor] | None = None) -> None:
        self.bad = bad or {}

    def local_updates(
        self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vote | RefusedUpdateError]:
        assert len(clients) <= self.cohort
        return [self._vote(message, c, randomness.of_client(c.id)) for c in clients]

    def _vote(
        self, message: Mean, client: Client, randomness: Randomness
    ) -> Vote | RefusedUpdateError:
        noise = torch.rand(2, generator=randomness.generator("noise"))
        client.memory = {"votes": client.memory.get("votes", torch.tensor(0)) + 1}
        if client.id == HOPELESS:
            return RefusedUpdateError("it has no vote")
        return Vote(self.bad.get(client.id, message.value + client.id + noise))


class Counting(ServerWork[Mean, Mean, Vote]):
    """The server takes the mean."""

    def __init__(self, exchange: Exchange[Mean, Vote] = VOTE) -> None:
        self.exchange = exchange

    def broadcast(self, state: Mean) -> Mean:
        return state

    def update_format(self, message: Mean) -> UpdateFormat:
        return format_of(pack(message))

    def aggregate(
        self, state: Mean, updates: Iterable[Vote], randomness: Randomness
    ) -> tuple[Mean, Metrics]:
        votes = [update.value for update in updates]
        return replace(state, value=torch.stack(votes).mean(dim=0)), {"votes": len(votes)}

    def local_model(self, update: Vote) -> dict[str, Tensor]:
        return {"vote": update.value}


class Election(Algorithm[Mean]):
    """A vote a round, and two of them in round 1."""

    state_type = Mean

    def __init__(self, rounds: int, bad: dict[int, Tensor] | None = None) -> None:
        self.rounds = rounds
        self.voting: Voting = Voting(bad)
        self.counting: Counting = Counting()

    def initial_state(self, randomness: Randomness) -> Mean:
        return Mean(torch.zeros(2))

    def exchanges(self, number: int, state: Mean) -> Sequence[Counting]:
        return [self.counting] * (2 if number == 1 else 1)

    def client_side(self, context: ClientContext) -> ClientSide:
        return ClientSide.of(self.voting)


def voters(*numbers: int) -> list[Client]:
    return [Client(n, f"client {n}", torch.zeros(1, 1, 2, 2, dtype=torch.uint8)) for n in numbers]


def noise(number: int, client: int) -> Tensor:
    """What a client adds to its vote in a round."""
    return torch.rand(2, generator=Randomness(0, number, client).generator("noise"))
