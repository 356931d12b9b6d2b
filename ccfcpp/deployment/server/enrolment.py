"""The clients of a deployed run, as the run's folder keeps them. It needs no Flower."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ccfcpp.core.config import MethodConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.handshake import first_spec
from ccfcpp.engine.client import Member


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

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        content = {
            "run": self.run,
            "charter": self.spec.model_dump(mode="json"),
            "members": [vars(member) for member in self.members],
            "seconds": self.seconds,
        }
        write_whole(path, json.dumps(content, indent=2).encode())

    @staticmethod
    def load(path: Path) -> "Enrolment":
        """Read it from JSON.

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
