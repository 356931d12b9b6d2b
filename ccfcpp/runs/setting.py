"""Parts of the runs of all methods: device, randomness, availability, privacy and safeguards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from ccfcpp.core.config import PrecisionConfig, RunConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import format_count
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AnyClientWork, AnyExchange
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ClientLevel, ImageLevel, sampling_of
from ccfcpp.privacy.protection import Protection, check_fits
from ccfcpp.robust.attacks import Attack
from ccfcpp.robust.config import AttackConfig, AttackOfSome, DefenceConfig
from ccfcpp.robust.defence import Defence
from ccfcpp.runs.environment import check_precision, choose_device
from ccfcpp.runs.tracking import check_tracker


@dataclass(frozen=True)
class Setting:
    """Needs of a run of any method: device, random numbers, availability and privacy.

    Attributes:
        config: The configuration.
        device: Device of the computation.
        randomness: The source of random numbers.
        availability: Which clients take part.
        privacy: Settings of secure sums and differential privacy.
    """

    config: RunConfig
    device: torch.device
    randomness: Randomness
    availability: Availability
    privacy: PrivacyConfig

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Make the setting for a configuration, and check that this machine can run it.

        Raises:
            UsageError: This machine lacks a device, precision or package that ``config`` names.
        """
        device, privacy = choose_device(config.device), config.section(PrivacyConfig)
        check_precision(config.section(PrecisionConfig).precision, device)
        check_tracker(config.track)
        availability = sampling_of(privacy)(**config.availability.model_dump())
        return cls(config, device, Randomness(config.seed), availability, privacy)

    @property
    def is_undisturbed(self) -> bool:
        """Whether sums over all clients reach the server exactly and in each round."""
        attack, defence = self.config.section(AttackConfig), self.config.section(DefenceConfig)
        return not (self.availability.varies or self.privacy.is_on or attack.is_on or defence.is_on)

    def check_late(self, rounds: int) -> None:
        """Raise ``UsageError`` if clients join after the last of ``rounds``, or under noise."""
        late, missed = self.availability.late, self.availability.late_rounds
        if late and self.privacy.level != "none":
            raise UsageError(
                f"availability.late = {list(late)} is refused with privacy.level = "
                f"{self.privacy.level}: noise is for a fixed number of clients; leave one of them "
                "out"
            )
        if late and missed >= rounds:
            raise UsageError(
                f"availability.late_rounds = {missed} is refused: the run has "
                f"{format_count(rounds, 'round')}; give fewer"
            )


@dataclass(frozen=True)
class Safeguards:
    """Attackers, defence and protection around the exchanges of a run.

    Attributes:
        attackers: The hostile clients, if any.
        defender: The server's defence, if any.
        protection: Secure sums or differential privacy, if any.
    """

    attackers: Attack | None = None
    defender: Defence | None = None
    protection: Protection | None = None

    @classmethod
    def of(
        cls,
        setting: Setting,
        algorithm: Algorithm[Any],
        works: Iterable[AnyClientWork],
        members: Sequence[Member],
    ) -> Self:
        """Make the safeguards that a configuration asks for.

        Args:
            setting: Device, randomness, availability and privacy.
            algorithm: The federated algorithm.
            works: The clients' half of each of its exchanges.
            members: The clients that take part.

        Raises:
            UsageError: The safeguards do not fit the algorithm or the clients.
        """
        config, privacy, system = setting.config, setting.privacy, setting.config.method
        attack, defence = config.section(AttackConfig), config.section(DefenceConfig)
        exchanges = [work.exchange for work in works]
        if defence.is_on and privacy.is_on:
            raise UsageError(
                KeyValue("defence.rule", defence.rule),
                " needs each client's update, and with ",
                KeyValue("privacy.secure_sums"),
                " or ",
                KeyValue("privacy.level"),
                " the server gets their sum alone: leave one of them out",
            )
        invited = setting.availability.invited(len(members))
        return cls(
            Attack(attack, system, exchanges, members, setting.randomness)
            if isinstance(attack, AttackOfSome) and attack.is_on
            else None,
            Defence(defence, system, exchanges, invited) if defence.is_on else None,
            _protection(setting, algorithm, exchanges, members) if privacy.is_on else None,
        )


def _protection(
    setting: Setting,
    algorithm: Algorithm[Any],
    exchanges: Sequence[AnyExchange],
    members: Sequence[Member],
) -> Protection:
    privacy, system, randomness = setting.privacy, setting.config.method, setting.randomness
    check_fits(privacy, system, exchanges)
    mechanism: ClientLevel | ImageLevel | None = None
    if privacy.level != "none":
        works = algorithm.plan(algorithm.initial_state(randomness))
        if privacy.level == "image":
            held = sum(member.samples for member in members)
            mechanism = ImageLevel(privacy, works, randomness, system, exchanges, held)
        else:
            share = setting.availability.sample_fraction
            dropout = setting.availability.dropout_rate
            mechanism = ClientLevel(privacy, works, randomness, share, len(members), dropout)
    return Protection(privacy, system, exchanges, len(members), mechanism)
