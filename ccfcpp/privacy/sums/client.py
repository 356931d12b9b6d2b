"""The clients' half of sums: what a client holds for one is in memory alone, and gone after it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    cohort_apart,
)
from ccfcpp.engine.parts import Addends
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import NoiseSource, client_bounds
from ccfcpp.privacy.sums.addition import Addition
from ccfcpp.privacy.sums.identity import Guard
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
from ccfcpp.privacy.sums.own_noise import OwnNoise, agreed_terms
from ccfcpp.privacy.sums.protocol import BOX_BYTES, Participant

WEIGHT_OF_ALL = 1.0
"""What each client counts in a mean where sums have noise."""


def addition_of(config: PrivacyConfig, exchange: AnyExchange, message: object) -> Addition:
    """How the updates of an exchange add up in a run."""
    return Addition(exchange, message, None if config.level == "none" else WEIGHT_OF_ALL)


class SendsParts(AnyClientWork):
    """A client's work, of which the parts that add up are sent.

    On the client level they are clipped here; on the image level those of each image were.
    """

    def __init__(self, config: PrivacyConfig, work: AnyClientWork) -> None:
        self.config = config
        self.work = work

    def parts(self, message: object, update: object) -> Addends:
        """What of its update a client adds to a sum."""
        exchange = self.work.exchange
        parts = addition_of(self.config, exchange, message).parts(update)
        if self.config.level != "client":
            return parts
        return client_bounds(self.config, exchange).clipped(parts)

    def own(self, task: Task) -> Task:
        """The task as the system knows it."""
        return dataclasses.replace(task, exchange=self.work.exchange.name)


class WithinBounds(SendsParts):
    """A client's work, of which bounded parts are sent that the server may see."""

    def __init__(self, config: PrivacyConfig, work: AnyClientWork) -> None:
        super().__init__(config, work)
        self.exchange = within_bounds(work.exchange)
        self.cohort = work.cohort if config.level == "image" else cohort_apart(work)

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> list[BoundedParts | RefusedUpdateError]:
        """Each client's by itself."""
        updates = self.work.local_updates(self.own(task), message, clients, randomness)
        return [
            update if isinstance(update, RefusedUpdateError) else self._bounded(message, update)
            for update in updates
        ]

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> BoundedParts | None:
        """The sum of some clients' parts."""
        total = self.work.local_sum(self.own(task), message, clients, randomness)
        return None if total is None else self._bounded(message, total)

    def _bounded(self, message: object, update: object) -> BoundedParts:
        return BoundedParts(self.parts(message, update))


class Participants:
    """The parts in the secure sum that goes on, of the clients of one process.

    A stage raises ``RefusedUpdateError`` where the server asks for what a sound sum does not need.
    """

    def __init__(self, config: PrivacyConfig, clients: int, guard: Guard) -> None:
        self.config = config
        self.clients = clients
        self.guard = guard
        self._parts: dict[int, tuple[tuple[int, int], Participant]] = {}

    def of(self, task: Task, client: int) -> Participant:
        """A client's part in a task's sum."""
        which, participant = self._parts.get(client, (None, None))
        if participant is None or which != (task.round, task.index):
            raise RefusedUpdateError("it has no part in this secure sum")
        return participant

    def send_keys(self, task: Task, message: Begun, client: int) -> Keys:
        """Stage 1: begin a client's part; what was made for another sum is gone."""
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
        terms = agreed_terms(self.config, task, len(asked))
        guard.floor.check(terms)
        before = (guard.before or {}).get((task.round, task.index))
        participant = Participant(client, terms, asked, guard.identity, before)
        self._parts[client] = (task.round, task.index), participant
        return Keys.of(participant.keys())

    def send_shares(self, task: Task, message: Letters, client: int) -> ClientRows:
        """Stage 2: a box for each other holder."""
        return ClientRows.of(
            self.of(task, client).shares(neighbours_in(message, client)), BOX_BYTES
        )

    def send_agreement(self, task: Task, message: Letters, client: int) -> ClientRows:
        """Stage 4: tags for those that are in the sum."""
        tags = self.of(task, client).agreed(message.read(client, TAG_BYTES))
        return ClientRows.of(tags, TAG_BYTES)

    def send_shown(self, task: Task, message: Letters, client: int) -> ShownShares:
        """Stage 5: shares, once; the sum is over then."""
        participant = self.of(task, client)
        del self._parts[client]
        shown = participant.revealed(message.read(client, TAG_BYTES))
        if self.guard.before is not None:
            self.guard.before[task.round, task.index] = participant.shown
        return ShownShares.of(shown)


