"""What of a run outlasts a crash."""

from typing import Any, Generic

import torch

from ccfcpp.core.profiling import section
from ccfcpp.engine.checkpoint import Checkpoint, CheckpointClock
from ccfcpp.engine.exchange import State
from ccfcpp.engine.transport import Transport
from ccfcpp.runs.folder import RunFolder


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

    def commit(self, number: int, state: State, facts: dict[str, Any]) -> None:
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
