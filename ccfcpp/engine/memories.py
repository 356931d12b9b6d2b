"""Local states (*memories*) of idle clients: in RAM up to a budget, beyond it in files."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import make_durable, make_names_durable, read_tensors, save_tensors
from ccfcpp.engine.client import Memory
from ccfcpp.engine.payload import count_bytes

_HOST_BYTES = 1 << 30
_DEVICE_SHARE = 0.25
"""Budget for idle clients' states: bytes of RAM, or a share of an accelerator's memory."""


def memory_budget(device: torch.device) -> int:
    """Return how many bytes of idle clients' local states may stay on a device."""
    if device.type == "cuda":
        return int(_DEVICE_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return _HOST_BYTES


class ClientMemories:
    """Store of the local states (*memories*) of all clients of a process.

    A new version of a memory is stored once the server has accepted the update that came with it.
    It is written to a file, named by its version, if it exceeds the budget or a checkpoint needs
    it. Files never change, and those of the last checkpoint stay until the next one.

    Args:
        device: Device for memories in use.
        budget: Bytes that may stay on the device, not in files.
        folder: Folder of the files; None: a temporary folder, deleted with this object.
    """

    def __init__(self, device: torch.device, budget: int, folder: Path | None = None) -> None:
        self.device = device
        self._budget = budget
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._held: dict[int, Memory] = {}
        self._versions: dict[int, str] = {}
        self._files: dict[int, str] = {}
        self._of_checkpoint: set[str] = set()
        self._bytes = 0

    def take(self, client: int) -> Memory:
        """Return a client's memory, tensors by name; empty if none was ever stored.

        Raises:
            UsageError: Its file is missing or damaged.
        """
        if client in self._held or client not in self._files:
            return self._held.get(client, {})
        path = self._place() / self._files[client]
        try:
            tensors, _ = read_tensors(path)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the memory of client {client} cannot be read from {path} ({error}): start again "
                "with another --out"
            ) from error
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def keep(self, client: int, memory: Memory, version: str) -> None:
        """Store a client's memory under a new version, such as ``12.0`` (round, exchange)."""
        self._bytes -= count_bytes(self._held.pop(client, {}))
        self._remove(self._files.pop(client, None))
        if self._bytes + count_bytes(memory) <= self._budget:
            self._held[client] = memory
            self._bytes += count_bytes(memory)
        else:
            self._write(client, memory, version)
        self._versions[client] = version

    def save(self) -> dict[int, str]:
        """Write all memories to files, safe from a crash; return the file names by client."""
        for client, memory in self._held.items():
            if memory and client not in self._files:
                self._write(client, memory, self._versions[client])
        for name in set(self._files.values()) - self._of_checkpoint:
            make_durable(self._place() / name)
        if self._files:
            make_names_durable(self._place())
        return dict(self._files)

    def restore(self, files: Mapping[int, str], named: Iterable[str] = ()) -> None:
        """Load the memories that a checkpoint names, and delete all other files.

        Args:
            files: Names of files by the client's number.
            named: Names of further files to keep, of clients in other processes.

        Raises:
            UsageError: One of the files is missing.
        """
        for client, name in files.items():
            if not (self._place() / name).is_file():
                raise UsageError(
                    f"the memory of client {client} is missing ({self._place() / name}): start "
                    "again with another --out"
                )
        self._held, self._versions, self._bytes, self._files = {}, {}, 0, dict(files)
        self.settle(named)

    def settle(self, named: Iterable[str] = ()) -> None:
        """Delete all files but those of each client's last memory and those ``named``."""
        self._of_checkpoint = {*self._files.values(), *named}
        if self._folder is not None:
            for path in self._folder.glob("client-*.safetensors"):
                if path.name not in self._of_checkpoint:
                    path.unlink(missing_ok=True)  # by another process

    def _write(self, client: int, memory: Memory, version: str) -> None:
        name = f"client-{client}-version-{version}.safetensors"
        save_tensors(self._place() / name, memory, durable=False)
        self._files[client] = name

    def _remove(self, name: str | None) -> None:
        if name is not None and name not in self._of_checkpoint:
            (self._place() / name).unlink()

    def _place(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="ccfcpp-")
            self._folder = Path(self._temporary.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder
