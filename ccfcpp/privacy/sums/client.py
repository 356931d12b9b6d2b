"""Client side of sums over clients; the state of a secure sum is in memory only, until it ends."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyExchange,
    ClientWork,
    Exchange,
    Message,
    RefusedUpdateError,
    Task,
    Update,
    cohort_without_sums,
)
from ccfcpp.engine.update_format import Addends
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import NoiseSource, clip_client_parts
from ccfcpp.privacy.sums.aggregation import Addition
from ccfcpp.privacy.sums.agreement import terms_of
from ccfcpp.privacy.sums.distributed_noise import OwnNoise
from ccfcpp.privacy.sums.identity import Safeguard
from ccfcpp.privacy.sums.masks import TAG_BYTES
from ccfcpp.privacy.sums.messages import (
    AGREEMENT,
    KEYS,
    SHARES,
    UNMASKING,
    Begun,
    BoundedParts,
    ClientRows,
    Keys,
    Letters,
    MaskedParts,
    ShownShares,
    digest_of,
    neighbours_in,
    under_masks,
    within_bounds,
)
from ccfcpp.privacy.sums.protocol import BOX_BYTES, Participant

P = ParamSpec("P")


def addition_of(config: PrivacyConfig, exchange: AnyExchange, message: object) -> Addition:
    """Return the object that converts updates of an exchange to tensors that are summed."""
    return Addition(exchange, message, alike=config.level != "none")


class SendsParts(AnyClientWork):
    """Base class of clients' work that sends only those parts of updates that are summed.

    At privacy level "client" they are clipped here; at level "image" each image's part already is.
    """

    def __init__(self, config: PrivacyConfig, work: AnyClientWork) -> None:
        self.config = config
        self.work = work

    def parts(self, message: object, update: object) -> Addends:
        """Return the parts of an update that a client adds to sums, clipped at level "client"."""
        exchange = self.work.exchange
        parts = addition_of(self.config, exchange, message).parts(update)
        return clip_client_parts(self.config, exchange, parts)

    def own(self, task: Task) -> Task:
        """Return the task with the name of the wrapped exchange."""
        return dataclasses.replace(task, exchange=self.work.exchange.name)


class WithinBounds(SendsParts):
    """Clients' work that sends clipped parts of updates, which the server may see."""

    def __init__(self, config: PrivacyConfig, work: AnyClientWork) -> None:
        super().__init__(config, work)
        self.exchange = within_bounds(work.exchange)
        self.cohort = work.cohort if config.level == "image" else cohort_without_sums(work)

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> list[BoundedParts | RefusedUpdateError]:
        """Return what each client adds to the sums, clipped, or its refusal."""
        return [
            update
            if isinstance(update, RefusedUpdateError)
            else BoundedParts(self.parts(message, update))
            for update in self.work.local_updates(self.own(task), message, clients, randomness)
        ]

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> BoundedParts | None:
        """Return the sum of several clients' clipped parts; None if the work makes no sums."""
        total = self.work.local_sum(self.own(task), message, clients, randomness)
        return None if total is None else BoundedParts(self.parts(message, total))


class Participants:
    """State of this process's clients in the current secure sum: a ``Participant`` for each.

    Its methods raise ``RefusedUpdateError`` if the server asks for more than an honest sum needs.
    """

    def __init__(self, config: PrivacyConfig, clients: int, guard: Safeguard) -> None:
        self.config = config
        self.clients = clients
        self.guard = guard
        self._parts: dict[int, tuple[tuple[int, int], Participant]] = {}

    def of(self, task: Task, client: int) -> Participant:
        """Return a client's ``Participant`` in a task's sum; raise an error if it has none."""
        which, participant = self._parts.get(client, (None, None))
        if participant is None or which != (task.round, task.index):
            raise RefusedUpdateError("it has no part in this secure sum")
        return participant

    def send_keys(self, task: Task, message: Begun, client: int) -> Keys:
        """Return a client's new public keys (stage 1), and delete its state of an earlier sum."""
        asked = message.read()
        if client not in asked or not 2 <= len(asked) <= self.clients:
            raise RefusedUpdateError(
                f"a secure sum of {len(asked)} of {self.clients} clients is refused"
            )
        guard = self.guard
        if self.config.own_noise and guard.floor.colluders > self.config.colluders:
            raise RefusedUpdateError(
                f"the noise is made for privacy.colluders = {self.config.colluders}, and its owner "
                f"assumes {guard.floor.colluders} (--colluders)"
            )
        terms = terms_of(self.config, task, len(asked))
        guard.floor.check(terms)
        before = (guard.before or {}).get((task.round, task.index))
        participant = Participant(client, terms, asked, guard.identity, before)
        self._parts[client] = (task.round, task.index), participant
        return Keys.of(participant.keys())

    def send_shares(self, task: Task, message: Letters, client: int) -> ClientRows:
        """Return a client's encrypted key shares for the clients that will hold them (stage 2)."""
        return ClientRows.of(
            self.of(task, client).shares(neighbours_in(message, client)), BOX_BYTES
        )

    def send_agreement(self, task: Task, message: Letters, client: int) -> ClientRows:
        """Return a client's tags, which tell others that they are in the sum (stage 4)."""
        tags = self.of(task, client).agreed(message.read(client, TAG_BYTES))
        return ClientRows.of(tags, TAG_BYTES)

    def send_shown(self, task: Task, message: Letters, client: int) -> ShownShares:
        """Return a client's shares of others' secrets, to remove masks (stage 5); end its part."""
        participant = self.of(task, client)
        del self._parts[client]
        shown = participant.revealed(message.read(client, TAG_BYTES))
        if self.guard.before is not None:
            self.guard.before[task.round, task.index] = participant.shown
        return ShownShares.of(shown)


