"""The command line: it parses arguments, calls the library and prints results.

Modules that a command needs are imported when it runs, so that help and version appear at once.
"""

import io
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console

from ccfcpp.cli.audit import audit
from ccfcpp.cli.classify import classify
from ccfcpp.cli.cluster import cluster
from ccfcpp.cli.compare import compare
from ccfcpp.cli.datasets import datasets
from ccfcpp.cli.embed import embed
from ccfcpp.cli.forget import forget
from ccfcpp.cli.inspect import inspect
from ccfcpp.cli.join import join
from ccfcpp.cli.keys import keys
from ccfcpp.cli.leakage import leakage
from ccfcpp.cli.predict import predict
from ccfcpp.cli.presets import presets
from ccfcpp.cli.report import report
from ccfcpp.cli.reproduce import reproduce
from ccfcpp.cli.serve import serve
from ccfcpp.cli.setting_options import command_class
from ccfcpp.cli.status import status, stop
from ccfcpp.cli.terminal import INTERRUPTED, prepare
from ccfcpp.cli.theory import verify_theory
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.torchrun import process_count, rank
from ccfcpp.core.version import VERSION
from ccfcpp.runs.signals import handled_by

_EXAMPLES = """Examples:

ccfcpp cluster --p 0.75: scikit-learn's digits over ten clients, in a minute

ccfcpp inspect photos/: what is there, what cannot be read, and in which size images meet

ccfcpp cluster --dataset photos/ --partition folders --clusters 5: your images, a folder a client

ccfcpp report runs/NAME: what a run has found, as a page
"""

app = typer.Typer(epilog=_EXAMPLES, add_completion=False, pretty_exceptions_enable=False)
# The base of typer's complaints about the command line; recent versions give it no public name.
CommandLineError: type[BaseException] = typer.BadParameter.__bases__[0]

_USAGE_ERROR, _FAILURE = 2, 1


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names have letters that a terminal may lack
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def fail(reason: object) -> None:
        errors.print("error: " + " ".join(str(reason).split()))

    try:
        command = typer.main.get_command(app)
        _hide_types_of_switches(command)
        code = _in_first_process(lambda: command(sys.argv[1:] or ["--help"], standalone_mode=False))
    except UsageError as error:
        fail(error)
        code = _USAGE_ERROR
    except CommandLineError as error:
        fail(error.format_message())  # type: ignore[attr-defined] # click's, wherever it lies
        code = _USAGE_ERROR
    except (FederationError, OSError) as error:
        # Another process than the first does not repeat what the one that has failed says.
        is_told = rank() > 0 and type(error).__name__ == "EndedProcessError"
        code = 0 if is_told else _FAILURE
        if not is_told:
            fail(error)
    except RuntimeError as error:
        # PyTorch's, which is not imported for a name; on a processor it has none of its own.
        on_processor = "DefaultCPUAllocator: can't allocate memory" in str(error)
        if type(error).__name__ != "OutOfMemoryError" and not on_processor:
            raise
        why = str(error).partition("DefaultCPUAllocator: ")[2] if on_processor else str(error)
        fail(f"out of memory ({why}): lower --cohort, or give a smaller batch or network")
        code = _FAILURE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    sys.exit(code)


def _in_first_process(command: Callable[[], Any]) -> Any:
    """Run a command in the first of torchrun's processes; the others train their clients for it."""
    if process_count() == 1:
        return command()
    from ccfcpp.engine.distributed import run_in_first
    from ccfcpp.runs.run import make_follower
    from ccfcpp.studies.study import remake_run

    prepare()
    # The first process decides when to stop, and its end is the end of the others.
    with handled_by(signal.SIG_IGN) if rank() else nullcontext():
        return run_in_first(command, make_follower(remake_run))


def _hide_types_of_switches(command: Any) -> None:
    """Leave ``<bool>`` out of the help of flags without a value, as recent versions of typer do."""
    for option in command.get_params(typer.Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _hide_types_of_switches(below)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ccfcpp {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Federated clustering, and classification, of data that stay with their owners."""


for command in (
    datasets,
    presets,
    inspect,
    embed,
    cluster,
    predict,
    leakage,
    forget,
    compare,
    verify_theory,
    report,
    reproduce,
    classify,
):
    app.command(cls=command_class(command))(command)
app.add_typer(keys, name="keys")
for command in (serve, status, stop, join, audit):
    app.command(cls=command_class(command))(command)
