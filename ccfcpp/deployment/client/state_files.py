"""Files of a client's local state (its memory) between tasks."""

import shutil
from pathlib import Path

import torch

from ccfcpp.core.files import read_tensors, save_tensors
from ccfcpp.engine.client import Memory


class LostMemoryError(Exception):
    """The requested version of a client's memory (its local state) is missing or damaged."""


class MemoryStore:
    """All saved versions of one client's memory (its local state), as files.

    The server may not receive a client's update. So each request names the version to start from,
    and a new version never replaces an old one.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._device = device

    def load(self, run: str, version: str) -> Memory:
        """Load a version of the memory in a run; an empty memory if ``version`` is an empty text.

        Raises:
            LostMemoryError: The version is missing or damaged.
        """
        if not version:
            return {}
        try:
            tensors, _ = read_tensors(self._path(run, version))
        except (OSError, ValueError) as error:
            raise LostMemoryError("what it remembered is gone") from error
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}

    def save(self, run: str, version: str, memory: Memory) -> None:
        """Save the memory in a run as a new version, in a file that survives a crash."""
        path = self._path(run, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, memory)

    def prune(self, run: str, *wanted: str) -> None:
        """Delete all versions of the memory, in all runs, except the ``wanted`` ones of one run."""
        kept = {self._path(run, version) for version in wanted if version}
        for folder in self._folder.glob("run-*"):
            if folder != self._path(run, "").parent:
                shutil.rmtree(folder)
                continue
            for path in folder.iterdir():
                if path not in kept:
                    path.unlink()

    def _path(self, run: str, version: str) -> Path:
        return self._folder / f"run-{run}" / f"{version}.safetensors"
