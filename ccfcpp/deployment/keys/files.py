"""Key files: their names, folders and permissions."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ccfcpp.core.errors import UsageError

ROSTER = "roster"
"""Name of the folder of the clients' public keys."""
PUBLIC_SUFFIX = ".pub"
"""Suffix of a public key file."""
PRIVATE, PUBLIC = 0o600, 0o644
"""File modes: for the owner alone, and readable by all."""
_OWN_FOLDER = 0o700
_CLIENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def require_server_keys(folder: Path) -> None:
    """Raise ``UsageError`` if a server's key or certificate, or ``ca.crt``, is not in a folder."""
    for path in (folder / "server.crt", folder / "server.key", folder / "ca.crt"):
        if not path.is_file():
            raise UsageError(f"{path} is missing: make keys with ccfcpp keys, or give --keys")


def private_path(folder: Path, name: str) -> Path:
    """Return the path of a client's private key in a folder of keys."""
    return folder / "clients" / f"{name}.key"


def public_path(roster: Path, name: str) -> Path:
    """Return the path of a client's public key in a roster, the folder of public keys."""
    return roster / f"{name}{PUBLIC_SUFFIX}"


def check_client_name(name: str) -> None:
    """Raise ``UsageError`` if a client's name is not safe as a file name."""
    if not _CLIENT.fullmatch(name):
        raise UsageError(
            f"client name {name!r} is refused: give 1 to 64 letters (a to z), digits, dashes, "
            "underscores and dots, the first of them a letter, a digit or an underscore"
        )


def write_new(folder: Path, files: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write new files, either all or none of them; existing files are never replaced.

    Args:
        folder: Folder of the files; created with mode 700 if it is missing.
        files: Content and file mode by path, in the folder or one of its subfolders.

    Raises:
        UsageError: A file exists already or cannot be written.
    """
    for path in files:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} is there already, and keys are never replaced: give another --out, or "
                "move it away"
            )
    made: list[Path] = []
    try:
        folder.mkdir(mode=_OWN_FOLDER, parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            path.parent.mkdir(mode=_OWN_FOLDER, exist_ok=True)
            # os.open sets the mode at creation. O_EXCL refuses every existing path, even a broken
            # link.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with os.fdopen(number, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise UsageError(
            f"{error.filename or folder} cannot be written ({error.strerror}): give another --out"
        ) from error
