"""Commands in several processes, as ``torchrun`` starts them, but one after the other in each.

    python -m tests.support.ranks COMMANDS.json

The file has a list of command lines. Starting Python for each would take most of a test's time.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ccfcpp.cli.app import main


def run_commands(file: Path, lines: Sequence[Sequence[str]], processes: int) -> None:
    """Run command lines in as many processes, and fail with what they print if one fails."""
    file.write_text(json.dumps(lines))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks", str(file)],
            env=os.environ
            | {"OMP_NUM_THREADS": "1"}
            | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(processes)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    errors = [process.communicate(timeout=600)[1] for process in started]
    codes = [process.returncode for process in started]
    assert not any(codes), f"{codes}: " + "\n".join(text[-2000:] for text in errors)


def _run_here(lines: Sequence[Sequence[str]]) -> None:
    for line in lines:
        sys.argv = ["ccfcpp", *line]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    _run_here(json.loads(Path(sys.argv[1]).read_text()))
