"""The command ``ccfcpp join``."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli.options import grouped
from ccfcpp.cli.place import address, require_flower
from ccfcpp.cli.telling import Telling
from ccfcpp.cli.terminal import EmbeddingTold, progress_console
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import locked
from ccfcpp.core.pace import watch_embedding
from ccfcpp.core.sending import ALWAYS, KINDS
from ccfcpp.deployment.keys.local import FOLDER, HOST, PORT, free_key, require_this_machine

if TYPE_CHECKING:
    from ccfcpp.deployment.client.rules import Rules

_OPTIONAL = [kind for kind in KINDS if kind not in ALWAYS]


@dataclass(frozen=True)
class Terms:
    """How a client takes part, as the help of each option says."""

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
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help=f"Also send: {', '.join(_OPTIONAL)}. Models, centroids of latents and sums are "
            "allowed.",
        ),
    ] = None
    smallest_count: Annotated[
        int | None,
        typer.Option(min=0, help="Send no centroid, mean or sum over fewer images; 5 otherwise."),
    ] = None
    only_secure_sums: Annotated[
        bool,
        typer.Option(
            "--only-secure-sums",
            help="Refuse a run in which the server sees what this client sends.",
        ),
    ] = False
    honest: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Refuse a secure sum in which the server could learn the sum of fewer honest "
            "clients, this one among them; 2 otherwise.",
        ),
    ] = None
    colluders: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="For --honest: so many other clients help the server; 0 otherwise.",
        ),
    ] = None
    only_private: Annotated[
        float | None,
        typer.Option(
            "--only-private",
            metavar="EPSILON",
            help="Refuse a run without differential privacy, or with a larger ε; with "
            "--only-secure-sums also one in which the server adds the noise.",
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(metavar="EPSILON", help="Refuse what would cost more in all runs together."),
    ] = None
    delta: Annotated[
        float | None,
        typer.Option(help="Largest δ accepted with --only-private or --budget; 1e-5 otherwise."),
    ] = None
    most_exchanges: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Refuse further exchanges of a run; 5,000 otherwise."
        ),
    ] = None
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Let a server that was started again repeat what was lost so many times in a run; "
            "10 otherwise.",
        ),
    ] = None
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Also accept this setting of a run, which no installed preset has; all: any.",
        ),
    ] = None
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible",
            help="For tests: draw from the run's seed. The server then knows which images are in "
            "a sum.",
        ),
    ] = False
    skip: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the files that may be unreadable, such as 5%; 1% otherwise.",
        ),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Pre-trained encoder that makes vectors of the data here, as ccfcpp cluster takes "
            "it. No server can make a client load one.",
        ),
    ] = None
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of a table with classes. No server can name one for you."
        ),
    ] = None
    text_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of a table with texts, for --encoder.")
    ] = "text"
    state: Annotated[
        Path | None, typer.Option(help="Folder of what the client remembers; KEY.state otherwise.")
    ] = None

    @property
    def address(self) -> str:
        """Host and port of the server.

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

    def rules(self, key: Path) -> "Rules":
        """Return the owner's rules: of the file beside the key, and above them those given here.

        Raises:
            UsageError: One of them is refused.
        """
        from ccfcpp.deployment.client.rules import SUFFIX, Rules, read_rules

        given = {name: getattr(self, name) for name in Rules.model_fields}
        known = {name: x for name, x in given.items() if x is not None and x is not False}
        return read_rules(key.with_suffix(SUFFIX), known)


@grouped
def join(terms: Terms) -> None:
    """Take part in a federation with the images of this machine, which stay here.

    The owner's rules are options here, or lines of the file KEY.rules beside the
    key, such as "smallest_count: 10". What was sent is in the log: ccfcpp audit.
    """
    server, insecure = terms.address, terms.insecure
    host, _ = address(server)
    if insecure:
        require_this_machine(host)
    if not Path(terms.data).exists():
        raise UsageError(f"there are no images at {terms.data}: give another --data")
    require_flower()
    if terms.encoder is not None:
        EncoderName.parse(terms.encoder)
    terms.rules(terms.key or FOLDER)  # they are refused before a key is looked for
    with free_key(terms.key or FOLDER) if insecure else nullcontext(terms.key) as own:
        assert own is not None  # checked above
        certificate = own.parents[1] / "ca.crt" if insecure else terms.authority or Path("ca.crt")
        _take_part(terms, server, own, certificate)


def _take_part(terms: Terms, server: str, key: Path, authority: Path) -> None:
    rules = terms.rules(key)
    for path in (key, authority):
        if not path.is_file():
            raise UsageError(f"{path} is missing: make keys with ccfcpp keys")
    place = terms.state or key.with_suffix(".state")
    telling = Telling(progress_console())

    from ccfcpp.core.config import VectorsConfig
    from ccfcpp.deployment.client.fleet import FleetClient
    from ccfcpp.deployment.client.run import load_for
    from ccfcpp.deployment.client.sums import Rosters
    from ccfcpp.deployment.client.worker import Worker
    from ccfcpp.deployment.keys.certificates import read_key
    from ccfcpp.runs.environment import choose_device, use_processors

    private = read_key(key)
    use_processors()
    watch_embedding(EmbeddingTold(telling.console))
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    columns = VectorsConfig(label_column=terms.label_column, text_column=terms.text_column)
    with _alone(place):
        worker = Worker(
            lambda spec: load_for(spec, terms.data, terms.skip, terms.encoder, columns),
            place,
            rules,
            choose_device("auto"),
            telling.line,
            server,
            Rosters(private, authority, place / "rosters", telling.line),
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        telling.line(f"joining {server} as {key.stem}; press Ctrl-C to leave")
        with telling.shown():
            FleetClient(server, authority, private, worker.answer, telling).run()


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Lock a state folder: two clients there would each count their own sums alone."""
    lock = state / "lock"
    lock.touch(mode=0o600)
    with locked(lock) as free:
        if not free:
            raise UsageError(
                f"another ccfcpp join uses {state}: end it, or give this one another --state"
            )
        yield
