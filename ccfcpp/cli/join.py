"""The command ``ccfcpp join``, which connects a client to a server."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.bind_address import address, require_flower
from ccfcpp.cli.join_status import StatusLine
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.terminal import EmbeddingProgress, progress_console
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import unflatten, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import locked
from ccfcpp.core.permissions import OPTIONAL
from ccfcpp.core.progress import watch_embedding
from ccfcpp.deployment.client.rules import SUFFIX, Rules, beside, read_rules
from ccfcpp.deployment.keys.local import FOLDER, HOST, PORT, free_key, require_this_machine

_RULES = [
    flags.Flag(
        name,
        "KEY=VALUE" if name == "accept" else "",
        values=", ".join(OPTIONAL) if name == "allow" else "",
        form={bool: bool, tuple: list[str]}.get(type(rule.default), str),
        panel="The owner's rules",
    )
    for name, rule in Rules.model_fields.items()
]
_DATA = flags.SKIP, flags.ENCODER, flags.LABEL_COLUMN, flags.TEXT_COLUMN


@dataclass(frozen=True)
class JoinOptions:
    """Command-line options with which a client takes part; the help of each describes it."""

    data: Annotated[
        str, typer.Option(help="Images, vectors or texts: a folder, an archive or a file.")
    ]
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server's gate.")] = (
        None
    )
    key: Annotated[
        Path | None,
        typer.Option(
            help="The client's private key (ccfcpp keys client); the passphrase of a sealed one is "
            "asked for."
        ),
    ] = None
    authority: Annotated[
        Path | None, typer.Option(help="The authority's certificate; ca.crt otherwise.")
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Try it out on this machine alone, with a key of keys/trial (ccfcpp serve "
            "--insecure); --key gives another folder.",
        ),
    ] = False
    state: Annotated[
        Path | None, typer.Option(help="Folder of what the client remembers; KEY.state otherwise.")
    ] = None

    @property
    def address(self) -> str:
        """The host and port of the server.

        Raises:
            UsageError: It is missing, or the key is.
        """
        server = self.server or (f"{HOST}:{PORT}" if self.insecure else None)
        if server is None or (self.key is None and not self.insecure):
            raise UsageError(
                f"{'--server' if server is None else '--key'} is missing: give --server HOST:PORT "
                "and --key, or try it out on this machine with --insecure"
            )
        return server


@with_flags((*_DATA, *_RULES), ClusterConfig, Rules)
def join(options: JoinOptions, named: flags.Named) -> None:
    """Take part in a federation with the images of this machine, which stay here.

    The owner's rules are options here, or lines of the file KEY.rules beside the
    key, such as "smallest_count: 10". What was sent is in the log: ccfcpp audit.
    No server can name an encoder for you, or a column with classes or texts.
    """
    insecure = options.insecure
    rules = {key: value for key, value in named.items() if key in Rules.model_fields}
    own = {key: value for key, value in named.items() if key not in rules}
    settings = validate(ClusterConfig, unflatten(own))
    host, _ = address(options.address)
    if insecure:
        require_this_machine(host)
        if options.authority is not None:
            raise UsageError(
                "--insecure has an authority of its own: leave --authority out, or --insecure"
            )
    if not Path(options.data).exists():
        raise UsageError(f"there are no images at {options.data}: give another --data")
    require_flower()
    place = options.key or FOLDER
    read_rules(beside(place, SUFFIX), rules)  # they are refused before a key is looked for
    with free_key(place) if insecure else nullcontext(place) as key:
        authority = key.parents[1] / "ca.crt" if insecure else options.authority or Path("ca.crt")
        _take_part(options, key, authority, rules, settings)


def _take_part(
    options: JoinOptions,
    key: Path,
    authority: Path,
    given: dict[str, object],
    settings: ClusterConfig,
) -> None:
    """Connect to the server with the owner's rules beside the key; ``given`` ones override them."""
    server, rules = options.address, read_rules(beside(key, SUFFIX), given)
    for path in (key, authority):
        if not path.is_file():
            raise UsageError(f"{path} is missing: make keys with ccfcpp keys")
    place = options.state or beside(key, ".state")
    display = StatusLine(progress_console())

    from ccfcpp.deployment.client.fleet import FleetClient
    from ccfcpp.deployment.client.run import load_data
    from ccfcpp.deployment.client.sums import Rosters
    from ccfcpp.deployment.client.worker import Worker
    from ccfcpp.deployment.keys.certificates import read_key
    from ccfcpp.runs.environment import choose_device, use_processors

    private = read_key(key)
    use_processors()
    watch_embedding(EmbeddingProgress(display.console))
    data, columns = settings.data, settings.vectors
    with _lock_state(place):
        worker = Worker(
            lambda spec: load_data(spec, options.data, data.skip, data.encoder, columns),
            place,
            rules,
            choose_device("auto"),
            display.print_line,
            server,
            Rosters(private, authority, place / "rosters", display.print_line),
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        display.print_line(f"joining {server} as {key.stem}; press Ctrl-C to leave")
        with display.live():
            FleetClient(server, authority, private, worker.answer, display).run()


@contextmanager
def _lock_state(state: Path) -> Iterator[None]:
    """Make and lock a client's state folder in the context.

    Raises:
        UsageError: It cannot be written, or another client uses it.
    """
    lock = state / "lock"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.touch(mode=0o600)
    except OSError as error:
        raise UsageError(
            f"what this client remembers cannot be written to {state} ({error.strerror}): give "
            "another --state"
        ) from error
    with locked(lock) as free:
        if not free:
            raise UsageError(
                f"another ccfcpp join uses {state}: end it, or give this one another --state"
            )
        yield
