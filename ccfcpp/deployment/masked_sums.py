"""Secure sums with clients on other machines: the stages of ``ccfcpp.privacy.secure_sums`` travel.

Before an exchange that adds up, clients send keys, and then shares. With the exchange itself each
gets what the others have sealed for it, and answers with its numbers under masks. After it those
whose numbers have come send what takes the masks off the sum.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AbsentClientError,
    ClientWork,
    Exchange,
    RefusedUpdateError,
    Task,
)
from ccfcpp.engine.payload import pack, size
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.privacy.addition import Addition, addition_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.fixed_point import FixedPoint, Words
from ccfcpp.privacy.secure_sums import Collector, Participant, PublicKeys, Revealed, Terms
from ccfcpp.privacy.summation import Summation, flattened
from ccfcpp.privacy.summing import Summing

_KEY_BYTES = 32


@dataclass(frozen=True)
class Begun:
    """A sum begins.

    Attributes:
        asked: How many clients are asked.
    """

    asked: int


@dataclass(frozen=True)
class Keys:
    """A client's public keys, each uint8 of shape (32,)."""

    sealing: Tensor
    masks: Tensor


@dataclass(frozen=True)
class Listed:
    """The public keys of all that are there.

    Attributes:
        clients: Their numbers, int64 of shape (clients,).
        sealing: uint8 of shape (clients, 32).
        masks: Likewise.
    """

    clients: Tensor
    sealing: Tensor
    masks: Tensor


@dataclass(frozen=True)
class Boxes:
    """What a client has sealed for others.

    Attributes:
        receivers: int64 of shape (boxes,).
        contents: uint8 of shape (boxes, bytes).
    """

    receivers: Tensor
    contents: Tensor


@dataclass(frozen=True)
class Mail:
    """All boxes; nobody but its receiver can open one.

    Attributes:
        senders: int64 of shape (boxes,).
        receivers: Likewise.
        contents: uint8 of shape (boxes, bytes).
    """

    senders: Tensor
    receivers: Tensor
    contents: Tensor


@dataclass(frozen=True)
class Masked:
    """What adds up of a client's update, under masks.

    Attributes:
        words: Integers modulo 2 to the bits of a number, as int32 or int64, in the parts' shapes.
        like: Of each part a tensor without numbers that has its dtype in an update of sums.
    """

    words: dict[str, Tensor]
    like: dict[str, Tensor]


@dataclass(frozen=True)
class Arrived:
    """Whose masked numbers the server has, int64 of shape (clients,)."""

    clients: Tensor


@dataclass(frozen=True)
class Shown:
    """A client's shares of what takes masks off.

    Attributes:
        seeds_of: Whose seeds, int64 of shape (there,).
        seeds: Its shares of them, int64 of shape (there, numbers).
        keys_of, keys: The same for the keys of those who are gone.
    """

    seeds_of: Tensor
    seeds: Tensor
    keys_of: Tensor
    keys: Tensor


KEYS: Exchange[Begun, Keys] = Exchange("secure sum, keys", Begun, Keys)
SHARES: Exchange[Listed, Boxes] = Exchange("secure sum, shares", Listed, Boxes)
UNMASKING: Exchange[Arrived, Shown] = Exchange("secure sum, unmasking", Arrived, Shown)
EXCHANGES_OF_A_SUM = 4
"""Three stages, and the exchange itself."""


def under_masks(exchange: Exchange[Any, Any]) -> Exchange[Any, Masked]:
    """An exchange that adds up, whose updates come under masks; its message brings the boxes."""
    kind = dataclasses.make_dataclass(
        f"{exchange.message.__name__}WithMail",
        [("message", exchange.message), ("mail", Mail)],
        frozen=True,
    )
    return Exchange(_masked_name(exchange.name), kind, Masked, uses_memory=exchange.uses_memory)


