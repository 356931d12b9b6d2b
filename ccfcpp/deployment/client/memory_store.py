"""What a client remembers between tasks, in files of its own machine."""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ccfcpp.core.files import save_tensors
from ccfcpp.engine.client import Memory


class LostMemoryError(Exception):
    """The version to go on with is missing or damaged."""


class MemoryStore:
    """The versions of one client's memory.

    A client's work may be done, and yet the server never hear of it. So the server names the
    version to go on with, and a new one never takes the place of an old one.

    Args:
        folder: Where the files go: a folder in it for each run.
        device: Where memories are taken up.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._device = device

    def take(self, run: str, version: str) -> Memory:
        """What the client remembered in a version; nothing where it is empty.

        Raises:
            LostMemoryError: It is not there.
        """
        if not version:
            return {}
        try:
            return load_file(self._path(run, version), device=str(self._device))
        except (OSError, SafetensorError) as error:
            raise LostMemoryError from error

    def put(self, run: str, version: str, memory: Memory) -> None:
        """Keep a version; it outlasts a crash."""
        path = self._path(run, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, memory)

    def clear(self, run: str, *wanted: str) -> None:
        """Delete all versions of a run but some, and the memories of all other runs."""
        names = {self._path(run, version).name for version in wanted if version}
        for path in self._folder.glob("run-*/*"):
            if path.parent != self._path(run, "x").parent or path.name not in names:
                path.unlink()
        for folder in self._folder.glob("run-*"):
            if folder != self._path(run, "x").parent:
                shutil.rmtree(folder)

    def _path(self, run: str, version: str) -> Path:
        return self._folder / f"run-{run}" / f"{version}.safetensors"