@dataclass(eq=False)
class Stage(ClientWork[Message, Update]):
    """The work of clients at a stage before or after the exchange itself."""

    exchange: Exchange[Message, Update]
    answer: Callable[[Task, Message, int], Update]

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> list[Update | RefusedUpdateError]:
        """The answer of each client."""
        return [self._answered(task, message, client.id) for client in clients]

    def _answered(self, task: Task, message: Message, client: int) -> Update | RefusedUpdateError:
        try:
            return self.answer(task, message, client)
        except RefusedUpdateError as refusal:
            return refusal


class UnderMasks(SendsParts):
    """Stage 3: the work itself, of which masked numbers are sent."""

    def __init__(
        self, config: PrivacyConfig, work: AnyClientWork, participants: Participants
    ) -> None:
        super().__init__(config, work)
        self.exchange = under_masks(work.exchange)
        self.cohort = cohort_apart(work)
        self.participants = participants
        self._noise = NoiseSource(Randomness(0) if config.reproducible_noise else None)

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> list[MaskedParts | RefusedUpdateError]:
        """The parts that add up of each client, in fixed point under masks."""
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
                answers[client.id] = self._masked(message.message, participant, update, source)
        return [answers[client.id] for client in clients]

    def _masked(
        self, message: object, participant: Participant, update: object, source: NoiseSource
    ) -> MaskedParts | RefusedUpdateError:
        if isinstance(update, RefusedUpdateError):
            return update
        terms = participant.terms
        try:
            parts = self.parts(message, update)
            if own := OwnNoise.of(self.config, self.work.exchange, terms):
                parts = own.added(parts, source, terms.purpose.decode())
            words = terms.form.encoded(flattened(parts), terms.asked)
            about = digest_of(self.work.exchange, message)
            return MaskedParts.of(*participant.masked(words, about))
        except RefusedUpdateError as refusal:
            return refusal


def works_in_sums(
    works: Mapping[str, AnyClientWork],
    config: PrivacyConfig,
    clients: int,
    guard: Guard = Guard(),  # noqa: B008 - it keeps nothing
) -> dict[str, AnyClientWork]:
    """The clients' work where the server gets sums, by the name of the exchange.

    What does not travel stays as it is; a client on another machine is never asked for it, since
    nothing would hide it.

    Args:
        works: The work of a system.
        config: What the run does for privacy.
        clients: How many clients the run has.
        guard: What protects a client from a server that lies.
    """
    found = [work for work in works.values() if not work.exchange.travels]
    travelling = [work for work in works.values() if work.exchange.travels]
    if not config.secure_sums:
        found += [WithinBounds(config, work) for work in travelling]
    else:
        part = Participants(config, clients, guard)
        found += [
            Stage(KEYS, part.send_keys),
            Stage(SHARES, part.send_shares),
            Stage(AGREEMENT, part.send_agreement),
            Stage(UNMASKING, part.send_shown),
        ]
        found += [UnderMasks(config, work, part) for work in travelling]
    return {work.exchange.name: work for work in found}


def flattened(parts: Mapping[str, Tensor]) -> Tensor:
    """All numbers of some tensors as one vector, in the order of their names."""
    return torch.cat([parts[name].flatten() for name in sorted(parts)])


def unflattened(vector: Tensor, like: Mapping[str, Tensor]) -> Addends:
    """The tensors that a vector was made of, from others of the same names and shapes."""
    names = sorted(like)
    pieces = torch.split(vector, [like[name].numel() for name in names])
    return {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
