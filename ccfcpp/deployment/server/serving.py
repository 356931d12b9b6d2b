"""The server of ``ccfcpp serve``: it waits for clients and makes their experiment."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ccfcpp.core.config import MethodConfig
from ccfcpp.deployment.keys.roster import read_roster
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.packet import Link
from ccfcpp.deployment.link.sockets import FlowerLink, listen
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.experiment import DeployedExperiment, Exchanges, make_experiment
from ccfcpp.deployment.server.gate_server import GateSetting, open_gate
from ccfcpp.deployment.server.handshake import (
    Say,
    collect_facts,
    first_spec,
    full_spec,
    members_of,
)
from ccfcpp.deployment.server.super_link import ServerKeys, super_link
from ccfcpp.deployment.server.transport import Deployed, Timeouts, Watcher

_LOOK = 0.5
"""Seconds between checks for clients."""


def enrol(
    link: Link,
    config: MethodConfig,
    command: str,
    roster: Mapping[str, object],
    least: int | None,
    timeouts: Timeouts,
    say: Say,
) -> Enrolment:
    """Wait for clients, and ask what they hold.

    Args:
        link: The carrier of packets.
        config: The run's configuration.
        command: ``cluster`` or ``classify``.
        roster: The admitted clients by name, in the order of their numbers.
        least: How many must be there; None for all.
        timeouts: How long a response may take.
        say: Called with news of a client.
    """
    run, names = new_token(), list(roster)
    first = first_spec(command, config.model_dump(mode="json"))
    least = least or len(names)
    facts, seconds = collect_facts(link, names, first, run, least, timeouts, say=say)
    spec = full_spec(first, facts.values(), getattr(config, "clusters", None))
    numbers = {name: number for number, name in enumerate(names)}
    return Enrolment(run, spec, tuple(members_of(facts, numbers)), seconds)


def wait_for_clients(
    link: Link, enrolment: Enrolment, least: int | None, pause: float = _LOOK
) -> None:
    """Wait until the clients of a resumed run are there again.

    Args:
        link: The carrier of packets.
        enrolment: The clients of the run.
        least: How many must be there; None for all that took part.
        pause: Seconds between checks.
    """
    names = {member.name for member in enrolment.members}
    wanted = min(least or len(names), len(names))
    while len(names & link.online().keys()) < wanted:
        time.sleep(pause)


def experiment_for(
    enrolment: Enrolment, config: MethodConfig, link: Link, timeouts: Timeouts, watch: Watcher
) -> DeployedExperiment:
    """Return the experiment with the clients of a run.

    Args:
        enrolment: The clients.
        config: The run's configuration.
        link: The carrier of packets.
        timeouts: How long a response may take.
        watch: Called when a client's standing changes.
    """

    def connect(exchanges: Exchanges, device: torch.device) -> Deployed:
        return Deployed(
            link, enrolment.spec, enrolment.run, exchanges, device, timeouts, watch=watch
        )

    return make_experiment(config, enrolment.spec, enrolment.members, connect)


@contextmanager
def open_server(keys: Path, roster: Path, host: str, port: int, home: Path) -> Iterator[FlowerLink]:
    """Run a SuperLink behind the gate within the context.

    Args:
        keys: Folder of the server's keys.
        roster: Folder of the clients' public keys.
        host: Address on which the gate listens.
        port: Port on which the gate listens.
        home: Folder for the SuperLink's configuration and logs.

    Yields:
        The link to the clients.
    """
    files = ServerKeys.of(keys)
    read_roster(roster)
    # The path of a socket must be short.
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
