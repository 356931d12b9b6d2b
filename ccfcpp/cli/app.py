"""The command line: it parses, calls and prints.

What a command needs is imported when it runs: help and version are there at once.
"""

import sys
from typing import Annotated, Any, cast

import typer
from rich.console import Console

import ccfcpp
from ccfcpp.cli.classify import add_classify
from ccfcpp.cli.cluster import add_cluster
from ccfcpp.cli.compare import add_compare
from ccfcpp.cli.datasets import add_datasets
from ccfcpp.cli.join import add_join
from ccfcpp.cli.keys import add_keys
from ccfcpp.cli.leakage import leakage
from ccfcpp.cli.predict import predict
from ccfcpp.cli.presets import presets
from ccfcpp.cli.report import add_report
from ccfcpp.cli.reproduce import add_reproduce
from ccfcpp.cli.serve import add_serve
from ccfcpp.cli.terminal import INTERRUPTED
from ccfcpp.cli.theory import verify_theory
from ccfcpp.core.errors import FederationError, UsageError

_EXAMPLES = """Examples:

ccfcpp cluster --p 0.75: scikit-learn's digits over ten clients, in seconds

ccfcpp cluster --dataset photos/ --partition folders --clusters 5: your images, a folder a client

ccfcpp report runs/NAME: what a run has found, as a page
"""

app = typer.Typer(
    help="Federated clustering, and classification, of images that stay with their holders.",
    epilog=_EXAMPLES,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# The base of typer's complaints about the command line; recent versions give it no public name.
CommandLineError: type[BaseException] = typer.BadParameter.__bases__[0]

_USAGE_ERROR, _FAILURE = 2, 1


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def fail(reason: object) -> None:
        errors.print("error: " + " ".join(str(reason).split()))

    try:
        command: Any = typer.main.get_command(app)
        _hide_types_of_switches(command)
        code = command(sys.argv[1:] or ["--help"], standalone_mode=False)
    except UsageError as error:
        fail(error)
        code = _USAGE_ERROR
    except CommandLineError as error:
        fail(cast(Any, error).format_message())
        code = _USAGE_ERROR
    except (FederationError, OSError) as error:
        fail(error)
        code = _FAILURE
    except RuntimeError as error:
        # PyTorch's, which is not imported for a name.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        fail(f"the device is out of memory ({error}): lower --cohort")
        code = _FAILURE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    sys.exit(code)


def _hide_types_of_switches(command: Any) -> None:
    """Let help show no ``<bool>`` behind flags that take no value, as recent versions of typer do.

    Args:
        command: Of typer, whose classes have other names from version to version.
    """
    for option in command.get_params(typer.Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _hide_types_of_switches(below)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ccfcpp {ccfcpp.__version__}")
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
    """Federated clustering, and classification, of images that stay with their holders."""


add_datasets(app)
app.command()(presets)
add_cluster(app)
app.command()(predict)
app.command()(leakage)
add_compare(app)
app.command()(verify_theory)
add_report(app)
add_reproduce(app)
add_classify(app)
add_keys(app)
add_serve(app)
add_join(app)
