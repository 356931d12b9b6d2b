"""What all clients learn by sums before a system begins: the contract."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AnyClientWork, AnyExchange


def learnt(tensor: Tensor | None) -> Tensor:
    """What a lesson before has given."""
    assert tensor is not None
    return tensor


class Lesson(ABC):
    """One exchange of sums, from which the server learns.

    Attributes:
        exchange: What both sides know.
        gives: The field of the knowledge that it gives, or makes better.
    """

    exchange: AnyExchange
    gives: str

    @abstractmethod
    def work(self, crew: Crew) -> AnyClientWork:
        """The clients' half."""

    @abstractmethod
    def zeros(self) -> Any:
        """Sums over nothing, an update."""

    @abstractmethod
    def check(self, update: Any, senders: Sequence[Member]) -> None:
        """Refuse what cannot be the senders' sums.

        Raises:
            RefusedUpdateError: It cannot be used.
        """

    @abstractmethod
    def learn(self, known: Any, total: Any, randomness: Randomness) -> Any:
        """The next knowledge, from the sum over all clients."""


@dataclass(frozen=True)
class Stage:
    """What is learnt before a system begins, and what it changes for the system.

    Attributes:
        knowledge: A dataclass of tensors, whose fields are None until they are learnt.
        lessons: In their order.
        holder: Makes the holder that the system works with, of the knowledge and a client.
    """

    knowledge: type[Any]
    lessons: Sequence[Lesson]
    holder: Callable[[Any, Client], Client]

    def known_of(self, state: Any) -> Any:
        """What a state knows; None, which packing makes of an empty one, is nothing."""
        return state.preparation or self.knowledge()

    def is_learnt(self, known: Any, lessons: Sequence[Lesson]) -> bool:
        """Whether there is what some lessons give."""
        return all(getattr(known, lesson.gives) is not None for lesson in lessons)
