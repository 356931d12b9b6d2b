"""Run a command that ends when the process that started it ends, even if that one is killed.

``python process_guard.py COMMAND ...`` reads a pipe whose other end the starting process holds.
When the pipe closes, it ends its process group. It imports nothing from this package.
"""

import os
import signal
import subprocess
import sys
import threading
import time

_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command and exit with its exit code."""
    # The group gets SIGTERM, too. This process outlives it, to return the command's exit code.
    # SIG_IGN would not do: the command would inherit it.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(process.wait() & 0xFF)


if __name__ == "__main__":
    main()
