"""Where data lies."""

import os
from pathlib import Path


def user_folder() -> Path:
    """Return `$XDG_CACHE_HOME/ccfcpp`, or `~/.cache/ccfcpp`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccfcpp"


def root_folder(data_root: Path | None) -> Path:
    """Return the folder of the named data sets.

    Returns:
        `data_root`, else `$CCFCPP_DATA`, else `data` in the user's cache folder.
    """
    configured = data_root or os.environ.get("CCFCPP_DATA") or user_folder() / "data"
    return Path(configured).expanduser()
