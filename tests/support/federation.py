"""Federations in this process, and transports that do to them what networks do."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_origin

import torch
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import ClientSide, RefusedUpdateError, ServerWork, Task
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.transport import InProcess, Reply, Transport

CPU = torch.device("cpu")


def federated(
    system: str,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    seed: int = 0,
    availability: Availability | None = None,
    memories: ClientMemories | None = None,
) -> Federation[Any, InProcess]:
    """All clients in this process."""
    availability, randomness = availability or Availability(), Randomness(seed)
    memories = memories or ClientMemories(CPU, budget=10**9)
    side = algorithm.client_side(ClientContext.of(clients, availability.invited(len(clients))))
    transport = InProcess(clients, side, memories, randomness, varies=availability.varies)
    members = [client.member for client in clients]
    return Federation(system, algorithm, members, availability, randomness, transport)


# --- the loop with one update -------------------------------------------------------------------


class _Given:
    """A transport whose only client has sent something already."""

    def __init__(self, update: object) -> None:
        self.update = update

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        for member in members:
            yield Reply(member.id, self.update)

    def save(self) -> dict[int, str]:
        return {}

    def restore(self, versions: Mapping[int, str]) -> None: ...

    def settle(self) -> None: ...


class _Once(Algorithm[Any]):
    """A single exchange."""

    rounds = 1
    state_type = object

    def __init__(self, work: ServerWork[Any, Any, Any]) -> None:
        self.work = work

    def initial_state(self, randomness: Randomness) -> object:
        raise NotImplementedError

    def exchanges(self, number: int, state: object) -> Sequence[ServerWork[Any, Any, Any]]:
        return [self.work]

    def client_side(self, context: ClientContext) -> ClientSide:
        raise NotImplementedError


def refusal(
    work: ServerWork[Any, Any, Any], state: Any, update: object, samples: int = 1
) -> str | None:
    """Why the loop refuses an update of a client with so many samples; None where it does not."""
    members, given = [Member(0, "client 0", samples)], _Given(update)
    federation: Federation[Any, _Given] = Federation(
        "test", _Once(work), members, Availability(), Randomness(0), given
    )
    _, report = federation.run_round(state, 0)
    reasons = report.refused.get(0, [])
    assert len(reasons) <= 1
    return reasons[0] if reasons else None


# --- another process ----------------------------------------------------------------------------


class Wire:
    """Clients of another process, as far as can be told: all that reaches them is bytes.

    Args:
        far: What is at the other end.
        side: The work that is done there.
    """

    def __init__(self, far: InProcess, side: ClientSide) -> None:
        self.far = far
        self.side = side
        self.save, self.restore, self.settle = far.save, far.restore, far.settle

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        there = Task(**json.loads(json.dumps(asdict(task))))
        exchange = self.side.works[there.exchange].exchange
        assert type(message) is (get_origin(exchange.message) or exchange.message)
        for reply in self.far.deliver(there, as_sent(exchange.message, message), members):
            if isinstance(reply.update, RefusedUpdateError):
                yield replace(reply, update=RefusedUpdateError(str(reply.update)))
            else:
                assert type(reply.update) is exchange.update
                yield replace(reply, update=as_sent(exchange.update, reply.update))


def as_sent(kind: type[Any], payload: object) -> object:
    """What arrives where a payload is sent as bytes, and its type is known."""
    # Tensors may be views into one memory; each goes by itself.
    content = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in pack(payload).items()
    }
    arrived = {name: tensor.clone() for name, tensor in load(save(content)).items()}
    received: object = unpack(kind, arrived)
    return received


def over_a_wire(
    system: str,
    here: Algorithm[Any],
    there: Algorithm[Any],
    clients: Sequence[Client],
    seed: int = 0,
) -> Federation[Any, Wire]:
    """A server with one algorithm, and clients with another that was made for itself.

    Args:
        system: The algorithms' name.
        here: The server's.
        there: The clients', from the same configuration.
        clients: The clients.
        seed: Of all random numbers.
    """
    side = there.client_side(ClientContext.of(clients))
    memories = ClientMemories(CPU, budget=10**9)
    wire = Wire(InProcess(clients, side, memories, Randomness(seed)), side)
    members = [client.member for client in clients]
    return Federation(system, here, members, Availability(), Randomness(seed), wire)


def assert_same_state(state: object, other: object) -> None:
    """Two states are of one type, and hold the same tensors, to the bit."""
    assert type(state) is type(other)
    tensors, others = pack(state), pack(other)
    assert tensors.keys() == others.keys()
    assert [name for name in others if not torch.equal(tensors[name], others[name])] == []


def assert_same_bits(
    found: Sequence[tuple[Any, RoundReport]], expected: Sequence[tuple[Any, RoundReport]]
) -> None:
    """Rounds came to the same states and said the same, but for the seconds they took."""
    for (state, report), (other, other_report) in zip(found, expected, strict=True):
        assert_same_state(state, other)
        assert replace(report, seconds=0.0) == replace(other_report, seconds=0.0)


# --- faults -------------------------------------------------------------------------------------

Fault = Callable[[Reply], Reply]


@dataclass
class Faulty:
    """A transport that does something to the replies of some clients.

    Attributes:
        whole: One in which nothing goes wrong.
        faults: What happens, by the client's number.
    """

    whole: Transport
    faults: Mapping[int, Fault] = field(default_factory=dict)

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        for reply in self.whole.deliver(task, message, members):
            fault = self.faults.get(reply.client)
            yield reply if fault is None else fault(reply)

    def save(self) -> Mapping[int, str]:
        return self.whole.save()

    def restore(self, versions: Mapping[int, str]) -> None:
        self.whole.restore(versions)

    def settle(self) -> None:
        self.whole.settle()


def lost(reply: Reply) -> Reply:
    """The client has worked, and nothing has come back in time."""
    return replace(reply, update=RefusedUpdateError("no answer within 5 s"))


def not_finite(reply: Reply) -> Reply:
    """Its numbers are NaN."""
    return _changed(reply, lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t)


def of_wrong_shape(reply: Reply) -> Reply:
    """Each tensor has an axis too many."""
    return _changed(reply, lambda tensor: tensor.unsqueeze(0))


@dataclass(frozen=True)
class Gibberish:
    """What no exchange knows."""

    noise: Tensor


def of_wrong_type(reply: Reply) -> Reply:
    """Something else arrives."""
    return replace(reply, update=Gibberish(torch.zeros(3)))


def never_accepted(reply: Reply) -> Reply:
    """The word that the server has accepted it does not arrive."""
    return replace(reply, accept=lambda: None)


@dataclass
class Late:
    """The word that the server has accepted it arrives when ``arrive`` is called."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    def __call__(self, reply: Reply) -> Reply:
        return replace(reply, accept=lambda: self.waiting.append(reply.accept))

    def arrive(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def _changed(reply: Reply, change: Callable[[Tensor], Tensor]) -> Reply:
    tensors = {name: change(tensor) for name, tensor in pack(reply.update).items()}
    return replace(reply, update=unpack(type(reply.update), tensors))