def exchanges_under_masks(
    exchanges: Mapping[str, Exchange[Any, Any]],
) -> dict[str, Exchange[Any, Any]]:
    """All that clients are asked for where what travels adds up under masks, by name."""
    stages: list[Exchange[Any, Any]] = [KEYS, SHARES, UNMASKING]
    own = [under_masks(each) if each.travels else each for each in exchanges.values()]
    return {each.name: each for each in (*stages, *own)}


def _masked_name(name: str) -> str:
    return f"{name} under masks"


def _terms(config: PrivacyConfig, task: Task, asked: int) -> Terms:
    needed = 2 * asked // 3 + 1 if config.threshold is None else config.threshold
    purpose = f"{task.system}/{task.round}/{task.index}".encode()
    return Terms(purpose, max(2, needed), FixedPoint(config.bits, config.behind_the_point))


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().astype(np.uint8).tobytes()


def _tensor_of(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


# --- a client ------------------------------------------------------------------------------------


class Part:
    """A client's part in the sum that goes on. It is in memory alone, and serves for one sum.

    Args:
        config: What the run does for privacy.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self.asked = 0
        self._sum: tuple[int, int] | None = None
        self._participant: Participant | None = None

    def begin(self, task: Task, client: int, asked: int) -> Participant:
        """A new sum; what was made for another one is gone."""
        self._sum, self.asked = (task.round, task.index), asked
        self._participant = Participant(client, _terms(self.config, task, asked))
        return self._participant

    def of(self, task: Task) -> Participant:
        """The part in a task's sum.

        Raises:
            RefusedUpdateError: It has not begun here.
        """
        if self._participant is None or self._sum != (task.round, task.index):
            raise RefusedUpdateError("it has no part in this secure sum")
        return self._participant

    def end(self) -> None:
        """The sum is over."""
        self._participant = None


class _Stage(ClientWork[Any, Any]):
    """What a client does at a stage."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Any]:
        """Of the one client of this process."""
        (client,) = clients
        try:
            return [self.answer(task, message, client, randomness)]
        except RefusedUpdateError as refusal:
            return [refusal]

    def answer(self, task: Task, message: Any, client: Client, randomness: Randomness) -> Any:
        """What it sends."""
        raise NotImplementedError


class SendKeys(_Stage):
    """Stage 1."""

    exchange = KEYS

    def answer(self, task: Task, message: Begun, client: Client, randomness: Randomness) -> Keys:
        """Fresh keys."""
        keys = self.part.begin(task, client.id, message.asked).keys()
        return Keys(_tensor_of(keys.sealing), _tensor_of(keys.masks))


class SendShares(_Stage):
    """Stage 2."""

    exchange = SHARES

    def answer(self, task: Task, message: Listed, client: Client, randomness: Randomness) -> Boxes:
        """A box for each other client."""
        rows = zip(message.clients.tolist(), message.sealing, message.masks, strict=True)
        roster = {n: PublicKeys(_bytes_of(sealing), _bytes_of(masks)) for n, sealing, masks in rows}
        boxes = self.part.of(task).shares(roster)
        return Boxes(torch.tensor([*boxes]), torch.stack([*map(_tensor_of, boxes.values())]))


class UnderMasks(_Stage):
    """Stage 3: the work itself, of which masked numbers are sent.

    Args:
        part: The client's.
        work: What the system asks for.
    """

    def __init__(self, part: Part, work: ClientWork[Any, Any]) -> None:
        super().__init__(part)
        self.work = work
        self.exchange = under_masks(work.exchange)

    def answer(self, task: Task, message: Any, client: Client, randomness: Randomness) -> Any:
        """The parts that add up, in fixed point under masks."""
        participant, mail = self.part.of(task), message.mail
        rows = zip(mail.senders.tolist(), mail.receivers.tolist(), mail.contents, strict=True)
        boxes = {sender: _bytes_of(box) for sender, to, box in rows if to == client.id}
        own = dataclasses.replace(task, exchange=self.work.exchange.name)
        (update,) = self.work.local_updates(own, message.message, [client], randomness)
        if isinstance(update, RefusedUpdateError):
            return update
        addition = addition_of(self.work.exchange)
        assert addition is not None  # the run was refused otherwise
        parts = addition.parts(message.message, update)
        words = participant.terms.form.encoded(flattened(parts), self.part.asked)
        return Masked(_in_shapes(participant.masked(words, boxes), parts), addition.like)


class SendShown(_Stage):
    """Stage 4."""

    exchange = UNMASKING

    def answer(self, task: Task, message: Arrived, client: Client, randomness: Randomness) -> Shown:
        """Shares, once."""
        shown = self.part.of(task).revealed(message.clients.tolist())
        self.part.end()
        return Shown(*_as_tensors(shown.seeds), *_as_tensors(shown.keys))


def works_under_masks(
    works: Mapping[str, ClientWork[Any, Any]], config: PrivacyConfig
) -> dict[str, ClientWork[Any, Any]]:
    """What can be asked of a client where what travels adds up under masks, and nothing else."""
    part = Part(config)
    stages: list[ClientWork[Any, Any]] = [SendKeys(part), SendShares(part), SendShown(part)]
    own = [UnderMasks(part, work) if work.exchange.travels else work for work in works.values()]
    return {work.exchange.name: work for work in (*stages, *own)}


def _in_shapes(words: Words, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    signed = torch.from_numpy(words.view(np.dtype(f"<i{words.itemsize}")))
    names = sorted(parts)
    pieces = torch.split(signed, [parts[name].numel() for name in names])
    return {n: piece.view(parts[n].shape) for n, piece in zip(names, pieces, strict=True)}


def _as_tensors(shares: Mapping[int, Any]) -> tuple[Tensor, Tensor]:
    rows = [torch.from_numpy(share.astype(np.int64)) for share in shares.values()]
    numbers = torch.tensor([*shares], dtype=torch.int64)
    return numbers, torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.int64)


# --- the server ----------------------------------------------------------------------------------


class SumOverNetwork(Summation):
    """The server's part in one sum.

    Args:
        inner: Takes tasks to the clients.
        task: Which sum it is.
        members: The clients that are asked.
        config: What the run does for privacy.
    """

    def __init__(
        self, inner: Transport, task: Task, members: Sequence[Member], config: PrivacyConfig
    ) -> None:
        super().__init__()
        self.inner = inner
        self.task = task
        self.members = members
        self.terms = _terms(config, task, len(members))
        self.collector = Collector(self.terms)
        self.mail = Mail(
            *(torch.zeros(0, dtype=torch.int64),) * 2, torch.zeros(0, 0, dtype=torch.uint8)
        )
        self.sharers: list[Member] = []
        self._shapes: dict[str, torch.Size] | None = None

    def begin(self) -> None:
        """Keys, and boxes with shares."""
        found = self._asked(KEYS, Begun(len(self.members)), self.members, "keys")
        keys = {n: PublicKeys(_bytes_of(k.sealing), _bytes_of(k.masks)) for n, k in found.items()}
        roster = self.collector.roster(keys)
        listed = Listed(
            torch.tensor([*roster]),
            torch.stack([_tensor_of(each.sealing) for each in roster.values()]),
            torch.stack([_tensor_of(each.masks) for each in roster.values()]),
        )
        there = [member for member in self.members if member.id in roster]
        boxes = self._asked(SHARES, listed, there, "shares")
        sent = {
            number: dict(zip(own.receivers.tolist(), map(_bytes_of, own.contents), strict=True))
            for number, own in boxes.items()
            if sorted(own.receivers.tolist()) == sorted(roster.keys() - {number})
        }
        routed = self.collector.routed(sent)
        self.sharers = [member for member in there if member.id in routed]
        rows = [(s, r, box) for r, inbox in routed.items() for s, box in inbox.items()]
        self.mail = Mail(
            torch.tensor([sender for sender, _, _ in rows]),
            torch.tensor([receiver for _, receiver, _ in rows]),
            torch.stack([_tensor_of(box) for _, _, box in rows]),
        )

    def add(self, client: int, vector: Tensor) -> None:
        """Nothing: vectors come under masks."""
        raise NotImplementedError

    def take(self, client: int, masked: Masked) -> None:
        """Count a client's masked numbers in.

        Raises:
            RefusedUpdateError: They are of other shapes than those of others.
        """
        shapes = {name: words.shape for name, words in masked.words.items()}
        if self._shapes is None:
            self._shapes = shapes
        if shapes != self._shapes:
            raise RefusedUpdateError("its masked numbers have other shapes than those of others")
        kind = torch.int32 if self.terms.form.bits == 32 else torch.int64
        if not shapes or any(words.dtype != kind for words in masked.words.values()):
            raise RefusedUpdateError(f"its masked numbers are no {kind}")
        flat = torch.cat([masked.words[name].flatten() for name in sorted(shapes)])
        self.bytes_up += flat.nbytes
        self.collector.take(client, flat.cpu().numpy().view(self.terms.form.words))

    def total(self) -> Tensor:
        """Take the masks off."""
        arrived = self.collector.arrived()
        there = [member for member in self.sharers if member.id in arrived]
        found = self._asked(UNMASKING, Arrived(torch.tensor(arrived)), there, "unmasking")
        revealed = {
            number: Revealed(
                dict(zip(own.seeds_of.tolist(), _shares(own.seeds), strict=True)),
                dict(zip(own.keys_of.tolist(), _shares(own.keys), strict=True)),
            )
            for number, own in found.items()
        }
        return self.terms.form.decoded(self.collector.total(revealed))

    def _asked(
        self, exchange: Exchange[Any, Any], message: Any, members: Sequence[Member], stage: str
    ) -> dict[int, Any]:
        """The answers at a stage, by the client's number; others are lost."""
        task = dataclasses.replace(self.task, exchange=exchange.name, last=False)
        found: dict[int, Any] = {}
        for reply in self.inner.deliver(task, message, members):
            self.bytes_down += size(pack(message))
            if isinstance(reply.update, RefusedUpdateError):
                self.lost[reply.client] = stage
            else:
                found[reply.client] = reply.update
                self.bytes_up += size(pack(reply.update))
        return found


class SummingOverNetwork(Summing):
    """A transport that gives the loop sums of clients on other machines, and no summand.

    Args:
        inner: Takes tasks to the clients; it knows ``exchanges_under_masks``.
        exchanges: All exchanges of the system, by name; those that travel add up.
        config: What the run does for privacy.
    """

    def __init__(
        self, inner: Transport, exchanges: Mapping[str, Exchange[Any, Any]], config: PrivacyConfig
    ) -> None:
        super().__init__(
            inner, exchanges, lambda task, members: SumOverNetwork(inner, task, members, config)
        )
        self._masked = {name: under_masks(each) for name, each in exchanges.items()}

    def replies(
        self, total: Summation, task: Task, message: object, members: Sequence[Member]
    ) -> Iterator[Reply]:
        """Masked numbers of those that have shared, and why there are none of others."""
        assert isinstance(total, SumOverNetwork)
        for member in members:
            if member not in total.sharers:
                stage = total.lost.get(member.id, "shares")
                yield Reply(member.id, AbsentClientError(f"its {stage} did not arrive"))
        masked = self._masked[task.exchange]
        with_mail = masked.message(message=message, mail=total.mail)
        own = dataclasses.replace(task, exchange=masked.name)
        yield from self.inner.deliver(own, with_mail, total.sharers)

    def counted(
        self,
        total: Summation,
        addition: Addition,
        task: Task,
        message: object,
        reply: Reply,
        like: dict[str, Tensor],
    ) -> None:
        """Count masked numbers in."""
        assert isinstance(total, SumOverNetwork)
        assert isinstance(reply.update, Masked)
        total.take(reply.client, reply.update)
        addition.like = reply.update.like
        like.update(
            {name: words.new_zeros(words.shape) for name, words in reply.update.words.items()}
        )


def _shares(rows: Tensor) -> list[Any]:
    return [row.cpu().numpy().astype(np.uint32) for row in rows]
