"""A client's worker, which answers the server's requests with its images."""

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.permissions import Kind
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import bytes_in_words
from ccfcpp.data.cache import without_cache_writes
from ccfcpp.data.image_files import describe_reading
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import AnyData
from ccfcpp.deployment.client.answered_requests import AnsweredRequests
from ccfcpp.deployment.client.audit import AuditEntry, AuditLog
from ccfcpp.deployment.client.local_randomness import LocalRandomness
from ccfcpp.deployment.client.privacy_spent import Spending, SumCost
from ccfcpp.deployment.client.rules import NO_ROSTER, ForbiddenError, Rules
from ccfcpp.deployment.client.run import ASSIGNMENTS, ClientRun, make_client_run
from ccfcpp.deployment.client.state_files import LostMemoryError, MemoryStore
from ccfcpp.deployment.link.algorithms import COUNTS, NO_COUNTS
from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    Status,
    deserialize,
    printable,
    serialize,
)
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, RefusedUpdateError, Task
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.client import SendsParts
from ccfcpp.privacy.sums.identity import Floor, Safeguard
from ccfcpp.runs.paths import RunPaths

if TYPE_CHECKING:
    from ccfcpp.deployment.client.sums import Rosters

_MOST_NONCES = 10_000
"""Number of stored nonces, which detect repeated requests."""
_MOST_LETTERS = 1000
"""Longest reason that the owner is shown: a reason may quote what the server has sent."""
_STATUSES: dict[type[Exception], Status] = {ForbiddenError: "forbidden", LostMemoryError: "lost"}
_UNREADABLE = "0" * 32
"""Nonce of the response to a request whose header cannot be read."""


@dataclass
class RoundTotals:
    """Totals of a client's work in one round, for a message to its owner at the round's end.

    Attributes:
        of: Token of the run, and number of the round.
        names: Names of the exchanges.
        seconds: Time for the work.
        sent: Number of bytes sent.
    """

    of: tuple[str, int] = "", -1
    names: list[str] = field(default_factory=list)
    seconds: float = 0.0
    sent: int = 0

    def line(self) -> str:
        """Return the totals as one line of text, for the owner."""
        count = len(self.names)
        what = printable(self.names[0]) if count == 1 else f"{count} exchanges"
        sent = bytes_in_words(self.sent)
        return f"round {self.of[1] + 1}, {what}: {self.seconds:.1f} s, {sent} sent"


