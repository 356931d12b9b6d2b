"""The command ``ccfcpp join``."""

import functools
import inspect
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic.fields import FieldInfo

from ccfcpp.cli.flags import Command, give_parameters
from ccfcpp.cli.options import grouped
from ccfcpp.cli.place import address, require_flower
from ccfcpp.cli.telling import Telling
from ccfcpp.cli.terminal import EmbeddingTold, progress_console
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import locked
from ccfcpp.core.permissions import ALWAYS, KINDS
from ccfcpp.core.progress import watch_embedding
from ccfcpp.deployment.client.rules import SUFFIX, Rules, read_rules
from ccfcpp.deployment.keys.local import FOLDER, HOST, PORT, free_key, require_this_machine

_METAVARS = {
    "allow": "|".join(kind for kind in KINDS if kind not in ALWAYS),
    "accept": "KEY=VALUE",
    **dict.fromkeys(("only_private", "budget", "delta"), "NUMBER"),
}
"""What stands for the value of a rule in the help; ``N`` for those of the others."""


@dataclass(frozen=True)
class JoinTerms:
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


def _option(name: str, rule: FieldInfo) -> inspect.Parameter:
    """Return the option of a rule. Its text is read as a file's is."""
    default = rule.default
    kind: type = {bool: bool, tuple: list[str]}.get(type(default), str)
    text = " ".join((rule.description or "").split())
    if kind is str and default is not None:
        text = f"{text.rstrip('.')}; {default} otherwise."
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=None if kind is bool else _METAVARS.get(name, "N"),
        help=text,
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


def _ruled(command: Command) -> Command:
    """Give a command an option for each of the owner's rules; those given are its ``rules``."""

    @functools.wraps(command)
    def wrapper(**given: object) -> None:
        values = {name: given.pop(name) for name in Rules.model_fields}
        rules = {name: value for name, value in values.items() if value not in (None, False)}
        command(rules=rules, **given)

    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["rules"]
    options = [_option(name, rule) for name, rule in Rules.model_fields.items()]
    give_parameters(wrapper, [*own.values(), *options])
    return wrapper


@_ruled
@grouped
def join(terms: JoinTerms, rules: dict[str, object]) -> None:
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
    _rules_of(terms.key or FOLDER, rules)  # they are refused before a key is looked for
    with free_key(terms.key or FOLDER) if insecure else nullcontext(terms.key) as own:
        assert own is not None  # checked above
        certificate = own.parents[1] / "ca.crt" if insecure else terms.authority or Path("ca.crt")
        _take_part(terms, _rules_of(own, rules), server, own, certificate)


def _rules_of(key: Path, given: dict[str, object]) -> Rules:
    """Return the owner's rules: of the file beside the key, and above them those given here."""
    return read_rules(key.with_suffix(SUFFIX), dict(given))


def _take_part(terms: JoinTerms, rules: Rules, server: str, key: Path, authority: Path) -> None:
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
