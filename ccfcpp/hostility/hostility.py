"""An attack on a run, and what the server does against such, as the configuration has both."""

from collections.abc import Mapping, Sequence

from ccfcpp.core.errors import Setting, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AnyClientWork, AnyExchange
from ccfcpp.engine.stages import Stage
from ccfcpp.hostility.attacks import Attack
from ccfcpp.hostility.config import AttackConfig, AttackOfSome, DefenceConfig
from ccfcpp.hostility.defence import Defence
from ccfcpp.privacy.config import PrivacyConfig


class Hostility:
    """Attack and defence of a run.

    Raises:
        UsageError: What is asked for does not fit the system or the clients.
    """

    def __init__(
        self,
        attack: AttackConfig,
        defence: DefenceConfig,
        privacy: PrivacyConfig,
        system: str,
        exchanges: Sequence[AnyExchange],
        members: Sequence[Member],
        invited: int,
        randomness: Randomness,
    ) -> None:
        if defence.is_on and privacy.is_on:
            raise UsageError(
                Setting("defence.rule", defence.rule),
                " needs each client's update, and with ",
                Setting("privacy.secure_sums"),
                " or ",
                Setting("privacy.level"),
                " the server gets their sum alone: leave one of them out",
            )
        self.rule = defence.rule
        self.attack = None
        if isinstance(attack, AttackOfSome) and attack.is_on:
            self.attack = Attack(attack, system, exchanges, members, randomness)
        self.defence = Defence(defence, system, exchanges, invited) if defence.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether there is an attack or a defence."""
        return self.attack is not None or self.defence is not None

    def works(self, works: Mapping[str, AnyClientWork]) -> Mapping[str, AnyClientWork]:
        """The clients' work, by the name of the exchange, with what attackers make of it."""
        return self.attack.works(works) if self.attack else works

    def known(self, members: Sequence[Member]) -> Sequence[Member]:
        """What the server takes the clients to be: their sizes are what they say."""
        return self.attack.known(members) if self.attack else members

    @property
    def stages(self) -> list[Stage]:
        """What lies between the transport and the loop."""
        return [self.defence] if self.defence else []

    def header(self) -> list[str]:
        """What a run says before its first round, line by line."""
        lines = [self.attack.header()] if self.attack else []
        return lines + ([f"defence: {self.rule}"] if self.defence else [])

    def describe(self) -> dict[str, object]:
        """What a summary says of it; nothing where there is neither."""
        found: dict[str, object] = {"attack": self.attack.describe()} if self.attack else {}
        return found | ({"defence": self.rule} if self.defence else {})
