"""Many clients on one machine: ``python -m tests.support.crowd FOLDER ADDRESS``.

Each line of the standard input is a client's name. It becomes a process of its own, a copy of this
one, which has imported everything: so fifty clients need little time and memory. Each runs
``ccfcpp join`` and does what its file of faults says (``rogue.obey``).
"""

import os
import signal
import sys
from pathlib import Path

# What ``join`` would import, before there are copies.
import ccfcpp.deployment.client.fleet
import ccfcpp.deployment.client.run
import ccfcpp.deployment.client.worker
import ccfcpp.runs.environment  # noqa: F401
from ccfcpp.cli.app import main
from tests.support.rogue import obey


def take_part(folder: Path, address: str, name: str) -> None:
    """Be a client until this process ends."""
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    with (folder / f"{name}.log").open("ab", buffering=0) as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    obey(folder / f"{name}.fault")
    keys = folder / "keys"
    sys.argv = [
        *("ccfcpp", "join", "--server", address, "--data", str(folder / f"{name}.npz")),
        *("--key", str(keys / "clients" / f"{name}.key"), "--authority", str(keys / "ca.crt")),
        *("--allow", "counts", "--accept", "all", "--reproducible"),
    ]
    main()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            take_part(Path(sys.argv[1]), sys.argv[2], line.strip())
            os._exit(0)
