"""Small runs of the command line, for the tests that need whole runs."""

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ccfcpp.cli.app import main
from ccfcpp.core.config_layers import parse_assignments


def set_options(*assignments: str) -> tuple[str, ...]:
    """Flags that give these values."""
    return tuple(word for assignment in assignments for word in ("--set", assignment))


_SMALL = (
    *("model.widths=[4,6]", "model.projector_width=12", "model.latent=8"),
    *("model.predictor_width=4", "centroids.restarts=2", "centroids.iterations=8"),
)
CCFCPP = ("--method", "ccfc++")
TINY_ROUNDS = (
    *CCFCPP,
    "--preset",
    "published",
    "--rounds",
    "2",
    "--pretrain-rounds",
    "2",
    *set_options(*_SMALL),
)
"""CCFC++ over however many clients there are."""
TINY = (*TINY_ROUNDS, "--clients", "4")
"""Settings of CCFC++ for a run on the digits that takes about a second."""
TINY_TREE = parse_assignments(
    (
        "method=ccfc++",
        "preset=published",
        "training.rounds=2",
        "training.pretrain_rounds=2",
        *_SMALL,
    )
) | {"partition": {"clients": 4}}
"""The same without the command line."""

TINY_SCAN = (
    *("--method", "fed-scan", "--clients", "4"),
    *set_options("scan.stem=0", "scan.widths=[8]", "scan.hidden=8", "scan.latent=6"),
    *set_options("scan.batch=20", "scan.neighbours=3", "scan.mine_every=4"),
    *set_options("scan.steps=12", "scan.steps_per_round=3"),
)
"""The same of Fed-SCAN. In the middle of a round neighbours are found again."""


@dataclass
class Result:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


def ccfcpp(*arguments: object) -> Result:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    command = ["ccfcpp", *map(str, arguments)]
    with (
        patch.object(sys, "argv", command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    """The one line on stderr by which a command refuses bad input."""
    result = ccfcpp(*arguments)
    assert (result.code, result.stdout) == (2, ""), result
    *before, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    # What only the images show is found when the run has been announced.
    assert len(before) <= 2, result.stderr
    assert not re.search("error|Traceback", "".join(before), re.IGNORECASE), result.stderr
    return line


def succeeded(*arguments: object) -> Result:
    """Run a command that must not fail."""
    result = ccfcpp(*arguments)
    assert result.code == 0, result.stderr
    return result


def report(*runs: Path, out: Path | None = None) -> dict[str, Any]:
    """What ``ccfcpp report --json`` says."""
    place = () if out is None else ("--out", out)
    parsed: dict[str, Any] = json.loads(succeeded("report", *runs, "--json", *place).stdout)
    return parsed
