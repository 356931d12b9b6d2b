"""The server's side of ``ccfcpp serve``, from the files of a run to its results."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccfcpp.core.config import MethodConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.deployment.charter import Charter
from ccfcpp.deployment.envelope import new_token
from ccfcpp.deployment.experiment import DeployedExperiment, make_experiment
from ccfcpp.deployment.gate_server import GateSetting, open_gate
from ccfcpp.deployment.meeting import first_charter, full_charter, meet, members_of
from ccfcpp.deployment.processes import ServerKeys, super_link
from ccfcpp.deployment.roster import read_roster
from ccfcpp.deployment.sockets import FlowerLink, listen
from ccfcpp.deployment.transport import Deployed, Link, Patience, Standing
from ccfcpp.engine.client import Member

_LOOK = 0.5
"""Seconds from one look for clients to the next."""


@dataclass(frozen=True)
class Gathering:
    """Who takes part in a run; it stays with the run, so that it can go on.

    Attributes:
        run: The run's token, which names the clients' memories.
        charter: What clients are told.
        members: The clients.
    """

    run: str
    charter: Charter
    members: tuple[Member, ...]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        content = {
            "run": self.run,
            "charter": self.charter.model_dump(mode="json"),
            "members": [vars(member) for member in self.members],
        }
        write_whole(path, json.dumps(content, indent=2).encode())

    @staticmethod
    def load(path: Path) -> "Gathering":
        """Read it back.

        Raises:
            UsageError: It is missing or damaged.
        """
        try:
            content = json.loads(path.read_bytes())
            members = tuple(Member(**member) for member in content["members"])
            charter = Charter.model_validate_json(json.dumps(content["charter"]))
            return Gathering(str(content["run"]), charter, members)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} cannot be read: start again with another --out") from error


def gather(
    link: Link,
    config: MethodConfig,
    command: str,
    roster: Mapping[str, object],
    least: int | None,
    patience: Patience,
    say: Callable[[str], None],
) -> Gathering:
    """Wait for clients, and learn what they hold.

    Args:
        link: What carries parcels.
        config: The run's configuration.
        command: ``cluster`` or ``classify``.
        roster: The clients that are admitted, by name, in the order of their numbers.
        least: How many must be there; all where it is None.
        patience: How long an answer may take.
        say: Takes a line about each.
    """
    run, names = new_token(), list(roster)
    first = first_charter(command, config.model_dump(mode="json"))
    facts = meet(link, names, first, run, least or len(names), patience, say=say)
    charter = full_charter(first, facts.values(), getattr(config, "clusters", None))
    numbers = {name: number for number, name in enumerate(names)}
    return Gathering(run, charter, tuple(members_of(facts, numbers)))


def wait_for_clients(
    link: Link, gathering: Gathering, least: int | None, pause: float = _LOOK
) -> None:
    """Wait until clients of a run that goes on are there again.

    Args:
        link: What carries parcels.
        gathering: The run's.
        least: How many must be there; all that took part where it is None.
        pause: Seconds from one look to the next.
    """
    names = {member.name for member in gathering.members}
    wanted = min(least or len(names), len(names))
    while len(names & link.online().keys()) < wanted:
        time.sleep(pause)


def experiment_for(
    gathering: Gathering,
    config: MethodConfig,
    link: Link,
    patience: Patience,
    say: Callable[[str], None],
) -> DeployedExperiment:
    """The experiment of a gathering; who comes, goes and is late is said."""

    def watch(member: Member, before: Standing, now: Standing) -> None:
        if {before, now} & {"away", "late"} and now != "training":
            say(f"{member.name} is {now}" if now != "waiting" else f"{member.name} is there")

    def connect(exchanges: Any, device: Any) -> Deployed:
        return Deployed(
            link, gathering.charter, gathering.run, exchanges, device, patience, watch=watch
        )

    return make_experiment(config, gathering.charter, gathering.members, connect)


@contextmanager
def open_server(keys: Path, roster: Path, host: str, port: int, home: Path) -> Iterator[FlowerLink]:
    """A SuperLink behind the gate, for as long as the context lasts.

    Args:
        keys: Folder of the server's keys.
        roster: Folder of the clients' public keys.
        host: Where the gate listens.
        port: On which port.
        home: For the SuperLink's configuration and logs.

    Yields:
        What carries parcels.
    """
    files = ServerKeys.of(keys)
    read_roster(roster)
    # A path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ccfcpp-") as place:
        path = Path(place) / "server"
        with listen(path) as listener, super_link(home, files, roster, path) as behind:
            setting = GateSetting(host, port, files.certificate, files.key, files.authority, behind)
            with open_gate(setting):
                link = FlowerLink(listener)
                try:
                    yield link
                finally:
                    link.close()
