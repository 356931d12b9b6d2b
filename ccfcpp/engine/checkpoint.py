"""The checkpoint of a run: a safetensors file."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import read_tensors, save_tensors
from ccfcpp.engine.exchange import State
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.models.state import to_device


@dataclass
class Checkpoint(Generic[State]):
    """Content of a checkpoint: all that a resumed run needs for its next round.

    Attributes:
        next_round: The first round that has not been run.
        state: The server's state.
        memories: File of each client's local state, by the client's number.
        facts: Facts of the run so far, such as the seconds it took; JSON values.
    """

    next_round: int
    state: State
    memories: dict[int, str]
    facts: dict[str, Any]


class CheckpointClock:
    """Clock that tells when to write a checkpoint: writing takes at most ``share`` of the time."""

    def __init__(self, share: float = 0.05) -> None:
        self._share = share
        self._ended = -math.inf
        self._cost = 0.0

    def is_due(self) -> bool:
        """Return whether enough time has passed to write a checkpoint; True before the first."""
        return time.monotonic() - self._ended >= self._cost / self._share

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Measure the time of the block, which writes a checkpoint."""
        began = time.monotonic()
        yield
        self._ended = time.monotonic()
        self._cost = self._ended - began


def save_checkpoint(path: Path, checkpoint: Checkpoint[Any]) -> None:
    """Write a checkpoint as a safetensors file, which holds no code."""
    header = {
        "next_round": str(checkpoint.next_round),
        "facts": json.dumps(checkpoint.facts),
        "memories": json.dumps(checkpoint.memories),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, pack(checkpoint.state), header)


def load_checkpoint(path: Path, kind: type[State], device: torch.device) -> Checkpoint[State]:
    """Read a checkpoint whose state is a dataclass ``kind``, with tensors on a device.

    Raises:
        UsageError: The file is not a whole checkpoint.
    """
    try:
        tensors, header = read_tensors(path)
        state = unpack(kind, to_device(tensors, device))
        next_round, facts = int(header["next_round"]), json.loads(header["facts"])
        memories = {int(client): name for client, name in json.loads(header["memories"]).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"checkpoint {path} cannot be read ({error}), or is of another version of ccfcpp: "
            f"delete {path.parent} to start again"
        ) from error
    return Checkpoint(next_round, state, memories, facts)
