"""The clients of a deployed run, as the run's folder keeps them. It needs no Flower."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccfcpp.core.config import MethodConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.packet import Link
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.experiment import DeployedExperiment, make_experiment
from ccfcpp.deployment.server.handshake import Say, collect_facts, first_spec, full_spec
from ccfcpp.deployment.server.transport import Deployed, Timeouts, Watcher
from ccfcpp.engine.client import Member

_LOOK = 0.5
"""Seconds between checks for clients."""


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
        timeouts: Timeouts | None = None,
        watch: Watcher = lambda member, before, now: None,
    ) -> DeployedExperiment:
        """Return the experiment with these clients."""
        return make_experiment(
            config,
            self.spec,
            self.members,
            lambda exchanges, device: Deployed(
                link, self.spec, self.run, exchanges, device, timeouts, watch=watch
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
        """Read an enrolment from its JSON file.

        Raises:
            UsageError: The file is missing or damaged.
        """
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
    """Wait for clients, and ask what they hold.

    Args:
        link: The carrier of packets.
        config: The run's configuration.
        command: ``cluster`` or ``classify``.
        names: The admitted clients, in the order of their numbers.
        least: How many must be there; None for all.
        timeouts: How long a response may take.
        say: Called with news of a client.
    """
    run = new_token()
    first = first_spec(command, config.model_dump(mode="json"))
    least = least or len(names)
    facts, seconds = collect_facts(link, names, first, run, least, timeouts, say)
    spec = full_spec(first, facts.values(), getattr(config, "clusters", None))
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
