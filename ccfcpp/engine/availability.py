"""The clients that take part in each round."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness


@dataclass(frozen=True)
class Availability:
    """Model of client availability: device failures and client sampling.

    Attributes:
        disconnection_rate: Share of the clients that are absent for the whole run (CCFC++ paper,
            Section IV-E), rounded to whole clients, halves up.
        dropout_rate: Probability that a connected client is absent from one round.
        sample_fraction: Share of the connected clients that the server invites in a round, rounded
            in the same way.
        without: Numbers of clients that never take part, as if they did not exist.
        late: Numbers of clients that join after the start.
        late_rounds: Number of rounds that these miss.
    """

    disconnection_rate: float = 0.0
    dropout_rate: float = 0.0
    sample_fraction: float = 1.0
    without: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    late_rounds: int = 1

    @property
    def varies(self) -> bool:
        """Whether the clients that take part may differ from round to round."""
        return self.dropout_rate > 0 or self.sample_fraction < 1

    def connected(
        self, clients: Sequence[int], randomness: Randomness, number: int | None = None
    ) -> list[int]:
        """Return the clients connected in round ``number`` (None: the last), in ascending order.

        Raises:
            UsageError: No client is left, the server would invite none, or ``without`` or ``late``
                names a client that does not exist.
        """
        self._check_names(clients)
        there = sorted(set(clients) - set(self.without))
        if not there:
            raise UsageError(
                f"availability.without = {list(self.without)} leaves no client: name fewer"
            )
        absent = _of_clients(self.disconnection_rate, len(there))
        left = sorted(_shuffled(there, randomness.generator("disconnection"))[absent:])
        if not left:
            raise UsageError(
                f"disconnection_rate = {self.disconnection_rate:g} disconnects all {len(there)} "
                "clients, but a run needs one: lower the rate or add clients"
            )
        if number is not None and number < self.late_rounds:
            left = [client for client in left if client not in self.late]
        if not left:
            raise UsageError(
                f"availability.late = {list(self.late)} leaves no client for the first round: name "
                "fewer"
            )
        if self.invited(len(left)) == 0:
            raise UsageError(
                f"sample_fraction = {self.sample_fraction:g} picks none of {len(left)} connected "
                f"clients: give more than {0.5 / len(left):g}"
            )
        return left

    def _check_names(self, clients: Sequence[int]) -> None:
        for key, named in (("without", self.without), ("late", self.late)):
            if unknown := sorted(set(named) - set(clients)):
                raise UsageError(
                    f"availability.{key} names client {unknown[0]}, and there is none: clients are "
                    f"{min(clients)} to {max(clients)}"
                )

    def invited(self, connected: int) -> int:
        """Return how many of the connected clients the server invites in a round."""
        return _of_clients(self.sample_fraction, connected)

    def taking_part(self, connected: Sequence[int], randomness: Randomness) -> list[int]:
        """Return the invited clients of a round that do not drop out, in ascending order."""
        count = self.invited(len(connected))
        invited = sorted(_shuffled(connected, randomness.generator("client sampling"))[:count])
        return [client for client in invited if not self._drops_out(randomness.of_client(client))]

    def _drops_out(self, randomness: Randomness) -> bool:
        draw = torch.rand((), generator=randomness.generator("dropout"))
        return bool(draw < self.dropout_rate)


def _shuffled(clients: Sequence[int], generator: torch.Generator) -> list[int]:
    ordered = sorted(clients)
    return [ordered[index] for index in torch.randperm(len(ordered), generator=generator).tolist()]


def _of_clients(share: float, clients: int) -> int:
    """Round a share to whole clients, halves up.

    The share is taken as it is written in decimals: 0.29 of 50 is 14.5, and not just below it.
    """
    exact = Decimal(str(share)) * clients
    return int(exact.to_integral_value(ROUND_HALF_UP))
