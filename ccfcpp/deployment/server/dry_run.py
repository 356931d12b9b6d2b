"""The check of a configuration before any client is asked."""

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import DataConfig, RunConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolment import Enrolment, first_spec
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.client import Member

_MANY, _SIDE, _LENGTH = 10_000, 64, 64
"""Assumed number of images of a client, image side in pixels, and vector length."""


def dry_run(config: RunConfig, clients: int) -> None:
    """Check a configuration by building a run with assumed clients, before any client is asked.

    Args:
        config: Configuration of the run.
        clients: Number of clients that would take part.

    Raises:
        UsageError: Settings do not fit the system or the number of clients, or the server's own
            images cannot be read.
    """
    _refuse_settings_of_others(config)
    side = config.section(DataConfig).image_size or _SIDE
    images, vectors = ((1, side, side), (3, side, side)), ((_LENGTH,),)
    takes = METHODS[config.method].takes if isinstance(config, ClusterConfig) else ("images",)
    refusals = []
    for shape in (*images * ("images" in takes), *vectors * ("vectors" in takes)):
        try:
            _build_run(config, clients, shape)
        except UsageError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _refuse_settings_of_others(config: RunConfig) -> None:
    """Raise ``UsageError`` for settings that only clients or runs in one process have."""
    data, usual = config.section(DataConfig), DataConfig()
    for name in ("skip", "max_pixels"):
        if (value := getattr(data, name)) != getattr(usual, name):
            raise UsageError(
                KeyValue(f"data.{name}", value),
                " has no effect over a network, where each owner says which files are read, as by "
                "--skip of join: leave it out",
            )
    if config.availability.late:
        raise UsageError(
            "availability.late has no effect over a network, where clients come when they come: "
            "leave it out"
        )
    if isinstance(config, ClusterConfig) and config.data.newcomers:
        raise UsageError("data.newcomers is given by --from alone: leave it out")


def _build_run(config: RunConfig, clients: int, shape: tuple[int, ...]) -> None:
    clusters = 0
    if isinstance(config, ClusterConfig):
        clusters = config.most_clusters(_MANY, classes=0)
        if not clusters:
            raise UsageError("clusters is not given: give --clusters")
    facts = {
        "image_shape": shape,
        "classes": ("0", "1"),
        "clusters": clusters,
        "samples": _MANY * clients,
        "clients": clients,
    }
    spec = first_spec(config).model_copy(update=facts)
    members = tuple(Member(number, str(number), _MANY) for number in range(clients))
    run = DeployedRun(config, Enrolment("", spec, members, 0.0), Channel(_NoClients()))
    run.algorithm.initial_state(run.randomness)


class _NoClients:
    """Link without clients, for a run that is built but never started."""

    def online(self) -> dict[str, int]:
        return {}

    def push(self, node: int, packet: Packet, seconds: float) -> None:
        pass

    def pull(self, ticket: str) -> None:
        pass
