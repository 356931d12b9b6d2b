"""The clients of a deployed run, as recorded in the run's folder. This module needs no Flower."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import DataConfig, RunConfig, Tree
from ccfcpp.core.config_layers import merge
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.client import Member

_MANY, _SIDE, _LENGTH = 10_000, 64, 64
"""Assumed number of images of a client, image side in pixels, and vector length, for a dry run."""


@dataclass(frozen=True)
class Enrolment:
    """The clients of a run and its description, as saved for resuming the run.

    Attributes:
        run: Token (random identifier) of the run, by which clients find their local state.
        spec: Description of the run.
        members: The clients.
        seconds: Time of the fastest client's response to the first request, in seconds.
        skipped: Number of files that the clients have left out, such as unreadable ones.
        known: If the run continues a finished one: the number of its clients; else 0.
        sessions: How often the run was resumed.
    """

    run: str
    # In messages and in saved files its key is "charter".
    spec: Annotated[RunSpec, Field(alias="charter")]
    members: tuple[Member, ...]
    seconds: float
    skipped: int = 0
    known: int = 0
    sessions: int = 0

    @property
    def waits_for_newcomers(self) -> bool:
        """Whether the run continues a finished one and no new client has joined yet."""
        return len(self.members) == self.known

    def with_config(self, config: RunConfig) -> "Enrolment":
        """Return a copy whose description of the run has another configuration."""
        sent = first_spec(self.spec.command, config.model_dump(mode="json")).config
        return replace(self, spec=self.spec.model_copy(update={"config": sent}))

    def make_run(
        self, config: RunConfig, channel: Channel, enrol: "Enrol" = lambda: None
    ) -> DeployedRun:
        """Return the server side of the run with these clients.

        Args:
            config: Configuration of the run.
            channel: Connection to the clients.
            enrol: Returns a larger enrolment if clients have joined since the last call; else None.
        """

        def larger() -> DeployedRun | None:
            enrolment = enrol()
            return None if enrolment is None else enrolment.make_run(config, channel, enrol)

        return DeployedRun(
            config,
            self.spec,
            self.members,
            lambda spec, exchanges, device: Deployed(
                channel, spec, self.run, exchanges, device, self.sessions
            ),
            self.skipped,
            larger,
        )

    def save(self, path: Path) -> None:
        """Write the enrolment (clients and description of the run) to a file, as JSON."""
        write_atomically(path, _FILE.dump_json(self, by_alias=True, indent=2))

    @staticmethod
    def load(path: Path) -> "Enrolment":
        """Read an enrolment from its JSON file; raise ``UsageError`` if it cannot be read."""
        try:
            return _FILE.validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: start again with another --out") from error


Enrol = Callable[[], Enrolment | None]
_FILE = TypeAdapter(Enrolment)


def dry_run(config: RunConfig, command: str, clients: int) -> None:
    """Check a configuration by building a run with assumed clients, before any client is asked.

    Args:
        config: Configuration of the run.
        command: ``cluster`` or ``classify``.
        clients: Number of clients that would take part.

    Raises:
        UsageError: Settings do not fit the system or the number of clients, or the server's own
            images cannot be read.
    """
    data, usual = config.section(DataConfig), DataConfig()
    for name in ("skip", "max_pixels"):
        if (value := getattr(data, name)) != getattr(usual, name):
            raise UsageError(
                KeyValue(f"data.{name}", value),
                " has no effect over a network, where each owner says which files are read, as by "
                "--skip of join: leave it out",
            )
    side = data.image_size or _SIDE
    images, vectors = ((1, side, side), (3, side, side)), ((_LENGTH,),)
    takes = METHODS[config.method].takes if command == "cluster" else ("images",)
    refusals = []
    for shape in (*images * ("images" in takes), *vectors * ("vectors" in takes)):
        try:
            _dry_run(config, command, clients, shape)
        except UsageError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _dry_run(config: RunConfig, command: str, clients: int, shape: tuple[int, ...]) -> None:
    clusters = 0
    if config.availability.late:
        raise UsageError(
            "availability.late has no effect over a network, where clients come when they come: "
            "leave it out"
        )
    if isinstance(config, ClusterConfig):
        clusters = config.most_clusters(_MANY, classes=0)
        if not clusters:
            raise UsageError("clusters is not given: give --clusters")
        if config.data.newcomers:
            raise UsageError("data.newcomers is given by --from alone: leave it out")
    facts = {
        "image_shape": shape,
        "classes": ("0", "1"),
        "clusters": clusters,
        "samples": _MANY * clients,
        "clients": clients,
    }
    spec = first_spec(command, config.model_dump(mode="json")).model_copy(update=facts)
    members = tuple(Member(number, str(number), _MANY) for number in range(clients))
    run = Enrolment("", spec, members, 0.0).make_run(config, Channel(_NoClients()))
    run.algorithm.initial_state(run.randomness)


class _NoClients:
    """Link without clients, for a run that is built but never started."""

    def online(self) -> dict[str, int]:
        return {}

    def push(self, node: int, packet: Packet, seconds: float) -> None:
        pass

    def pull(self, ticket: str) -> None:
        pass


def first_spec(command: str, config: Tree) -> RunSpec:
    """Return the description of a run before the clients have sent facts on their images."""
    if encoder := config.get("data", {}).get("encoder"):
        # Without its path, since clients have their own.
        config = merge(config, {"data": {"encoder": EncoderName.parse(encoder).called}})
    return RunSpec.model_validate({"command": command, "config": config})
