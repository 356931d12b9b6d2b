"""An attack on a run, and what the server does against such, as the configuration has both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.transport import Transport
from ccfcpp.privacy.attacks import Attack
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.defence import Defence
from ccfcpp.privacy.hostile_config import AttackConfig, DefenceConfig

Between = Callable[[Transport], Transport]


class Hostility:
    """Attack and defence of a run.

    Args:
        attack: The attack, if any.
        defence: The rule, if any.
        privacy: What else lies between the clients and the server.
        system: The system's name.
        exchanges: All that its clients can be asked for, by name.
        members: The connected clients.
        invited: How many of them the server asks in a round.
        randomness: The run's source.

    Raises:
        UsageError: What is asked for does not fit the system or the clients.
    """

    def __init__(
        self,
        attack: AttackConfig,
        defence: DefenceConfig,
        privacy: PrivacyConfig,
        system: str,
        exchanges: Mapping[str, Exchange[Any, Any]],
        members: Sequence[Member],
        invited: int,
        randomness: Randomness,
    ) -> None:
        if defence.is_on and privacy.is_on:
            raise UsageError(
                f"defence.rule = {defence.rule} needs each client's update, and with "
                "privacy.secure_sums or privacy.level the server gets their sum alone: leave one "
                "of them out"
            )
        known = list(exchanges.values())
        self.rule = defence.rule
        self.attack = Attack(attack, system, known, members, randomness) if attack.is_on else None
        self.defence = Defence(defence, system, known, invited) if defence.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether there is an attack or a defence."""
        return self.attack is not None or self.defence is not None

    def between(self, then: Between | None) -> Between | None:
        """What lies between the clients' transport and the loop's, from what follows the attack."""
        if not self.is_on:
            return then

        def made(inner: Transport) -> Transport:
            attacked = self.attack.between(inner) if self.attack else inner
            return then(attacked) if then else attacked

        return made

    def meet(self, federation: Federation[Any, Any]) -> None:
        """Give a server its defence, and what it takes the clients' sizes to be."""
        federation.defence = self.defence
        if self.attack is not None:
            known = self.attack.known(list(federation.members.values()))
            federation.members = {member.id: member for member in known}

    def header(self) -> list[str]:
        """What a run says before its first round, line by line."""
        lines = [self.attack.header()] if self.attack else []
        return lines + ([f"defence: {self.rule}"] if self.defence else [])

    def describe(self) -> dict[str, object]:
        """What a summary says of it; nothing where there is neither."""
        found: dict[str, object] = {"attack": self.attack.describe()} if self.attack else {}
        return found | ({"defence": self.rule} if self.defence else {})
