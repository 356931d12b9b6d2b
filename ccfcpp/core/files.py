"""Atomic writing of files, and locks."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.tables import Rows, write_csv

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = ".*.tmp"
"""Pattern of the temporary files that a crash may leave behind; they are never read."""
_CHECKED = "checked"
"""Key of the only entry in a file's header: JSON of a checksum and the caller's header. One entry,
since safetensors writes several in any order. Files of earlier versions do not have it."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: even after a crash it is complete, or as it was before."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def write_table(path: Path, rows: Rows) -> None:
    """Write rows to a CSV file atomically; file names that are not UTF-8 keep their bytes."""
    with (
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        write_csv(file, rows)


def save_tensors(
    path: Path,
    tensors: "Mapping[str, Tensor]",
    header: dict[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write tensors from any device, and strings in a header, atomically to a safetensors file.

    A checksum of both is added. A ``durable`` file survives a power failure once this returns.
    """
    # Imported where they are needed, since other files do not need PyTorch.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checked = json.dumps([content_hash(header or {}, contiguous), header or {}], sort_keys=True)
    with atomic_file(path, durable) as temporary:
        try:
            save_file(contiguous, temporary, metadata={_CHECKED: checked})
        except SafetensorError as error:  # For example, the disk is full.
            raise OSError(f"{path} cannot be written: {error}") from error


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Read the tensors that ``save_tensors`` has written, on the CPU, and the header.

    Raises:
        ValueError: The file is no safetensors file, or has been damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        checksum, header = json.loads(header.get(_CHECKED, "null")) or [None, header]
    except (SafetensorError, TypeError) as error:
        raise ValueError(str(error)) from error
    if checksum is not None and checksum != content_hash(header, tensors):
        raise ValueError("its checksum is wrong: it was damaged after it was written")
    return tensors, header


def content_hash(facts: object, tensors: "Mapping[str, Tensor]" = {}) -> str:  # noqa: B006
    """Return one SHA-256, in hexadecimal, of JSON values ``facts`` and of tensors by name."""
    import torch

    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Append a line to a file; it is a new line even if a crash left the last one incomplete.

    A ``durable`` line survives a power failure once this returns.
    """
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        file.flush()
        if durable:
            os.fsync(file.fileno())


def read_lines(path: Path) -> tuple[list[str], str]:
    """Return the complete lines of a file, if it exists, and the text after the last of them."""
    text = path.read_text(errors="replace") if path.exists() else ""
    *lines, rest = text.split("\n")
    return lines, rest


def with_last_name(path: Path) -> Path:
    """Return a path whose last part is a name: of ``.`` and ``..`` the absolute one."""
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))  # noqa: PTH100


def make_durable(path: Path) -> None:
    """Wait until a file's content is on the disk (fsync)."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def make_names_durable(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, if the system supports this."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a new, empty file, moved to ``path`` at the end; deleted after an error.

    Its name is random, so that nobody can place a link there that would be followed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        if durable:
            make_durable(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        make_names_durable(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file within the context; yield whether the lock was free (on Windows always)."""
    if os.name == "nt":
        yield True
        return
    import fcntl

    # For writing, which a lock on a network's file system asks for.
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
