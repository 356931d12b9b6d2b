"""Checkpoints of a run, with the totals of its rounds."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.profiling import section
from ccfcpp.engine.checkpoint import Checkpoint, CheckpointClock
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import State
from ccfcpp.engine.federation import RoundReport
from ccfcpp.engine.transport import Transport
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import Json

_LOOKED_AT = 64
"""Most samples of a client of which its digest is made, so that not all are read again."""


@dataclass
class History:
    """Totals over all rounds for the summary, stored in the checkpoint.

    Attributes:
        rounds: Number of rounds.
        communication_rounds: Number of rounds in which clients received or sent something.
        seconds: Wall-clock time of the rounds, without evaluation and checkpoints.
        bytes_down: Bytes that all clients received.
        bytes_up: Bytes that all clients sent.
        rounds_by_client: Number of rounds in which a client took part, by the client's number.
        refused: Number of refused updates.
        local_spectra: Singular values of the last round's local models, by the client's number.
        taken: Names of the exchanges of which an update was accepted.
        held: Digest of each client's samples, by the client's number.
    """

    rounds: int = 0
    communication_rounds: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    rounds_by_client: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    local_spectra: dict[str, list[float]] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def check_samples(self, clients: Iterable[Client]) -> None:
        """Store a digest (hash) of each client's samples, and compare it with an earlier one.

        Raises:
            UsageError: A client had other samples before the run was interrupted.
        """
        for client in clients:
            digest = _digest(client.images)
            if self.held.setdefault(str(client.id), digest) != digest:
                raise UsageError(
                    f"the data of {client.name} are not those with which this run began: give "
                    "them back, or begin a new run (another --out)"
                )

    def add(self, report: RoundReport) -> None:
        """Add a round's report to the totals."""
        self.rounds += 1
        self.communication_rounds += report.bytes_down + report.bytes_up > 0
        self.seconds += report.seconds
        self.bytes_down += report.bytes_down
        self.bytes_up += report.bytes_up
        self.refused += sum(map(len, report.refused.values()))
        for client in map(str, report.clients):
            self.rounds_by_client[client] = self.rounds_by_client.get(client, 0) + 1

    def describe(self, clients: Sequence[Member]) -> dict[str, object]:
        """Return the part of the summary on rounds and clients."""
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


def _digest(samples: Tensor) -> str:
    """Hash the dtype and shape of samples, and at most 64 of them, to 16 hexadecimal digits."""
    count = min(len(samples), _LOOKED_AT)
    places = torch.linspace(0, len(samples) - 1, count, dtype=torch.float64).round().long()
    some = samples[places.to(samples.device)].cpu().contiguous()
    header = f"{samples.dtype} {tuple(samples.shape)}".encode()
    return hashlib.sha256(header + some.numpy().tobytes()).hexdigest()[:16]


@dataclass
class RunStore(Generic[State]):
    """Store of a run's progress: its log, the server's state and the clients' local states.

    ``state_type`` is the dataclass of the server's state; tensors are read back to ``device``.
    """

    folder: RunFolder
    transport: Transport
    state_type: type[State]
    device: torch.device
    _clock: CheckpointClock = field(default_factory=CheckpointClock, init=False)

    def restore(self) -> Checkpoint[State] | None:
        """Return the last checkpoint; None without one.

        The clients' local states are restored from it, and lines of later rounds leave the log.

        Raises:
            UsageError: A file is damaged or missing.
        """
        checkpoint = self.folder.load_checkpoint(self.state_type, self.device)
        if checkpoint is not None:
            self.transport.restore(checkpoint.memories)
        return checkpoint

    def is_due(self) -> bool:
        """Return whether enough time has passed for another checkpoint."""
        return self._clock.is_due()

    def commit(self, number: int, state: State, facts: Json) -> None:
        """Save a checkpoint after round ``number``; the log must hold all rounds so far.

        ``facts`` are the fields of ``History``, for the summary.
        """
        with self._clock.timing(), section("checkpoint"):
            versions = dict(self.transport.save())
            self.folder.save_checkpoint(Checkpoint(number + 1, state, versions, facts))
            self.transport.settle()
