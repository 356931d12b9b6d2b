"""A server whose machine's clock jumps: ``python -m tests.support.jumping serve ...``.

The gate, a process of its own, has the same clock (``clock/sitecustomize.py``). A round begins once
the file that ``CCFCPP_TEST_ROUNDS`` names allows as many: so what happens to a round need not be
quick.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ccfcpp.cli.app import main
from ccfcpp.engine.federation import Federation
from tests.support.clocks import follow_flower

ROUNDS = "CCFCPP_TEST_ROUNDS"


def wait_for_leave() -> None:
    """Let each round wait until it may begin."""
    run_round = Federation.run_round

    def waiting(federation: Federation[Any, Any], state: Any, number: int) -> Any:
        allowed = 0
        while allowed <= number:
            time.sleep(0.02)
            with suppress(OSError, ValueError):
                allowed = int(Path(os.environ[ROUNDS]).read_text())
        return run_round(federation, state, number)

    setattr(Federation, "run_round", waiting)  # noqa: B010 - for the whole of this process


if __name__ == "__main__":
    follow_flower()
    wait_for_leave()
    main()
