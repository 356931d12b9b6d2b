"""Files that must not be there yet: keys are never replaced."""

import os
from collections.abc import Mapping
from pathlib import Path

from ccfcpp.core.errors import UsageError

PRIVATE, PUBLIC = 0o600, 0o644
"""Rights of a file: for its owner alone, and for all to read."""
_OWN_FOLDER = 0o700


def write_new(folder: Path, files: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write new files, all or none of them.

    Args:
        folder: Made where it is missing, with rights for its owner alone.
        files: Content and rights by path, in the folder or in a folder inside.

    Raises:
        UsageError: One of them is there, or cannot be written.
    """
    for path in files:
        _refuse_if_there(path)
    made: list[Path] = []
    try:
        folder.mkdir(mode=_OWN_FOLDER, parents=True, exist_ok=True)
        for path, (content, rights) in files.items():
            path.parent.mkdir(mode=_OWN_FOLDER, exist_ok=True)
            # With its rights from the moment it is there, and only where nothing is, not even a
            # link that leads nowhere.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
            made.append(path)
            with os.fdopen(number, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise UsageError(
            f"{error.filename or folder} cannot be written ({error.strerror}): give another --out"
        ) from error


def _refuse_if_there(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(
            f"{path} is there already, and keys are never replaced: give another --out, or move it "
            "away"
        )
