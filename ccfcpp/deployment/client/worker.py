"""The worker of a client, which holds images and does the work that a server asks for."""

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.permissions import Kind
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import bytes_in_words
from ccfcpp.data import ImageData
from ccfcpp.data.cache import without_cache_writes
from ccfcpp.data.image_files import describe_reading
from ccfcpp.data.open import AnyData
from ccfcpp.deployment.client.answered_requests import Answered
from ccfcpp.deployment.client.audit import AuditEntry, AuditLog
from ccfcpp.deployment.client.local_randomness import OwnDraws
from ccfcpp.deployment.client.privacy_spent import Part, Spending
from ccfcpp.deployment.client.results import save_results
from ccfcpp.deployment.client.rules import NO_ROSTER, ForbiddenError, Rules
from ccfcpp.deployment.client.run import FOUND, ClientRun, make_client_run
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
from ccfcpp.engine.exchange import ClientWork, RefusedUpdateError, Task
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.client import SendsParts
from ccfcpp.privacy.sums.identity import Safeguard
from ccfcpp.runs.paths import RunPaths

if TYPE_CHECKING:
    from ccfcpp.deployment.client.sums import Rosters

_MOST_NONCES = 10_000
"""Number of stored nonces, to recognise a request that comes a second time."""
_STATUSES: dict[type[Exception], Status] = {ForbiddenError: "forbidden", LostMemoryError: "lost"}
_UNREADABLE = "0" * 32
"""Nonce of the response to a request whose header cannot be read."""


@dataclass
class Tally:
    """Totals of a client's work in a round, for a line when the round is over."""

    of: tuple[str, int] = "", -1
    names: list[str] = field(default_factory=list)
    seconds: float = 0.0
    sent: int = 0

    def line(self) -> str:
        """Return the round's exchanges, seconds and bytes as one line."""
        count = len(self.names)
        what = printable(self.names[0]) if count == 1 else f"{count} exchanges"
        sent = bytes_in_words(self.sent)
        return f"round {self.of[1] + 1}, {what}: {self.seconds:.1f} s, {sent} sent"


