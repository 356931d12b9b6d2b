"""The server's side of ``ccfcpp serve``, from the files of a run to its results."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ccfcpp.core.config import MethodConfig
from ccfcpp.deployment.keys.roster import read_roster
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.processes import ServerKeys, super_link
from ccfcpp.deployment.link.sockets import FlowerLink, listen
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.experiment import DeployedExperiment, make_experiment
from ccfcpp.deployment.server.gate_server import GateSetting, open_gate
from ccfcpp.deployment.server.handshake import Say, collect_facts, first_spec, full_spec, members_of
from ccfcpp.deployment.server.transport import Deployed, Link, Timeouts, Watcher

_LOOK = 0.5
"""Seconds from one look for clients to the next."""


def enrol(
    link: Link,
    config: MethodConfig,
    command: str,
    roster: Mapping[str, object],
    least: int | None,
    timeouts: Timeouts,
    say: Say,
) -> Enrolment:
    """Wait for clients, and learn what they hold.

    Args:
        link: What carries packets.
        config: The run's configuration.
        command: ``cluster`` or ``classify``.
        roster: The clients that are admitted, by name, in the order of their numbers.
        least: How many must be there; all where it is None.
        timeouts: How long an answer may take.
        say: Takes what there is to say of a client.
    """
    run, names = new_token(), list(roster)
    first = first_spec(command, config.model_dump(mode="json"))
    facts, seconds = collect_facts(link, names, first, run, least or len(names), timeouts, say=say)
    spec = full_spec(first, facts.values(), getattr(config, "clusters", None))
    numbers = {name: number for number, name in enumerate(names)}
    return Enrolment(run, spec, tuple(members_of(facts, numbers)), seconds)


def wait_for_clients(
    link: Link, enrolment: Enrolment, least: int | None, pause: float = _LOOK
) -> None:
    """Wait until clients of a run that goes on are there again.

    Args:
        link: What carries packets.
        enrolment: The run's.
        least: How many must be there; all that took part where it is None.
        pause: Seconds from one look to the next.
    """
    names = {member.name for member in enrolment.members}
    wanted = min(least or len(names), len(names))
    while len(names & link.online().keys()) < wanted:
        time.sleep(pause)


def experiment_for(
    enrolment: Enrolment,
    config: MethodConfig,
    link: Link,
    timeouts: Timeouts,
    watch: Watcher,
) -> DeployedExperiment:
    """The experiment of a enrolment.

    Args:
        enrolment: Who takes part.
        config: The run's configuration.
        link: What carries packets.
        timeouts: How long an answer may take.
        watch: Called where a client's standing changes.
    """

    def connect(exchanges: Any, device: Any) -> Deployed:
        return Deployed(
            link, enrolment.spec, enrolment.run, exchanges, device, timeouts, watch=watch
        )

    return make_experiment(config, enrolment.spec, enrolment.members, connect)


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
        What carries packets.
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