class Worker:
    """Client side of a server's runs: it checks each request and computes the response.

    Args:
        load: Loads the client's data in the form that a run's description asks for.
        folder: Folder of the client's state: memory, log and results.
        rules: The owner's rules.
        device: Device for training; None: the CPU.
        say: Shows the owner a message.
        server: Host and port of the server, for the log.
        rosters: Signed lists of all clients' keys; None: the client refuses secure sums.
    """

    def __init__(
        self,
        load: Callable[[RunSpec], AnyData],
        folder: Path,
        rules: Rules,
        device: torch.device | None = None,
        say: Callable[[str], None] = lambda line: None,
        server: str = "",
        rosters: "Rosters | None" = None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.load = load
        self.folder = folder
        self.rules = rules
        self.device = device or torch.device("cpu")
        self.say = say
        self.server = server
        self.rosters = rosters
        self.log = AuditLog(folder)
        self.spending = Spending(folder)
        self.local_randomness = LocalRandomness(folder)
        self.answered = AnsweredRequests(folder)
        self.memories = MemoryStore(folder / "memory", self.device)
        self.tally = RoundTotals()
        self._seen: dict[str, None] = {}
        self._active: _ActiveRun | None = None

    def answer(self, packet: Packet) -> Packet:
        """Return the response to a request packet. Errors become responses and are never raised.

        The exception is an ``OSError`` of the log: what cannot be logged is not sent.
        """
        try:
            request = Request.read(packet.header)
        except MessageError as error:
            self.say(f"a request was refused: {error}")
            unreadable = "", "unreadable requests", (), "request", 0, "refused", str(error)
            self.log.add(AuditEntry(self.server, *unreadable))
            return Packet(Response(nonce=_UNREADABLE, status="failed").to_json())
        payload = b""
        try:
            response, payload = self._handle(request, packet.payload)
        except (ForbiddenError, LostMemoryError, RefusedUpdateError, MessageError) as error:
            status = _STATUSES.get(type(error), "refused")
            self.say(f"{_describe(request)}: {status}, {printable(str(error), _MOST_LETTERS)}")
            reason = printable(str(error))
            response = Response(nonce=request.nonce, status=status, reason=reason)
        except Exception as error:
            # An error's text may contain private data, such as a path: it is not sent.
            response = Response(nonce=request.nonce, status="failed")
            why = traceback.format_exc()
            if isinstance(error, UsageError):
                why = printable(str(error), _MOST_LETTERS)
            self.say(f"{_describe(request)} failed: {why}")
        self._log_answer(request, response, len(payload))
        return Packet(response.to_json(), payload)

    def _log_answer(self, request: Request, response: Response, sent: int) -> None:
        """Log a request and its response before it is sent; ``sent``: bytes of the payload."""
        spec, kinds, privacy = request.spec, tuple[Kind, ...](), PrivacyConfig()
        with suppress(UsageError):  # A run with invalid settings sends nothing.
            kinds, privacy = spec.kinds, spec.privacy
        self.log.add(
            AuditEntry(
                server=self.server,
                run=request.run,
                method=printable(spec.method),
                kinds=kinds,
                asked="hello" if request.kind == "hello" else printable(request.exchange),
                round=request.round,
                status=response.status,
                reason=response.reason,
                bytes=sent,
                privacy=None if privacy.level == "none" else privacy.epsilon,
                secure_sums=privacy.secure_sums,
                own_noise=privacy.own_noise,
            )
        )

    def _handle(self, request: Request, payload: bytes) -> tuple[Response, bytes]:
        if request.nonce in self._seen:
            raise MessageError("this request has come before")
        self._seen[request.nonce] = None
        if len(self._seen) > _MOST_NONCES:
            del self._seen[next(iter(self._seen))]
        self.rules.check(request.spec)
        if request.kind == "hello":
            if request.spec.privacy.secure_sums:
                self._known_rosters.store(payload)
            return Response(nonce=request.nonce, facts=self._facts(request.spec)), b""
        return self._work(request, payload)

    @property
    def _known_rosters(self) -> "Rosters":
        if self.rosters is None:
            raise ForbiddenError(NO_ROSTER)
        return self.rosters

    def _safeguard(self, request: Request) -> Safeguard:
        """Return what protects this client in the secure sums of a request's run, if it has any."""
        if not request.spec.privacy.secure_sums:
            return Safeguard()
        floor = Floor(colluders=self.rules.colluders, honest=self.rules.honest)
        run = request.run, request.spec, request.client
        return self._known_rosters.safeguard(*run, floor)

    def _facts(self, spec: RunSpec) -> Facts:
        with without_cache_writes():  # each image size asked for would be cached
            data = self._load(spec)
        run = make_client_run(spec, data, self.device)
        if spec.image_shape:  # known if the run has begun
            _check_shape(run)
        self.rules.check_data(spec, len(run.images), len(data), len(data.classes))
        if isinstance(data, ImageData):
            form: Tree = {"sizes": data.sizes}
        else:  # vectors send other kinds of data than images
            length = data.vectors.shape[1]
            self.rules.check(spec.model_copy(update={"image_shape": (length,)}))
            form = {"length": length, "columns": data.columns, "encoder": data.encoder}
        named = data.classes if self.rules.sends_class_names(spec) else ()
        return Facts(
            samples=len(run.images),
            skipped=data.skipped or 0,
            classes=tuple(map(canonical, named)),
            counts="counts" in self.rules.allowed and data.labels is not None,
            **form,
        )

    def _work(self, request: Request, payload: bytes) -> tuple[Response, bytes]:
        began = time.monotonic()
        active = self._activate(request)
        active.run.check_order(request.exchange, request.round, request.index)
        work = active.works.get(request.exchange)
        if work is None:
            raise RefusedUpdateError(f"there is no exchange {request.exchange!r}")
        message = deserialize(work.exchange.message, payload, self.device)
        repeated = self._is_repeated(request, message)
        self._record_privacy(request, work)
        update, remembers = self._update(active, work, request, message)
        sent = serialize(NO_COUNTS if repeated else update)
        if request.exchange == COUNTS:
            assigned = active.client.scratch.pop(ASSIGNMENTS)
            active.run.save(message, active.client, assigned, self.folder)
            if request.round >= active.run.algorithm.rounds:
                self.say(self._describe_end(request.spec))
        elif request.round < active.run.algorithm.rounds:
            if self.tally.of != (request.run, request.round):
                self.tally = RoundTotals((request.run, request.round))
            self.tally.names.append(request.exchange)
            self.tally.seconds += time.monotonic() - began
            self.tally.sent += len(sent)
            if request.last:
                self.say(self.tally.line())
        if not repeated and not self.rules.reproducible:
            self.answered.record(request, message)
        return Response(nonce=request.nonce, remembers=remembers), sent

    def _is_repeated(self, request: Request, message: object) -> bool:
        """Return whether a request for the exchange ``counts`` is repeated; it then gets no counts.

        Raises:
            MessageError: A request for another exchange is repeated.
            ForbiddenError: The owner does not allow so many exchanges or restarts.
        """
        if self.rules.reproducible:
            return False
        try:
            self.answered.check(request, self.rules, message)
        except MessageError:
            if request.exchange != COUNTS:
                raise
            return True
        return False

    def _describe_end(self, spec: RunSpec) -> str:
        """Return the owner's message at the end of a run."""
        if spec.command == "classify":
            return "done: the run is over"
        return (
            f"done: the model lies in {self.folder}; to look at the clusters: ccfcpp report "
            f"{self.folder}"
        )

    def _record_privacy(self, request: Request, work: AnyClientWork) -> None:
        """Record the privacy cost of the noisy sum, if any, that the client is about to compute."""
        privacy, rules = request.spec.privacy, self.rules
        if privacy.level != "none" and isinstance(work, SendsParts):
            part = SumCost.of(request.run, privacy, work.work.exchange)
            self.spending.record(part, rules.delta, rules.only_private, rules.budget)

    def _update(
        self, active: "_ActiveRun", work: AnyClientWork, request: Request, message: object
    ) -> tuple[object, bool]:
        """Return the client's update in an exchange, and whether its local state has changed."""
        position = request.exchange, request.round, request.index, request.last, request.samples
        task = Task(active.run.spec.method, *position)
        client, uses_memory = active.client, work.exchange.uses_memory
        before = self.memories.load(request.run, request.remembered) if uses_memory else {}
        client.memory = before
        try:
            randomness = active.randomness.at_round(request.round)
            (update,) = work.local_updates(task, message, [client], randomness)
            memory = client.memory
        finally:
            client.memory = {}
        if isinstance(update, RefusedUpdateError):
            raise update
        if remembers := memory is not before:
            self.memories.save(request.run, request.version, memory)
        if uses_memory:
            # The old version is kept, too: the server may not have accepted the new one yet, for
            # example during the stages of a secure sum.
            self.memories.prune(request.run, request.remembered, request.kept, request.version)
        return update, remembers

    def _activate(self, request: Request) -> "_ActiveRun":
        """Return the client's side of a request's run.

        It is built anew if the run or its settings changed, or if the server restarted or rewound.
        """
        active = self._active
        now = request.round, request.index
        # A server that resumes from a checkpoint may send a different model of the same version.
        if active is None or not active.is_of(request) or now < active.reached:
            # Free the old run's memory before the new one is built.
            active = self._active = None
            run = make_client_run(request.spec, self._load(request.spec), self.device)
            sizes = len(run.data), len(run.data.classes)
            self.rules.check_data(request.spec, len(run.images), *sizes)
            guard = self._safeguard(request)
            draws = None if self.rules.reproducible else self.local_randomness
            active = self._active = _ActiveRun(request, run, self.rules, guard, draws)
        active.reached = now
        return active

    def _load(self, spec: RunSpec) -> AnyData:
        """Load the data for a run; tell the owner how files were read, and list those left out."""
        data = self.load(spec)
        (self.folder / "skipped.csv").unlink(missing_ok=True)
        if data.reading is not None and data.reading.skipped:
            RunPaths(self.folder).write_table("skipped", data.reading.rows)
        # During the handshake the image shape is not known yet: nothing is shown.
        if spec.image_shape:
            for line in describe_reading(data, str(self.folder / "skipped.csv")):
                self.say(line)
        return data


class _ActiveRun:
    """A client's side of the current run: what it has built for it, and how far it has come.

    Attributes:
        reached: Round of the last request, and index of its exchange in the round.
    """

    def __init__(
        self,
        request: Request,
        run: ClientRun[object],
        rules: Rules,
        guard: Safeguard,
        draws: LocalRandomness | None,
    ) -> None:
        _check_shape(run)
        run.prepare()
        self.reached = -1, -1
        self._of = request.run, request.session, request.spec, request.client
        self.run = run
        self.client: Client = run.client(request.client)
        self.works: dict[str, AnyClientWork] = dict(
            run.works(rules.fewest_images(run.spec), "counts" in rules.allowed, guard)
        )
        self.randomness = Randomness(int(run.spec.config.get("seed", 0)))
        if draws is not None:
            self.randomness, self.client.grouping = draws.for_run(request.run), draws.grouping

    def is_of(self, request: Request) -> bool:
        """Return whether a request is of this run: same settings, and no restart of the server."""
        return self._of == (request.run, request.session, request.spec, request.client)


def _check_shape(run: ClientRun[object]) -> None:
    shape = tuple(run.images.shape[1:])
    if shape != run.spec.image_shape:
        raise RefusedUpdateError(f"its {run.data.unit}s are {shape}, not {run.spec.image_shape}")


def _describe(request: Request) -> str:
    """Return a few words that name a request in messages to the owner."""
    if request.kind == "hello":
        return f"{printable(request.spec.method)} asks for the images' facts"
    return f"round {request.round + 1}, {printable(request.exchange)}"