class Worker:
    """A resident client, which keeps loaded data and built networks from task to task.

    Args:
        load: Loads the client's images in the size that a run asks for.
        folder: Folder of the client's memory and log.
        rules: The owner's rules.
        server: Host and port of the server, for the log.
        rosters: Identify other clients; without them it takes part in no secure sums.
    """

    def __init__(
        self,
        load: Callable[[RunSpec], AnyData],
        folder: Path,
        rules: Rules = Rules(),  # noqa: B008 - it cannot change
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
        self.draws = OwnDraws(folder)
        self.answered = Answered(folder)
        self.memories = MemoryStore(folder / "memory", self.device)
        self.tally = Tally()
        self._seen: dict[str, None] = {}
        self._active: _ActiveRun | None = None

    def answer(self, packet: Packet) -> Packet:
        """Do the work of a request. Every request gets a response, and none raises an error."""
        try:
            request = Request.read(packet.header)
        except MessageError as error:
            self.say(f"a request was refused: {error}")
            told = "", "unreadable requests", (), "request", 0, "refused", str(error)
            self.log.add(AuditEntry(self.server, *told))
            return Packet(Response(nonce=_UNREADABLE, status="failed").written())
        payload = b""
        try:
            response, payload = self._follow(request, packet.payload)
        except (ForbiddenError, LostMemoryError, RefusedUpdateError, MessageError) as error:
            status = _STATUSES.get(type(error), "refused")
            self.say(f"{_described(request)}: {status}, {error}")
            reason = printable(str(error))
            response = Response(nonce=request.nonce, status=status, reason=reason)
        except Exception as error:
            # The text of an error may quote what only the owner may read, such as a path.
            response = Response(nonce=request.nonce, status="failed")
            why = str(error) if isinstance(error, UsageError) else traceback.format_exc()
            self.say(f"{_described(request)} failed: {why}")
        self._note(request, response, len(payload))
        return Packet(response.written(), payload)

    def _note(self, request: Request, response: Response, sent: int) -> None:
        """Record an answer in the owner's log, before it is sent."""
        spec, kinds, privacy = request.spec, tuple[Kind, ...](), PrivacyConfig()
        with suppress(UsageError):  # Then nothing is sent.
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

    def _follow(self, request: Request, payload: bytes) -> tuple[Response, bytes]:
        if request.nonce in self._seen:
            raise MessageError("this request has come before")
        self._seen[request.nonce] = None
        if len(self._seen) > _MOST_NONCES:
            del self._seen[next(iter(self._seen))]
        self.rules.check(request.spec)
        if request.kind == "hello":
            if request.spec.privacy.secure_sums:
                self._known_rosters.take(payload)
            return Response(nonce=request.nonce, facts=self._facts(request.spec)), b""
        return self._work(request, payload)

    @property
    def _known_rosters(self) -> "Rosters":
        if self.rosters is None:
            raise ForbiddenError(NO_ROSTER)
        return self.rosters

    def _guard(self, request: Request) -> Safeguard:
        """Return the protection of this client in the secure sums of a run."""
        if not request.spec.privacy.secure_sums:
            return Safeguard()
        told = request.run, request.spec, request.client
        return self._known_rosters.guard(*told, self.rules.floor)

    def _facts(self, spec: RunSpec) -> Facts:
        with without_cache_writes():  # a handshake with each size would leave a copy
            data = self._load(spec)
        run = make_client_run(spec, data, self.device)
        if spec.image_shape:  # of a run that is under way
            _check_shape(run)
        self.rules.check_data(spec, len(run.images), len(data), len(data.classes))
        if not isinstance(data, ImageData):  # of which the handshake could not know
            self.rules.check(spec.model_copy(update={"image_shape": data.vectors.shape[1:]}))
        return Facts(
            samples=len(run.images),
            sizes=data.sizes if isinstance(data, ImageData) else None,
            length=0 if isinstance(data, ImageData) else data.vectors.shape[1],
            columns=() if isinstance(data, ImageData) else data.columns,
            encoder="" if isinstance(data, ImageData) else data.encoder,
            skipped=data.skipped or 0,
            classes=tuple(map(canonical, data.classes)) if self.rules.names(spec) else (),
            counts="counts" in self.rules.allowed and run.data.labels is not None,
        )

    def _work(self, request: Request, payload: bytes) -> tuple[Response, bytes]:
        began = time.monotonic()
        active = self._activate(request)
        active.run.check_place(request.exchange, request.round, request.index)
        work = active.works.get(request.exchange)
        if work is None:
            raise RefusedUpdateError(f"there is no exchange {request.exchange!r}")
        message = deserialize(work.exchange.message, payload, self.device)
        again = self._comes_again(request, message)
        self._spend(request, work)
        update, remembers = self._update(active, work, request, message)
        sent = serialize(NO_COUNTS if again else update)
        if request.exchange == COUNTS:
            found = active.client.scratch.pop(FOUND)
            rows = active.run.table(message, active.client, found)
            pictures = getattr(active.run.data, "pictures", None)
            save_results(self.folder, found, rows, active.run.images, pictures)
            active.run.save_model(message, self.folder)
            if request.round >= active.run.algorithm.rounds:
                self.say(self._done(request.spec))
        elif request.round < active.run.algorithm.rounds:
            if self.tally.of != (request.run, request.round):
                self.tally = Tally((request.run, request.round))
            self.tally.names.append(request.exchange)
            self.tally.seconds += time.monotonic() - began
            self.tally.sent += len(sent)
            if request.last:
                self.say(self.tally.line())
        if not again and not self.rules.reproducible:
            self.answered.note(request, message)
        return Response(nonce=request.nonce, remembers=remembers), sent

    def _comes_again(self, request: Request, message: object) -> bool:
        """Return whether the model comes again, as after a lost answer; counts are sent only once.

        Raises:
            MessageError: Another exchange was answered before.
            ForbiddenError: The owner does not allow so many.
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

    def _done(self, spec: RunSpec) -> str:
        """Describe the owner's files at the end of a run."""
        if spec.command == "classify":
            return "done: the run is over"
        return (
            f"done: the model lies in {self.folder}; to look at the clusters: ccfcpp report "
            f"{self.folder}"
        )

    def _spend(self, request: Request, work: ClientWork[object, object]) -> None:
        """Record the part of a sum that a request asks for, before it is computed."""
        privacy, rules = request.spec.privacy, self.rules
        if privacy.level != "none" and isinstance(work, SendsParts):
            part = Part.of(request.run, privacy, work.work.exchange)
            self.spending.allow(part, rules.delta, rules.only_private, rules.budget)

    def _update(
        self,
        active: "_ActiveRun",
        work: ClientWork[object, object],
        request: Request,
        message: object,
    ) -> tuple[object, bool]:
        """Return the update of an exchange, and whether the client's memory has changed."""
        asked = request.exchange, request.round, request.index, request.last, request.samples
        task = Task(active.run.spec.method, *asked)
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
            # Other work, such as a stage of a secure sum, may come before the server has accepted
            # what is remembered now.
            self.memories.prune(request.run, request.remembered, request.kept, request.version)
        return update, remembers

    def _activate(self, request: Request) -> "_ActiveRun":
        """Return the client's side of the run, built when the run changes."""
        active = self._active
        now = request.round, request.index
        # A server that resumes from a checkpoint may send another model of a version seen before.
        if active is None or not active.is_of(request) or now < active.reached:
            # The memory of the old run is free before the new one is built.
            active = self._active = None
            run = make_client_run(request.spec, self._load(request.spec), self.device)
            held = len(run.data), len(run.data.classes)
            self.rules.check_data(request.spec, len(run.images), *held)
            guard = self._guard(request)
            draws = None if self.rules.reproducible else self.draws
            active = self._active = _ActiveRun(request, run, self.rules, guard, draws)
        active.reached = now
        return active

    def _load(self, spec: RunSpec) -> AnyData:
        """Load the images, and show the owner how the files were read."""
        data = self.load(spec)
        (self.folder / "skipped.csv").unlink(missing_ok=True)
        if data.reading is not None and data.reading.skipped:
            RunPaths(self.folder).write_table("skipped", data.reading.rows)
        # Before there is a shape, others' images have had no say in it.
        if spec.image_shape:
            for line in describe_reading(data, str(self.folder / "skipped.csv")):
                self.say(line)
        return data


class _ActiveRun:
    """Everything that a client has built for a run.

    Attributes:
        reached: Round and index of the last request.
    """

    def __init__(
        self,
        request: Request,
        run: ClientRun[object],
        rules: Rules,
        guard: Safeguard,
        draws: OwnDraws | None,
    ) -> None:
        _check_shape(run)
        run.prepare()
        self.reached = -1, -1
        self._of = request.run, request.session, request.spec, request.client
        self.run = run
        self.client: Client = run.client(request.client)
        self.works: dict[str, ClientWork[object, object]] = dict(
            run.works(rules.least(run.spec), "counts" in rules.allowed, guard)
        )
        self.randomness = Randomness(int(run.spec.config.get("seed", 0)))
        if draws is not None:
            self.randomness, self.client.grouping = draws.of_run(request.run), draws.grouping

    def is_of(self, request: Request) -> bool:
        """Return whether a request is of this run."""
        return self._of == (request.run, request.session, request.spec, request.client)


def _check_shape(run: ClientRun[object]) -> None:
    shape = tuple(run.images.shape[1:])
    if shape != run.spec.image_shape:
        raise RefusedUpdateError(f"its {run.data.unit}s are {shape}, not {run.spec.image_shape}")


def _described(request: Request) -> str:
    """Describe a request in a few words."""
    if request.kind == "hello":
        return f"{printable(request.spec.method)} asks for the images' facts"
    return f"round {request.round + 1}, {printable(request.exchange)}"
