"""The clients of a deployed run: the handshake with them, and what the run's folder keeps.

It needs no Flower.
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccfcpp.core.config import MethodConfig, Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.deployment.link.messages import Request, new_token
from ccfcpp.deployment.link.packet import Link, Packet, Undelivered
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.experiment import (
    DeployedClassification,
    DeployedClustering,
    DeployedExperiment,
)
from ccfcpp.deployment.server.reception import Reception, Say
from ccfcpp.deployment.server.transport import Deployed, Timeouts, Watcher
from ccfcpp.engine.client import Member

_LOOK = 0.5
"""Seconds between checks for clients."""
_OF_THE_SERVER = ("dataset", "partition", "device", "tensorboard", "availability")
"""Settings that mean nothing to a client, such as paths on the server."""


@dataclass(frozen=True)
class Enrolment:
    """The clients of a run and what they were sent. A resumed run needs it.

    Attributes:
        run: Token of the run, which names the clients' memories.
        spec: Description of the run.
        members: The clients.
        seconds: Time of the quickest response in the handshake.
    """

    run: str
    spec: RunSpec
    members: tuple[Member, ...]
    seconds: float

    def with_config(self, config: MethodConfig) -> "Enrolment":
        """Return a copy whose clients are sent another configuration."""
        sent = first_spec(self.spec.command, config.model_dump(mode="json")).config
        return replace(self, spec=self.spec.model_copy(update={"config": sent}))

    def experiment(
        self,
        config: MethodConfig,
        link: Link,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - it cannot change
        watch: Watcher = lambda member, before, now: None,
    ) -> DeployedExperiment:
        """Return the experiment with these clients."""
        kinds = {"cluster": DeployedClustering, "classify": DeployedClassification}
        return kinds[self.spec.command](
            config,
            self.spec,
            self.members,
            lambda told, exchanges, device: Deployed(
                link, told, self.run, exchanges, device, timeouts, watch=watch
            ),
        )

    def save(self, path: Path) -> None:
        """Write the enrolment as JSON."""
        content = {
            "run": self.run,
            "charter": self.spec.model_dump(mode="json"),
            "members": [vars(member) for member in self.members],
            "seconds": self.seconds,
        }
        write_whole(path, json.dumps(content, indent=2).encode())

    @staticmethod
    def load(path: Path) -> "Enrolment":
        """Read an enrolment from its JSON file."""
        try:
            content = json.loads(path.read_bytes())
            members = tuple(Member(**member) for member in content["members"])
            spec = RunSpec.model_validate_json(json.dumps(content["charter"]))
            return Enrolment(str(content["run"]), spec, members, float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} cannot be read: start again with another --out") from error


def enrol(
    link: Link,
    config: MethodConfig,
    command: str,
    names: Sequence[str],
    least: int | None,
    timeouts: Timeouts,
    say: Say = lambda name, what: None,
) -> Enrolment:
    """Ask the admitted clients what they hold, until ``least`` can take part; None: all that can.

    Clients have their numbers in the order of ``names``; ``say`` is called with news of a client.
    """
    run = new_token()
    first = first_spec(command, config.model_dump(mode="json"))
    reception = Reception(names, least, say)
    seconds = _greet(link, reception, first, run, timeouts)
    facts = reception.admitted()
    spec = _full_spec(first, facts.values(), getattr(config, "clusters", None))
    members = [
        Member(number, name, facts[name].samples)
        for number, name in enumerate(names)
        if name in facts
    ]
    return Enrolment(run, spec, tuple(members), seconds)


def wait_for_clients(
    link: Link, enrolment: Enrolment, least: int | None, pause: float = _LOOK
) -> None:
    """Wait until the clients of a resumed run are there again."""
    names = {member.name for member in enrolment.members}
    wanted = min(least or len(names), len(names))
    while len(names & link.online().keys()) < wanted:
        time.sleep(pause)


def first_spec(command: str, config: Tree) -> RunSpec:
    """Return the description of a run before anything is known of the clients' images."""
    sent = {key: value for key, value in config.items() if key not in _OF_THE_SERVER}
    data = {key: value for key, value in sent.get("data", {}).items() if key != "root"}
    return RunSpec.model_validate({"command": command, "config": {**sent, "data": data}})


def _greet(link: Link, reception: Reception, spec: RunSpec, run: str, timeouts: Timeouts) -> float:
    """Ask all clients for their facts, as they come online, until the run can begin.

    There is no limit of time for that.

    Returns:
        The seconds of the quickest response.
    """
    asked: dict[str, tuple[Request, str, float]] = {}
    quickest = timeouts.answer
    while not reception.is_complete:
        online = link.online()
        for name in reception.waiting:
            if name in asked or name not in online:
                continue
            request = Request(kind="hello", run=run, nonce=new_token(), spec=spec)
            ticket = link.push(online[name], Packet(request.written()), timeouts.life)
            if ticket is not None:
                asked[name] = request, ticket, time.monotonic()
        for name, (request, ticket, since) in list(asked.items()):
            answer, seconds = link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < timeouts.answer:
                continue
            del asked[name]
            # A client without an answer is asked again.
            if answer is not None and not isinstance(answer, Undelivered):
                reception.take(name, request, answer)
                quickest = min(quickest, seconds)
        if reception.waiting:
            time.sleep(timeouts.poll)
    return quickest


def _full_spec(spec: RunSpec, facts: Iterable[Facts], clusters: int | None) -> RunSpec:
    """Complete the description of a run by what the clients hold; k by their classes, too."""
    known = list(facts)
    classes = sorted({name for each in known for name in each.classes})
    wanted = 0 if spec.command == "classify" else clusters or len(classes)
    if spec.command == "cluster" and wanted == 0:
        raise UsageError("clusters is not given and no client names its classes: give --clusters")
    completed = {
        "image_shape": known[0].image_shape,
        "columns": known[0].columns,
        "classes": tuple(classes),
        "clusters": wanted,
        "samples": sum(each.samples for each in known),
        "clients": len(known),
    }
    return spec.model_copy(update=completed)