@dataclass(eq=False)
class ProtocolStage(ClientWork[Message, Update]):
    """Clients' work at a stage of a secure sum before or after the exchange itself.

    Attributes:
        exchange: The stage, as an exchange with messages and updates of its own.
        answer: Returns a client's update, given the task, the message and the client's number.
    """

    exchange: Exchange[Message, Update]
    answer: Callable[[Task, Message, int], Update]

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> list[Update | RefusedUpdateError]:
        """Return each client's answer, or its refusal."""
        return [_or_refusal(self.answer, task, message, client.id) for client in clients]


def _or_refusal(
    make: Callable[P, Update], *args: P.args, **more: P.kwargs
) -> Update | RefusedUpdateError:
    """Call a function that makes an update, and return its refusal if it raises one."""
    try:
        return make(*args, **more)
    except RefusedUpdateError as refusal:
        return refusal


class UnderMasks(SendsParts):
    """Clients' work at stage 3 of a secure sum: do an exchange's own work, and mask its numbers."""

    def __init__(
        self, config: PrivacyConfig, work: AnyClientWork, participants: Participants
    ) -> None:
        super().__init__(config, work)
        self.exchange = under_masks(work.exchange)
        self.cohort = cohort_without_sums(work)
        self.participants = participants
        self._noise = NoiseSource(Randomness(0) if config.reproducible_noise else None)

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> list[MaskedParts | RefusedUpdateError]:
        """Return what each client adds to the sums, masked and in fixed point, or its refusal."""
        answers: dict[int, MaskedParts | RefusedUpdateError] = {}
        there: dict[int, tuple[Client, Participant]] = {}
        for client in clients:
            try:
                participant = self.participants.of(task, client.id)
                participant.receive(*message.mail.read(client.id))
                there[client.id] = client, participant
            except RefusedUpdateError as refusal:
                answers[client.id] = refusal
        if there:
            working = [client for client, _ in there.values()]
            updates = self.work.local_updates(self.own(task), message.message, working, randomness)
            for (client, participant), update in zip(there.values(), updates, strict=True):
                source = self._noise.of(randomness.of_client(client.id))
                answers[client.id] = _or_refusal(
                    self._masked, message.message, participant, update, source
                )
        return [answers[client.id] for client in clients]

    def _masked(
        self, message: object, participant: Participant, update: object, source: NoiseSource
    ) -> MaskedParts:
        if isinstance(update, RefusedUpdateError):
            raise update
        terms, exchange = participant.terms, self.work.exchange
        parts = self.parts(message, update)
        if own := OwnNoise.of(self.config, exchange, terms):
            parts = own.added(parts, source, terms.purpose.decode())
        words = terms.form.encode(flatten_parts(parts), terms.asked)
        return MaskedParts.of(*participant.masked(words, digest_of(exchange, message)))


def wrap_works(
    works: Mapping[str, AnyClientWork],
    config: PrivacyConfig,
    clients: int,
    guard: Safeguard = Safeguard(),  # noqa: B008 - it keeps nothing
) -> dict[str, AnyClientWork]:
    """Wrap the clients' work, by name of the exchange, so that it sends only what is summed.

    Exchanges that are not sent stay as they are; a client on another machine is never asked for
    one, since nothing would hide it.

    Args:
        works: The work of a system.
        config: Settings of privacy.
        clients: Number of clients of the run.
        guard: Protection of a client from a dishonest server.
    """
    wrapped = [work for work in works.values() if not work.exchange.travels]
    travelling = [work for work in works.values() if work.exchange.travels]
    if not config.secure_sums:
        wrapped += [WithinBounds(config, work) for work in travelling]
    else:
        part = Participants(config, clients, guard)
        wrapped += [
            ProtocolStage(KEYS, part.send_keys),
            ProtocolStage(SHARES, part.send_shares),
            ProtocolStage(AGREEMENT, part.send_agreement),
            ProtocolStage(UNMASKING, part.send_shown),
        ]
        wrapped += [UnderMasks(config, work, part) for work in travelling]
    return {work.exchange.name: work for work in wrapped}


def flatten_parts(parts: Mapping[str, Tensor]) -> Tensor:
    """Concatenate all tensors to one vector, in the order of their names."""
    return torch.cat([parts[name].flatten() for name in sorted(parts)])


def split_to_parts(vector: Tensor, like: Mapping[str, Tensor]) -> Addends:
    """Split a vector of ``flatten_parts`` into tensors with the names and shapes of ``like``."""
    names = sorted(like)
    pieces = torch.split(vector, [like[name].numel() for name in names])
    return {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
