"""The clients of a deployed run: the handshake with them, and what the run's folder keeps.

It needs no Flower.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import DataConfig, MethodConfig, Tree
from ccfcpp.core.config_layers import merge
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.data.sizes import settled
from ccfcpp.deployment.link.messages import new_token
from ccfcpp.deployment.link.packet import Nobody
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.admission import Admission
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.handshake import Handshake
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.client import Member

if TYPE_CHECKING:
    from ccfcpp.deployment.keys.roster import SignedRoster

_MANY, _SIDE, _LENGTH = 10_000, 64, 64
"""Images of a client, pixels a side and numbers of a vector, before anything is known of them."""


@dataclass(frozen=True)
class Enrolment:
    """The clients of a run and what they were sent. A resumed run needs it.

    Attributes:
        run: Token of the run, which names the clients' memories.
        spec: Description of the run.
        members: The clients.
        seconds: Time of the quickest response in the handshake.
        skipped: Number of files that the clients leave out.
        known: Of a run that goes on from a finished one: how many clients that one had; else 0.
        sessions: How often the run was resumed.
    """

    run: str
    spec: RunSpec
    members: tuple[Member, ...]
    seconds: float
    skipped: int = 0
    known: int = 0
    sessions: int = 0

    @property
    def waits_for_newcomers(self) -> bool:
        """Whether it goes on from a finished run, and no new client has come."""
        return len(self.members) == self.known

    def with_config(self, config: MethodConfig) -> "Enrolment":
        """Return a copy whose clients are sent another configuration."""
        sent = first_spec(self.spec.command, config.model_dump(mode="json")).config
        return replace(self, spec=self.spec.model_copy(update={"config": sent}))

    def begun(
        self, config: MethodConfig, channel: Channel, come: "Come" = lambda: None
    ) -> DeployedRun:
        """Return the run with these clients.

        ``come`` gives the enrolment with the clients that have come since the last call, if any.
        """

        def larger() -> DeployedRun | None:
            found = come()
            return None if found is None else found.begun(config, channel, come)

        return DeployedRun(
            config,
            self.spec,
            self.members,
            lambda told, exchanges, device: Deployed(
                channel, told, self.run, exchanges, device, self.sessions
            ),
            self.skipped,
            larger,
        )

    def save(self, path: Path) -> None:
        """Write the enrolment as JSON."""
        content = {
            "run": self.run,
            "charter": self.spec.model_dump(mode="json"),
            "members": [vars(member) for member in self.members],
            "seconds": self.seconds,
            "skipped": self.skipped,
            "known": self.known,
            "sessions": self.sessions,
        }
        write_whole(path, json.dumps(content, indent=2).encode())

    @staticmethod
    def load(path: Path) -> "Enrolment":
        """Read an enrolment from its JSON file."""
        try:
            content = json.loads(path.read_bytes())
            members = tuple(Member(**member) for member in content["members"])
            spec = RunSpec.model_validate_json(json.dumps(content["charter"]))
            counts = (int(content.get(name, 0)) for name in ("skipped", "known", "sessions"))
            seconds = float(content["seconds"])
            return Enrolment(str(content["run"]), spec, members, seconds, *counts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} cannot be read: start again with another --out") from error


Come = Callable[[], Enrolment | None]


def rehearse(config: MethodConfig, command: str, clients: int) -> None:
    """Refuse a run that would fit no clients, before any of them is asked.

    Args:
        config: Of the run.
        command: What the clients learn.
        clients: How many would take part.

    Raises:
        UsageError: Settings do not fit the system or the number of clients, or the server's own
            images cannot be read.
    """
    side = config.section(DataConfig).image_size or _SIDE
    images, vectors = ((1, side, side), (3, side, side)), ((_LENGTH,),)
    takes = METHODS[config.method].takes if command == "cluster" else ("images",)
    refusals = []
    for shape in (*images * ("images" in takes), *vectors * ("vectors" in takes)):
        try:
            _rehearse(config, command, clients, shape)
        except UsageError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _rehearse(config: MethodConfig, command: str, clients: int, shape: tuple[int, ...]) -> None:
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
    run = Enrolment("", spec, members, 0.0).begun(config, Channel(Nobody()))
    run.algorithm.initial_state(run.randomness)


def enrol(
    channel: Channel,
    config: MethodConfig,
    command: str,
    names: Sequence[str],
    least: int | None,
    roster: "SignedRoster | None" = None,
) -> Enrolment:
    """Ask the admitted clients what they hold, until ``least`` can take part; None: all that can.

    Clients have their numbers in the order of ``names``. With secure sums each is sent the roster
    that the authority has signed.
    """
    run = new_token()
    first = first_spec(command, config.model_dump(mode="json"))
    passed_on = b""
    if roster is not None:
        first, passed_on = first.model_copy(update={"roster": roster.digest}), roster.content
    admission = Admission(names, least, channel.observer)
    handshake = Handshake(channel, first, run, passed_on, admission)
    handshake.complete()
    facts = admission.admitted()
    spec = _full_spec(first, facts.values(), config)
    members = [
        Member(number, name, facts[name].samples)
        for number, name in enumerate(names)
        if name in facts
    ]
    skipped = sum(each.skipped for each in facts.values())
    return Enrolment(run, spec, tuple(members), handshake.quickest, skipped)


def wait_for_clients(channel: Channel, enrolment: Enrolment, least: int | None) -> None:
    """Wait until the clients of a resumed run are there again."""
    names = [member.name for member in enrolment.members]
    wanted = min(least or len(names), len(names))
    known: set[str] = set()
    while True:
        online = channel.link.online().keys() & names
        for name in sorted(online - known):
            channel.observer.told(name, "there")
        if len(online) >= wanted:
            return
        known = online
        time.sleep(channel.timeouts.poll)


def first_spec(command: str, config: Tree) -> RunSpec:
    """Return the description of a run before anything is known of the clients' images."""
    if encoder := config.get("data", {}).get("encoder"):
        # Clients load their own, by whatever path it has there.
        config = merge(config, {"data": {"encoder": EncoderName.parse(encoder).called}})
    return RunSpec.model_validate({"command": command, "config": config})


def _full_spec(spec: RunSpec, facts: Iterable[Facts], config: MethodConfig) -> RunSpec:
    """Complete the description of a run by what the clients hold.

    Their images meet in the shape in which they would in one process.
    """
    known = list(facts)
    classes = sorted({name for each in known for name in each.classes})
    samples = sum(each.samples for each in known)
    wanted = 0
    if isinstance(config, ClusterConfig):
        wanted = config.most_clusters(samples, 0, known[0].unit)
    completed = {
        "image_shape": _shape(known, spec.config["data"]["image_size"]),
        "columns": known[0].columns,
        "classes": tuple(classes),
        "clusters": wanted,
        "samples": samples,
        "clients": len(known),
    }
    if known[0].encoder:
        found = {"data": {"encoder_hash": known[0].encoder}}
        completed["config"] = merge(spec.config, found)
    return spec.model_copy(update=completed)


def _shape(known: Sequence[Facts], image_size: int | None) -> tuple[int, ...]:
    """Return the shape of a sample: images meet in one, and vectors have it."""
    if known[0].length:
        return (known[0].length,)
    return settled([each.sizes for each in known if each.sizes], image_size)
