"""The clients of a deployed run, as recorded in the run's folder. This module needs no Flower."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import RunConfig
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.client import Member


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
        sent = {"config": first_spec(config).config}
        return replace(self, spec=self.spec.model_copy(update=sent))

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


_FILE = TypeAdapter(Enrolment)


def first_spec(config: RunConfig) -> RunSpec:
    """Return the description of a run before the clients have sent facts on their images."""
    settings = config.model_dump(mode="json")
    if encoder := settings.get("data", {}).get("encoder"):
        # Without its path, since clients have their own.
        settings["data"]["encoder"] = EncoderName.parse(encoder).called
    command = "cluster" if isinstance(config, ClusterConfig) else "classify"
    return RunSpec.model_validate({"command": command, "config": settings})
