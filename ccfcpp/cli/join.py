"""The command ``ccfcpp join``."""

import math
import signal
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli.options import grouped
from ccfcpp.cli.serve import address, require_flower
from ccfcpp.cli.terminal import progress_console
from ccfcpp.core.errors import UsageError
from ccfcpp.core.sending import ALWAYS, KINDS, Kind
from ccfcpp.deployment.keys.local import FOLDER, HOST, PORT, free_key, require_this_machine

if TYPE_CHECKING:
    from ccfcpp.deployment.link.run_spec import PrivacyLimit

_OPTIONAL = [kind for kind in KINDS if kind not in ALWAYS]


@dataclass(frozen=True)
class Terms:
    """How a client takes part, as the help of each option says."""

    data: Annotated[str, typer.Option(help="Image folder, archive of one, or .npz file.")]
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server's gate.")] = (
        None
    )
    key: Annotated[
        Path | None, typer.Option(help="The client's private key (ccfcpp keys client).")
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
            help=f"Also send: {', '.join(_OPTIONAL)}. Models, centroids and sums are allowed.",
        ),
    ] = None
    only_secure_sums: Annotated[
        bool,
        typer.Option(
            "--only-secure-sums",
            help="Refuse a run in which the server sees what this client sends.",
        ),
    ] = False
    only_private: Annotated[
        float | None,
        typer.Option(
            "--only-private",
            metavar="EPSILON",
            help="Refuse a run without differential privacy, or with a larger ε.",
        ),
    ] = None
    delta: Annotated[
        float | None,
        typer.Option(help="With --only-private: refuse a larger δ, too; above 1e-5 otherwise."),
    ] = None
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

    @property
    def allowed(self) -> frozenset[Kind]:
        """The kinds of messages that may be sent beside those that always may."""
        if unknown := [kind for kind in self.allow or [] if kind not in KINDS]:
            raise UsageError(
                f"--allow {unknown[0]} is refused: it should be {' or '.join(_OPTIONAL)}"
            )
        return frozenset(kind for kind in KINDS if kind in (self.allow or []))


@grouped
def join(terms: Terms) -> None:
    """Take part in a federation with the images of this machine, which stay here."""
    server, insecure = terms.address, terms.insecure
    host, _ = address(server)
    if insecure:
        require_this_machine(host)
    allowed = terms.allowed
    if not Path(terms.data).exists():
        raise UsageError(f"there are no images at {terms.data}: give another --data")
    limit = privacy_limit(terms.only_private, terms.delta)
    require_flower()
    with free_key(terms.key or FOLDER) if insecure else nullcontext(terms.key) as own:
        assert own is not None  # checked above
        certificate = own.parents[1] / "ca.crt" if insecure else terms.authority or Path("ca.crt")
        _take_part(terms, server, own, certificate, allowed, limit)


def privacy_limit(epsilon: float | None, delta: float | None) -> "PrivacyLimit | None":
    """What an owner insists on; None: on nothing.

    Raises:
        UsageError: There is no such ε or δ.
    """
    from ccfcpp.deployment.link.run_spec import PrivacyLimit

    if epsilon is None:
        if delta is not None:
            raise UsageError("--delta does nothing without --only-private: give both, or neither")
        return None
    delta = 1e-5 if delta is None else delta
    if not 0 < epsilon < math.inf:
        raise UsageError(f"--only-private {epsilon:g} is refused: give an ε above 0")
    if not 0 < delta < 1:
        raise UsageError(f"--delta {delta:g} is refused: give a δ between 0 and 1")
    return PrivacyLimit(epsilon, delta)


def _take_part(
    terms: Terms,
    server: str,
    key: Path,
    authority: Path,
    allowed: frozenset[Kind],
    limit: "PrivacyLimit | None",
) -> None:
    for path in (key, authority):
        if not path.is_file():
            raise UsageError(f"{path} is missing: make keys with ccfcpp keys")
    place = terms.state or key.with_suffix(".state")
    console = progress_console()

    from ccfcpp.deployment.client.fleet import FleetClient
    from ccfcpp.deployment.client.run import load_for
    from ccfcpp.deployment.client.worker import Worker
    from ccfcpp.runs.environment import choose_device, use_processors

    use_processors()
    worker = Worker(
        lambda spec: load_for(spec, terms.data),
        place,
        allowed,
        choose_device("auto"),
        console.print,
        only_secure_sums=terms.only_secure_sums,
        only_private=limit,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console.print(f"joining {server} as {key.stem}; press Ctrl-C to leave")
    FleetClient(server, authority, key, worker.answer, console.print).run()
