"""Secure sums of clients in one process."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Task
from ccfcpp.privacy.fixed_point import FixedPoint
from ccfcpp.privacy.secure_sums import Collector, Participant, Terms
from ccfcpp.privacy.summation import Summation

Stage = Literal["keys", "shares", "masked vector", "unmasking"]
IsLost = Callable[[Stage, int], bool]
"""Whether what a client sends at a stage is lost, from the stage and the client's number."""
_NUMBER_BYTES = 8
"""A client's number, on its way."""


def nothing_is_lost(stage: Stage, client: int) -> bool:
    """As in one process."""
    return False


class SecureSum(Summation):
    """Clients and server in one process go through the protocol of ``secure_sums``.

    Between them there is what ``Participant`` and ``Collector`` send each other, and nothing else.

    Args:
        task: Which sum it is.
        members: The clients that are asked.
        form: How numbers travel.
        threshold: How many clients must be there in every stage; None: two thirds of those that are
            asked, and one.
        is_lost: What goes wrong on the way.
    """

    def __init__(
        self,
        task: Task,
        members: Sequence[Member],
        form: FixedPoint,
        threshold: int | None = None,
        is_lost: IsLost = nothing_is_lost,
    ) -> None:
        super().__init__()
        needed = max(2, 2 * len(members) // 3 + 1) if threshold is None else threshold
        purpose = f"{task.system}/{task.exchange}/{task.round}/{task.index}".encode()
        self.terms = Terms(purpose, needed, form)
        self.asked = len(members)
        self.is_lost = is_lost
        self.participants = {m.id: Participant(m.id, self.terms) for m in members}
        self.collector = Collector(self.terms)
        self._boxes: dict[int, dict[int, bytes]] = {}

    def begin(self) -> None:
        """Keys, and shares of what will take masks off."""
        keys = {n: each.keys() for n, each in self.participants.items() if self._arrives("keys", n)}
        roster = self.collector.roster(keys)
        listed = sum(each.size + _NUMBER_BYTES for each in roster.values())
        self.bytes_up += listed
        self.bytes_down += listed * len(roster)
        shared = {
            number: self.participants[number].shares(roster)
            for number in roster
            if self._arrives("shares", number)
        }
        self.bytes_up += sum(len(box) for boxes in shared.values() for box in boxes.values())
        self._boxes = self.collector.routed(shared)
        self.bytes_down += sum(len(b) for boxes in self._boxes.values() for b in boxes.values())

    def add(self, client: int, vector: Tensor) -> None:
        """A vector in fixed point under its masks; one whose sender is gone is none."""
        if client not in self._boxes:
            return
        words = self.terms.form.encoded(vector, self.asked)
        self.participants[client].receive(self._boxes[client])
        masked = self.participants[client].masked(words)
        if self._arrives("masked vector", client):
            self.bytes_up += masked.nbytes
            self.collector.take(client, masked)

    def total(self) -> Tensor:
        """Take the masks off."""
        arrived = self.collector.arrived()
        self.bytes_down += _NUMBER_BYTES * len(arrived) ** 2
        revealed = {
            number: self.participants[number].revealed(arrived)
            for number in arrived
            if not self.is_lost("unmasking", number)
        }
        self.bytes_up += sum(answer.size for answer in revealed.values())
        return self.terms.form.decoded(self.collector.total(revealed))

    def _arrives(self, stage: Stage, client: int) -> bool:
        if self.is_lost(stage, client):
            self.lost[client] = stage
            return False
        return True
