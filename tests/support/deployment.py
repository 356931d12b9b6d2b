"""Clients on other machines, as far as can be told: a grid in memory, with real serialisation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ccfcpp.core.permissions import KINDS
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData
from ccfcpp.deployment.client.rules import Rules
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.messages import Request, Response, new_token
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.channel import Channel, Observer, Timeouts
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientSide
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.stages import Stage
from ccfcpp.engine.transport import InProcess
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ClientLevel, ImageLevel
from ccfcpp.privacy.noise.per_image_clipping import bounding_of
from ccfcpp.privacy.protection import Protection
from tests.support.federation import CPU

if TYPE_CHECKING:
    from ccfcpp.deployment.keys.roster import SignedRoster

RUN = "a" * 32
TESTED = 4
AT_ONCE = Timeouts(answer=0.0, poll=0.0, grace=60.0, linger=0.0)
"""Nothing is waited for: in memory an answer is there, or will not be."""


class Told(Observer):
    """Keeps what is told of clients."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.awaited: list[tuple[Sequence[str], float]] = []

    @property
    def lines(self) -> list[str]:
        return [f"{name}: {line}" for name, line in self.said]

    def on_answer(self, name: str, line: str) -> None:
        self.said.append((name, line))

    def on_linger(self, names: Sequence[str], seconds: float) -> None:
        self.awaited.append((names, seconds))


Tampering = Callable[[Packet], Packet | Undelivered | None]


@dataclass
class Grid:
    """A link to workers in this process.

    Attributes:
        workers: By their nodes' names.
        away: Names of the nodes that are not online.
        tampering: What happens to answers on their way, by the node's name; None for one that does
            not come.
        requests: All packets that went down, by the node's name.
    """

    workers: Mapping[str, Worker]
    away: set[str] = field(default_factory=set)
    tampering: dict[str, Tampering] = field(default_factory=dict)
    requests: list[tuple[str, Packet]] = field(default_factory=list)
    answers: dict[str, Packet | Undelivered] = field(default_factory=dict)

    @property
    def channel(self) -> Channel:
        """The way to the workers, on which nothing is waited for."""
        return Channel(self, AT_ONCE)

    def online(self) -> dict[str, int]:
        return {n: i for i, n in enumerate(self.workers) if n not in self.away}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        name = list(self.workers)[node]
        if name in self.away:
            return None
        # What arrives are other bytes.
        arrived = Packet(bytes(bytearray(packet.header)), bytes(bytearray(packet.payload)))
        self.requests.append((name, arrived))
        answer: Packet | Undelivered | None = self.workers[name].answer(arrived)
        if name in self.tampering:
            assert isinstance(answer, Packet)
            answer = self.tampering[name](answer)
        ticket = str(len(self.requests))
        if answer is not None:
            self.answers[ticket] = answer
        return ticket

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        return self.answers.pop(ticket, None)


def resent(worker: Worker, packet: Packet, **header: object) -> Packet:
    """The answer of a worker to a request that is sent again with another header."""
    changed = json.loads(packet.header) | {"nonce": new_token(), **header}
    return worker.answer(packet._replace(header=json.dumps(changed).encode()))


def greeted(worker: Worker, spec: RunSpec) -> Response:
    """The answer of a worker to the first message of a run."""
    request = Request(kind="hello", run=RUN, nonce=new_token(), spec=spec)
    return Response.read(worker.answer(Packet(request.to_json())).header)


def trusting(**rules: Any) -> Rules:
    """Rules of an owner who lets a server repeat what it asks, and know the draws."""
    return Rules(**{"accept": ("all",), "reproducible": True, **rules})


