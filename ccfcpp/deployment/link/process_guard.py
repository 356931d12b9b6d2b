"""Runs a command that must not outlive whoever has started it, also where that is killed.

``python process_guard.py COMMAND ...`` reads a pipe whose other end that process holds, and ends its own
process group when the pipe does. It imports nothing of ours.
"""

import os
import signal
import subprocess
import sys
import threading
import time

_TO_END = 5.0
"""Seconds that the command has to end."""


def _watch() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_TO_END)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command; the exit code is its own."""
    # Who ends the group wants to know when the command has ended. (A handler, since what is
    # ignored would be ignored by the command, too.)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(process.wait() & 0xFF)


if __name__ == "__main__":
    main()
