"""A client: it holds images, and does the work that a server asks for."""

import io
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.sending import ALWAYS, Kind
from ccfcpp.core.units import bytes_in_words
from ccfcpp.data import ImageData
from ccfcpp.deployment.client.memory_store import LostMemoryError, MemoryStore
from ccfcpp.deployment.client.run import COUNTS, FOUND, ClientRun, make_client_run
from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    deserialize,
    serialize,
    shown,
)
from ccfcpp.deployment.link.packet import MOST_PAYLOAD_BYTES, Packet
from ccfcpp.deployment.link.run_spec import Facts, PrivacyLimit, RunSpec
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, RefusedUpdateError, Task

_MOST_NONCES = 10_000
"""Nonces that are remembered, to tell an order that comes a second time."""
_UNREADABLE = "0" * 32


class ForbiddenError(Exception):
    """The owner of the images does not allow what a run would send; the message says what."""


class Worker:
    """A resident client: what it has loaded and built serves for many tasks.

    Args:
        load: Gives the client's images, in the size that a run has them.
        folder: Where its memory goes, and what the run finds for its images.
        allowed: What its owner allows to send, beside models, centroids and sums.
        device: Where it computes.
        say: Takes a line for the owner.
        most_bytes: How large a payload may be.
        only_secure_sums: Whether its owner allows nothing that the server sees by itself.
        only_private: How much a run may tell by what it publishes; None: anything.
    """

    def __init__(
        self,
        load: Callable[[RunSpec], ImageData],
        folder: Path,
        allowed: frozenset[Kind] = frozenset(),
        device: torch.device | None = None,
        say: Callable[[str], None] = lambda line: None,
        most_bytes: int = MOST_PAYLOAD_BYTES,
        only_secure_sums: bool = False,
        only_private: PrivacyLimit | None = None,
    ) -> None:
        self.load = load
        self.folder = folder
        self.allowed = allowed | ALWAYS
        self.device = device or torch.device("cpu")
        self.say = say
        self.most_bytes = most_bytes
        self.only_secure_sums = only_secure_sums
        self.only_private = only_private
        self.memory_store = MemoryStore(folder / "memory", self.device)
        self.tally = Tally()
        self._seen: dict[str, None] = {}
        self._hired: tuple[RunSpec, _Hired] | None = None

    def answer(self, packet: Packet) -> Packet:
        """Do what an order asks for. Whatever it is, there is an answer, and no error."""
        try:
            order = Request.read(packet.header)
        except MessageError as error:
            self.say(f"an order was refused: {error}")
            return _written(Response(nonce=_UNREADABLE, status="failed"))
        try:
            answer, payload = self._follow(order, packet.payload)
        except ForbiddenError as error:
            answer, payload = self._declined(order, "forbidden", str(error)), b""
        except LostMemoryError:
            answer, payload = self._declined(order, "lost", "what it remembered is gone"), b""
        except (RefusedUpdateError, MessageError) as error:
            answer, payload = self._declined(order, "refused", str(error)), b""
        except Exception as error:
            # The text of an error may quote what only the owner may read, such as a path.
            answer, payload = Response(nonce=order.nonce, status="failed"), b""
            mend = str(error) if isinstance(error, UsageError) else traceback.format_exc()
            self.say(f"{_described(order)} failed: {mend}")
        return _written(answer, payload)

    def _declined(self, order: Request, status: str, reason: str) -> Response:
        self.say(f"{_described(order)}: {status}, {reason}")
        return Response.model_validate(
            {"nonce": order.nonce, "status": status, "reason": shown(reason)}
        )

    def _follow(self, order: Request, payload: bytes) -> tuple[Response, bytes]:
        if order.nonce in self._seen:
            raise MessageError("this order has come before")
        self._seen[order.nonce] = None
        if len(self._seen) > _MOST_NONCES:
            del self._seen[next(iter(self._seen))]
        self._check_allowed(order.spec)
        if order.kind == "hello":
            return Response(nonce=order.nonce, facts=self._facts(order.spec)), b""
        return self._work(order, payload)

    def _check_allowed(self, spec: RunSpec) -> None:
        if wanted := [kind for kind in spec.kinds if kind not in self.allowed]:
            raise ForbiddenError(f"its owner does not allow {wanted[0]} (--allow {wanted[0]})")
        if self.only_secure_sums and not spec.privacy.secure_sums:
            raise ForbiddenError("its owner allows secure sums alone (--only-secure-sums)")
        if self.only_private and (why := self.only_private.exceeded(spec.privacy)):
            raise ForbiddenError(f"{why} (--only-private, --delta)")

    def _facts(self, spec: RunSpec) -> Facts:
        half = make_client_run(spec, self.load(spec), self.device)
        tells = "counts" in self.allowed
        # A classifier cannot be trained without the names of the classes.
        named = tells or spec.command == "classify"
        return Facts(
            samples=half.samples,
            image_shape=tuple(half.images.shape[1:]),
            classes=half.data.classes if named else (),
            counts=tells and half.data.labels is not None,
        )

    def _work(self, order: Request, payload: bytes) -> tuple[Response, bytes]:
        began = time.monotonic()
        hired = self._hire(order)
        work = hired.works.get(order.exchange)
        if work is None:
            raise RefusedUpdateError(f"there is no exchange {order.exchange!r}")
        message = deserialize(work.exchange.message, payload, self.device, self.most_bytes)
        task = Task(hired.half.spec.method, order.exchange, order.round, order.index)
        client = hired.client
        client.memory = before = {}
        if work.exchange.uses_memory:
            client.memory = before = self.memory_store.take(order.run, order.remembered)
        try:
            source = hired.randomness.at_round(order.round)
            (update,) = work.local_updates(task, message, [client], source)
            memory = client.memory
        finally:
            client.memory = {}
        if isinstance(update, RefusedUpdateError):
            raise update
        if remembers := memory is not before:
            self.memory_store.put(order.run, order.version, memory)
        if work.exchange.uses_memory:
            # Other work, such as a stage of a secure sum, may come before the server has accepted
            # what is remembered now.
            self.memory_store.clear(order.run, order.remembered, order.kept, order.version)
        if order.exchange == COUNTS:
            self._keep_found(client.scratch.pop(FOUND))
            hired.half.keep(message, self.folder)
        sent = serialize(update)
        if order.exchange != COUNTS:
            self.tally.count(order, time.monotonic() - began, len(sent))
            if order.last:
                self.say(self.tally.line())
        return Response(nonce=order.nonce, remembers=remembers), sent

    def _hire(self, order: Request) -> "_Hired":
        """The client's half; made again where the run is another one."""
        key = order.spec
        if self._hired is None or self._hired[0] != key or self._hired[1].client.id != order.client:
            self._hired = None
            half = make_client_run(key, self.load(key), self.device)
            self._hired = key, _Hired(half, order.client, "counts" in self.allowed)
        return self._hired[1]

    def _keep_found(self, found: Tensor) -> None:
        """Where the server's knowledge puts the client's images stays with their owner."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, found=found.numpy())
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "found.npz", buffer.getvalue())


class Tally:
    """What a client has done in a round, which is said in one line when the round is over."""

    def __init__(self) -> None:
        self._round = ("", -1)
        self._names: list[str] = []
        self._seconds, self._sent = 0.0, 0

    def count(self, order: Request, seconds: float, sent: int) -> None:
        """Count the work of an order in; with another round it begins anew.

        Args:
            order: What was asked for.
            seconds: What it took.
            sent: Bytes of the answer.
        """
        if self._round != (order.run, order.round):
            self._round = order.run, order.round
            self._names, self._seconds, self._sent = [], 0.0, 0
        self._names.append(order.exchange)
        self._seconds += seconds
        self._sent += sent

    def line(self) -> str:
        """What was done in the round."""
        count = len(self._names)
        what = shown(self._names[0]) if count == 1 else f"{count} exchanges"
        sent = bytes_in_words(self._sent)
        return f"round {self._round[1] + 1}, {what}: {self._seconds:.1f} s, {sent} sent"


class _Hired:
    """All that a client has made for a run.

    Args:
        half: Its half.
        number: The client's number.
        tells: Whether its owner allows counts.
    """

    def __init__(self, half: ClientRun, number: int, tells: bool) -> None:
        shape = tuple(half.images.shape[1:])
        if shape != half.spec.image_shape:
            raise RefusedUpdateError(f"its images are {shape}, not {half.spec.image_shape}")
        half.begin()
        self.half = half
        self.client: Client = half.client(number)
        self.works: dict[str, ClientWork[object, object]] = dict(half.works(tells))
        self.randomness = Randomness(int(half.spec.config.get("seed", 0)))


def _described(order: Request) -> str:
    """An order in some words."""
    if order.kind == "hello":
        return f"{shown(order.spec.method)} asks for the images' facts"
    return f"round {order.round + 1}, {shown(order.exchange)}"


def _written(answer: Response, payload: bytes = b"") -> Packet:
    return Packet(answer.written(), payload)