def worker_of(client: Client, folder: Path, classes: Sequence[str] = ()) -> Worker:
    """A worker with a client's images, whose owner allows everything.

    Where there are labels, the first images are there once more, for testing.
    """
    data = ImageData(client.name, client.images, client.labels, tuple(classes))
    if client.labels is not None:
        again = torch.cat([torch.arange(len(client)), torch.arange(min(len(client), TESTED))])
        test = torch.arange(len(again)) >= len(client)
        data = replace(data, values=client.images[again], labels=client.labels[again], test=test)
    rules = trusting(allow=KINDS, smallest_count=0)
    return Worker(lambda spec: data, folder / client.name, rules)


def introduced(grid: Grid, folder: Path) -> "SignedRoster":
    """Give the workers of a grid keys, and a roster that an authority has signed."""
    from ccfcpp.deployment.client.sums import Rosters
    from ccfcpp.deployment.keys.certificates import read_key
    from ccfcpp.deployment.keys.creation import make_authority, make_client, make_roster

    keys = folder / "keys"
    if not keys.exists():
        make_authority(keys, 1)
        for name in grid.workers:
            make_client(keys, name.replace(" ", "-"))
    roster, _ = make_roster(keys, keys / "roster")
    for name, worker in grid.workers.items():
        key = keys / "clients" / f"{name.replace(' ', '-')}.key"
        say = lambda line, worker=worker: worker.say(line)  # noqa: E731
        worker.rosters = Rosters(read_key(key), keys / "ca.crt", worker.folder / "rosters", say)
        worker.rosters.store(roster.content)
    return roster


def deployed(
    spec: RunSpec,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    folder: Path,
    availability: Availability | None = None,
) -> tuple[Federation[Any, Deployed], Grid]:
    """A server, and a worker for each client.

    Args:
        spec: What the clients are told.
        algorithm: The server's.
        clients: Images, names and, where the spec has classes, labels.
        folder: For the workers' files.
        availability: Who takes part.
    """
    grid = Grid({c.name: worker_of(c, folder, spec.classes) for c in clients})
    largest = max(map(len, clients))
    works = algorithm.client_side(ClientContext(largest, 1)).works
    exchanges = {name: work.exchange for name, work in works.items()}
    transport = Deployed(grid.channel, spec, RUN, exchanges, CPU)
    members = [client.member for client in clients]
    seed = Randomness(int(spec.config["seed"]))
    who = availability or Availability()
    return Federation(spec.method, algorithm, members, who, seed, transport), grid


def one_by_one(
    spec: RunSpec,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    availability: Availability | None = None,
    mechanism: ClientLevel | ImageLevel | None = None,
    least: int = 0,
) -> Federation[Any, Any]:
    """The same in one process: clients work by themselves, and no sum is formed before the server.

    Arguments are those of ``deployed``; secure sums and noise are the specification's.
    """
    seed = Randomness(int(spec.config["seed"]))
    alone = [Client(c.id, c.name, c.images, c.labels) for c in clients]
    privacy = PrivacyConfig.model_validate(spec.config.get("privacy", {}))
    fewest = max(least, privacy.smallest_count)
    context = ClientContext(max(map(len, clients)), 1, bounding_of(privacy), fewest)
    side, stages = algorithm.client_side(context), list[Stage]()
    if privacy.is_on:
        exchanges = [work.exchange for work in side.works.values()]
        protection = Protection(privacy, spec.method, exchanges, len(clients), mechanism)
        side, stages = ClientSide(protection.works(side.works), side.cohort), [protection.stage]
    transport = InProcess(alone, side, ClientMemories(CPU, 10**9), seed, merges=False)
    members = [client.member for client in clients]
    who = availability or Availability()
    return Federation(spec.method, algorithm, members, who, seed, transport, stages, mechanism)


def spec_of(config: Any, clients: Sequence[Client], **facts: Any) -> RunSpec:
    """What clients are told of a run."""
    command = "cluster" if hasattr(config, "clusters") else "classify"
    return RunSpec.model_validate(
        {
            "command": command,
            "config": config.model_dump(mode="json"),
            "image_shape": tuple(clients[0].images.shape[1:]),
            "samples": sum(map(len, clients)),
            "clients": len(clients),
            **facts,
        }
    )
