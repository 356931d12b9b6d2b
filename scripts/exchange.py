"""What the loop itself costs: an exchange in which nobody has anything to compute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.engine.algorithm import Algorithm, Crew
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientSide, ClientWork, Exchange, Figures, ServerWork, Task
from ccfcpp.engine.federation import Federation, in_process
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import pack
from ccfcpp.engine.transport import InProcess
from ccfcpp.models.state import ModelState
from scripts.timing import Seconds, timed

CLIENTS = 10
TENSORS, NUMBERS = 10, 256
"""A payload of ten float32 tensors of a kilobyte each."""
BOUND = 2.0
"""Milliseconds that an exchange may take on a machine with nothing else to do."""
NAME = "exchange of 10 kB over ten clients"
_WARMING = 20


@dataclass(frozen=True)
class Model:
    """What the server knows, what goes down and what comes up."""

    model: ModelState


EXCHANGE = Exchange("exchange", Model, Model)


class Sending(ClientWork[Model, Model]):
    """Clients send back what they received."""

    exchange = EXCHANGE

    def local_updates(
        self, task: Task, message: Model, clients: Sequence[Client], randomness: Randomness
    ) -> list[Model]:
        """The message, once for each client."""
        return [Model(message.model) for _ in clients]


class Averaging(Algorithm[Model], ServerWork[Model, Model, Model]):
    """One exchange a round, after which the server averages."""

    rounds = 10**9
    state_type = Model
    exchange = EXCHANGE

    def initial_state(self, randomness: Randomness) -> Model:
        """Ten tensors."""
        generator = randomness.generator("model")
        return Model({f"{n}": torch.rand(NUMBERS, generator=generator) for n in range(TENSORS)})

    def exchanges(self, number: int, state: Model) -> Sequence["Averaging"]:
        """The one there is."""
        return [self]

    def client_side(self, crew: Crew) -> ClientSide:
        """Echoes."""
        return ClientSide.of(Sending())

    def broadcast(self, state: Model) -> Model:
        """All of it."""
        return state

    def form(self, message: Model) -> Form:
        """That of the model."""
        return form_of(pack(message))

    def aggregate(
        self, state: Model, updates: Iterable[Model], randomness: Randomness
    ) -> tuple[Model, Figures]:
        """The mean."""
        average = ModelAverage()
        for update in updates:
            average.add(update.model, 1)
        return Model(average.result()), {}


def echoes() -> Federation[Model, InProcess]:
    """A federation that averages what it has sent."""
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    clients = [Client(number, f"client {number}", images) for number in range(CLIENTS)]
    memories = ClientMemories(torch.device("cpu"), budget=0)
    return in_process("echo", Averaging(), clients, Availability(), Randomness(0), memories)


def exchange(repeats: int) -> Seconds:
    """Seconds of exchanges that follow some others."""
    federation = echoes()
    state = federation.algorithm.initial_state(federation.randomness)
    seconds = [timed(lambda: federation.run_round(state, 0)) for _ in range(_WARMING + repeats)]
    return {NAME: seconds[_WARMING:]}
