"""What of a run outlasts a crash."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch

from ccfcpp.core.profiling import section
from ccfcpp.engine.checkpoint import Checkpoint, CheckpointClock
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import State
from ccfcpp.engine.federation import RoundReport
from ccfcpp.engine.transport import Transport
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import Json


@dataclass
class History:
    """What a summary says of all rounds together; kept in the checkpoint.

    Attributes:
        rounds: How many were run.
        communication_rounds: In how many of them something travelled.
        seconds: Wall-clock time of the rounds, without evaluation and checkpoints.
        bytes_down: Bytes that all clients received.
        bytes_up: Bytes that all clients sent.
        rounds_by_client: How many rounds each client took part in, by its number.
        refused: How many updates were refused.
        local_spectra: Singular values of the last round's local models, by the client's number.
    """

    rounds: int = 0
    communication_rounds: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    rounds_by_client: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    local_spectra: dict[str, list[float]] = field(default_factory=dict)

    def add(self, report: RoundReport) -> None:
        """Count a round in."""
        self.rounds += 1
        self.communication_rounds += report.bytes_down + report.bytes_up > 0
        self.seconds += report.seconds
        self.bytes_down += report.bytes_down
        self.bytes_up += report.bytes_up
        self.refused += sum(map(len, report.refused.values()))
        for client in map(str, report.clients):
            self.rounds_by_client[client] = self.rounds_by_client.get(client, 0) + 1

    def describe(self, clients: Sequence[Member]) -> dict[str, object]:
        """What a summary says of the rounds and of the clients that took part."""
        return {
            "participants": [
                {
                    "client": client.id,
                    "name": client.name,
                    "samples": client.samples,
                    "rounds": self.rounds_by_client.get(str(client.id), 0),
                }
                for client in clients
            ],
            "rounds": self.rounds,
            "communication_rounds": self.communication_rounds,
            "seconds": round(self.seconds, 3),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "refused_updates": self.refused,
        }


class RunStore(Generic[State]):
    """Commits rounds: the log's lines, the server's state and the clients' memories together.

    Args:
        folder: The run's folder.
        transport: Knows the clients' memories.
        state_type: The dataclass of the server's state.
        device: Where tensors go when they are read back.
    """

    def __init__(
        self,
        folder: RunFolder,
        transport: Transport,
        state_type: type[State],
        device: torch.device,
    ) -> None:
        self.folder = folder
        self.transport = transport
        self.state_type = state_type
        self.device = device
        self._clock = CheckpointClock()

    def restore(self) -> Checkpoint[State] | None:
        """The last commit, with the memories of its clients taken up; None where there is none.

        Lines of rounds that were logged after it are dropped: these rounds will be run again.

        Raises:
            UsageError: A file is damaged or missing.
        """
        checkpoint = self.folder.load_checkpoint(self.state_type, self.device)
        if checkpoint is not None:
            self.transport.restore(checkpoint.memories)
        return checkpoint

    def is_due(self) -> bool:
        """Whether enough time has passed for another commit."""
        return self._clock.is_due()

    def commit(self, number: int, state: State, facts: Json) -> None:
        """Make all rounds up to ``number`` outlast a crash; their lines must be in the log.

        Args:
            number: The last round.
            state: The server's state after it.
            facts: What a summary will say of the rounds; JSON values.
        """
        with self._clock.timing(), section("checkpoint"):
            versions = dict(self.transport.save())
            self.folder.save_checkpoint(Checkpoint(number + 1, state, versions, facts))
            self.transport.settle()
