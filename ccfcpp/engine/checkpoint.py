"""Files that appear whole, and the checkpoint written after every round."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ccfcpp.engine.algorithm import State
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.errors import UsageError

TEMPORARY = ".*.tmp"
"""Pattern of the files that a crash may leave behind; they are never read."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees all of it or none of it."""
    with _whole_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """A temporary path; what is written there stands at ``path`` in the end, safe on the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


@dataclass
class Checkpoint(Generic[State]):
    """All that the next round depends on.

    Attributes:
        next_round: The first round that has not been run.
        state: The server's state.
        memories: What each client remembers, by its number.
        facts: Numbers about the run so far, such as the seconds it took; JSON values.
    """

    next_round: int
    state: State
    memories: dict[int, dict[str, Tensor]]
    facts: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint[Any]) -> None:
    """Write a checkpoint as one safetensors file, which holds no code.

    Args:
        path: The file; its folder is made where it is missing.
        checkpoint: What to save. Tensors may lie on any device.
    """
    tensors = {f"state/{name}": tensor for name, tensor in pack(checkpoint.state).items()}
    for client, memory in checkpoint.memories.items():
        tensors |= {f"client/{client}/{name}": tensor for name, tensor in memory.items()}
    header = {"next_round": str(checkpoint.next_round), "facts": json.dumps(checkpoint.facts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors, header)


def save_tensors(
    path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None
) -> None:
    """Write tensors from any device as one safetensors file, which appears whole."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _whole_file(path) as temporary:
        save_file(contiguous, temporary, metadata=header)


def load_checkpoint(path: Path, kind: type[State], device: torch.device) -> Checkpoint[State]:
    """Read a checkpoint back.

    Args:
        path: The file that ``save_checkpoint`` wrote.
        kind: The dataclass of the server's state.
        device: Where the tensors go.

    Raises:
        UsageError: The file is not a whole checkpoint.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = unpack(kind, _below("state/", tensors))
        next_round, facts = int(header["next_round"]), json.loads(header["facts"])
        clients = {int(name.split("/")[1]) for name in tensors if name.startswith("client/")}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"checkpoint {path} cannot be read ({error}): delete {path.parent} to start again"
        ) from error
    memories = {client: _below(f"client/{client}/", tensors) for client in sorted(clients)}
    return Checkpoint(next_round, state, memories, facts)


def memories_of(clients: Iterable[Client]) -> dict[int, dict[str, Tensor]]:
    """What a checkpoint keeps of the clients."""
    return {client.id: client.memory for client in clients}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
