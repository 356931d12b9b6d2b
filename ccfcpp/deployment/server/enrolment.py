"""Who takes part in a deployed run, as its folder keeps it. It needs no Flower."""

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
    """Who takes part in a run; it stays with the run, so that it can go on.

    Attributes:
        run: The run's token, which names the clients' memories.
        spec: What clients are told.
        members: The clients.
        seconds: How long the quickest of them took to answer a greeting.
    """

    run: str
    spec: RunSpec
    members: tuple[Member, ...]
    seconds: float

    def told(self, config: MethodConfig) -> "Enrolment":
        """The same, where clients are told another configuration."""
        told = first_spec(self.spec.command, config.model_dump(mode="json")).config
        return replace(self, spec=self.spec.model_copy(update={"config": told}))

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
        """Read it back.

        Raises:
            UsageError: It is missing or damaged.
        """
        try:
            content = json.loads(path.read_bytes())
            members = tuple(Member(**member) for member in content["members"])
            spec = RunSpec.model_validate_json(json.dumps(content["charter"]))
            return Enrolment(str(content["run"]), spec, members, float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} cannot be read: start again with another --out") from error
