"""Files of a client's memory between tasks."""

import shutil
from pathlib import Path

import torch

from ccfcpp.core.files import read_tensors, save_tensors
from ccfcpp.engine.client import Memory


class LostMemoryError(Exception):
    """The requested version of a memory is missing or damaged."""


class MemoryStore:
    """The versions of one client's memory, as files.

    The server may not receive a client's work. So the server names the version to continue
    with, and a new version never replaces an old one.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._device = device

    def load(self, run: str, version: str) -> Memory:
        """Return a version of the memory; an empty memory if no version is named.

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
        """Save a version so that it survives a crash."""
        path = self._path(run, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, memory)

    def prune(self, run: str, *wanted: str) -> None:
        """Delete all versions of a run except some, and the memories of all other runs."""
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
