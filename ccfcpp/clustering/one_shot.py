"""Systems of a single round."""

from collections.abc import Sequence
from typing import Generic

from ccfcpp.engine.algorithm import Exchange, State
from ccfcpp.randomness import Randomness


class OneShot(Generic[State]):
    """An algorithm of one exchange, before which nothing is known.

    Args:
        state_type: The state; made without arguments, it is the one before the round.
        exchange: The exchange.
    """

    rounds = 1

    def __init__(self, state_type: type[State], exchange: Exchange[State]) -> None:
        self.state_type = state_type
        self._exchange = exchange

    def has_converged(self, state: State) -> bool:
        """Never before the round."""
        return False

    def initial_state(self, randomness: Randomness) -> State:
        """Nothing is known."""
        return self.state_type()

    def exchanges(self, number: int, state: State) -> Sequence[Exchange[State]]:
        """The one there is."""
        return [self._exchange]
