"""Cost of the engine's loop: an exchange in which no client computes anything."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientSide, ClientWork, Exchange, Figures, ServerWork, Task
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import pack
from ccfcpp.engine.transport import InProcess
from ccfcpp.models.state import ModelState
from scripts.timing import Seconds, timed

CLIENTS = 10
TENSORS, NUMBERS = 10, 256
"""The payload: ten float32 tensors of a kilobyte each."""
BOUND = 2.0
"""Milliseconds that an exchange may take on an idle machine."""
NAME = "exchange of 10 kB over ten clients"
_WARMING = 20


@dataclass(frozen=True)
class Model:
    """The state of the server, its message and a client's update."""

    model: ModelState


EXCHANGE = Exchange("exchange", Model, Model)


class Sending(ClientWork[Model, Model]):
    """Work of clients that send back what they received."""

    exchange = EXCHANGE

    def local_updates(
        self, task: Task, message: Model, clients: Sequence[Client], randomness: Randomness
    ) -> list[Model]:
        """Return the message, once for each client."""
        return [Model(message.model) for _ in clients]


class Averaging(Algorithm[Model], ServerWork[Model, Model, Model]):
    """An algorithm with one exchange a round, which averages the updates."""

    rounds = 10**9
    state_type = Model
    exchange = EXCHANGE

    def initial_state(self, randomness: Randomness) -> Model:
        """Return ten random tensors."""
        generator = randomness.generator("model")
        return Model({f"{n}": torch.rand(NUMBERS, generator=generator) for n in range(TENSORS)})

    def exchanges(self, number: int, state: Model) -> Sequence["Averaging"]:
        """Return the only exchange."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return work that sends back what it gets."""
        return ClientSide.of(Sending())

    def broadcast(self, state: Model) -> Model:
        """Return the whole state."""
        return state

    def form(self, message: Model) -> Form:
        """Return the form of the model."""
        return form_of(pack(message))

    def aggregate(
        self, state: Model, updates: Iterable[Model], randomness: Randomness
    ) -> tuple[Model, Figures]:
        """Return the mean of the models."""
        average = ModelAverage()
        for update in updates:
            average.add(update.model, 1)
        return Model(average.result()), {}


def echoes() -> Federation[Model, InProcess]:
    """Return a federation that averages what it has sent."""
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    clients = [Client(number, f"client {number}", images) for number in range(CLIENTS)]
    memories = ClientMemories(torch.device("cpu"), budget=0)
    algorithm, randomness = Averaging(), Randomness(0)
    side = algorithm.client_side(ClientContext.of(clients))
    transport = InProcess(clients, side, memories, randomness)
    members = [client.member for client in clients]
    return Federation("echo", algorithm, members, Availability(), randomness, transport)


def exchange(repeats: int) -> Seconds:
    """Measure exchanges after a warm-up, in seconds."""
    federation = echoes()
    state = federation.algorithm.initial_state(federation.randomness)
    seconds = [timed(lambda: federation.run_round(state, 0)) for _ in range(_WARMING + repeats)]
    return {NAME: seconds[_WARMING:]}
