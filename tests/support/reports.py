"""Reports of runs, by the command line."""

import json
from pathlib import Path
from typing import Any

from tests.support.command import succeeded


def report(*runs: Path, out: Path | None = None) -> dict[str, Any]:
    """What ``ccfcpp report --json`` says."""
    place = () if out is None else ("--out", out)
    parsed: dict[str, Any] = json.loads(succeeded("report", *runs, "--json", *place).stdout)
    return parsed
