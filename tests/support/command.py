"""Small runs of the command line, for the tests that need whole runs."""

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest.mock import patch

from ccfcpp.cli.app import main

TINY = (
    *("--rounds", "2", "--pretrain-rounds", "2", "--clients", "4"),
    *("--set", "model.widths=[4,6]", "--set", "model.projector_width=12"),
    *("--set", "model.latent=8", "--set", "model.predictor_width=4"),
    *("--set", "centroids.restarts=2", "--set", "centroids.iterations=8"),
)
"""Settings of a run on the digits that takes about a second."""


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


def succeeded(*arguments: object) -> Result:
    """Run a command that must not fail."""
    result = ccfcpp(*arguments)
    assert result.code == 0, result.stderr
    return result
