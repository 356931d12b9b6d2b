"""A client's part in secure sums: what it holds for one is in memory alone, and gone after it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.bounded_sums import contributed
from ccfcpp.deployment.masked_messages import (
    KEYS,
    SHARES,
    UNMASKING,
    Arrived,
    Begun,
    Boxes,
    Keys,
    Listed,
    Masked,
    Shown,
    terms_of,
    under_masks,
)
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, RefusedUpdateError, Task
from ccfcpp.privacy.addition import addition_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.secure_sums import Participant
from ccfcpp.privacy.summation import flattened


class Part:
    """A client's part in the sum that goes on.

    Args:
        config: What the run does for privacy.
        clients: How many take part in the run.
    """

    def __init__(self, config: PrivacyConfig, clients: int) -> None:
        self.config = config
        self.clients = clients
        self.asked = 0
        self._sum: tuple[int, int] | None = None
        self._participant: Participant | None = None

    def begin(self, task: Task, client: int, asked: int) -> Participant:
        """A new sum; what was made for another one is gone.

        Raises:
            RefusedUpdateError: So many clients cannot be asked.
        """
        if not 2 <= asked <= self.clients:
            raise RefusedUpdateError(f"a secure sum of {asked} of {self.clients} clients")
        self._sum, self.asked = (task.round, task.index), asked
        self._participant = Participant(client, terms_of(self.config, task, asked))
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
        return Keys.of(self.part.begin(task, client.id, message.asked).keys())


class SendShares(_Stage):
    """Stage 2."""

    exchange = SHARES

    def answer(self, task: Task, message: Listed, client: Client, randomness: Randomness) -> Boxes:
        """A box for each other client."""
        participant, roster = self.part.of(task), message.read()
        if len(roster) > self.part.asked:
            # The threshold follows from how many were asked.
            raise RefusedUpdateError("there are more keys than clients were asked")
        return Boxes.of(participant.shares(roster))


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
        participant = self.part.of(task)
        participant.receive(message.mail.to(client.id))
        own = dataclasses.replace(task, exchange=self.work.exchange.name)
        (update,) = self.work.local_updates(own, message.message, [client], randomness)
        if isinstance(update, RefusedUpdateError):
            return update
        addition = addition_of(self.work.exchange)
        if addition is None:
            raise RefusedUpdateError(f"what {own.exchange} sends does not add up")
        parts = contributed(self.part.config, addition, message.message, update)
        words = participant.terms.form.encoded(flattened(parts), self.part.asked)
        return Masked.of(participant.masked(words), parts, addition.like)


class SendShown(_Stage):
    """Stage 4."""

    exchange = UNMASKING

    def answer(self, task: Task, message: Arrived, client: Client, randomness: Randomness) -> Shown:
        """Shares, once."""
        participant = self.part.of(task)
        self.part.end()
        return Shown.of(participant.revealed(message.read()))


def works_under_masks(
    works: Mapping[str, ClientWork[Any, Any]], config: PrivacyConfig, clients: int
) -> dict[str, ClientWork[Any, Any]]:
    """What can be asked of a client where what travels adds up under masks, and nothing else.

    What would not travel in one process, and serves a report, is not sent here: nothing hides it.

    Args:
        works: What the system asks for, by the exchange's name.
        config: What the run does for privacy.
        clients: How many take part in the run.
    """
    part = Part(config, clients)
    stages: list[ClientWork[Any, Any]] = [SendKeys(part), SendShares(part), SendShown(part)]
    own = [UnderMasks(part, work) for work in works.values() if work.exchange.travels]
    return {work.exchange.name: work for work in (*stages, *own)}
