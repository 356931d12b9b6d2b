"""Configuration of attacks and defences. This module imports no network library."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from ccfcpp.core.config import PositiveNumber, Section, Share
from ccfcpp.core.errors import KeyValue, UsageError


class AttackConfig(Section):
    """Settings of simulated hostile clients, which send false updates to measure the effect."""

    kind: str
    """Simulated attack: false updates of some clients, to measure their effect."""

    @property
    def is_on(self) -> bool:
        """Whether there is an attack."""
        return False

    def refuse_deployed(self) -> None:
        """Refuse an attack in a deployed run, whose clients are on several machines."""
        if self.is_on:
            raise UsageError(
                KeyValue("attack.kind", self.kind),
                " is for clients of one process, to measure what it does: leave it out of a run "
                "over several machines",
            )


class NoAttack(AttackConfig):
    """Settings without an attack: all clients are honest."""

    kind: Literal["none"] = "none"


class AttackOfSome(AttackConfig):
    """Settings of an attack by some clients, which send false updates."""

    attackers: Share = 0.3
    """Share of the connected clients that are hostile, rounded to whole clients, halves up."""

    @property
    def is_on(self) -> bool:
        """Whether there is an attack."""
        return self.attackers > 0


class PlainAttack(AttackOfSome):
    """Settings of the attacks that have no scale."""

    kind: Literal["sign-flip", "constant", "one-point"] = "sign-flip"
    """``sign-flip``: what was learned, with the other sign; ``constant``: one number everywhere,
    the same for all attackers; ``one-point``: all centroids at one place."""


class ScaledAttack(AttackOfSome):
    """Settings of the attacks whose strength is a scale."""

    kind: Literal["scaled", "noise", "false-sizes"] = "scaled"
    """``scaled``: ``scale`` times what was learned; ``noise``: normal numbers of ``scale`` times
    its size; ``false-sizes``: ``scale`` times as many images as the client has."""
    scale: PositiveNumber = 10.0
    """Factor of these attacks."""


AnyAttack = Annotated[NoAttack | PlainAttack | ScaledAttack, Field(discriminator="kind")]


class DefenceConfig(Section):
    """Settings of the server's defence: how it combines updates that may be hostile."""

    rule: str
    """The server's defence against hostile clients."""

    @property
    def is_on(self) -> bool:
        """Whether there is a defence."""
        return self.rule != "none"


class NoDefence(DefenceConfig):
    """Settings without a defence: updates are combined by the system's own mean or sum."""

    rule: Literal["none"] = "none"


class Bound(DefenceConfig):
    """Settings of the defence that bounds what each client adds to the system's mean or sum."""

    rule: Literal["bound"] = "bound"
    norm: PositiveNumber = 1.0
    """Largest norm of a client's change or sum, as a multiple of the median over the clients."""
    weight: PositiveNumber = 2.0
    """Most images that a client may count for, as a multiple of the median over the clients."""


class RobustMean(DefenceConfig):
    """Settings of the defence by a robust mean, which is also used in the server's k-means."""

    rule: Literal["trimmed-mean", "median", "geometric-median", "krum", "multi-krum"] = "median"
    hostile: Annotated[float, Field(ge=0, lt=0.5)] = 0.3
    """Largest share of clients that may be hostile, rounded up to whole clients; used by
    ``trimmed-mean``, ``krum`` and ``multi-krum``, and for centroids by each rule."""


RULES: tuple[str, ...] = ("bound", *get_args(RobustMean.model_fields["rule"].annotation))
"""Names of all rules of a defence."""
AnyDefence = Annotated[NoDefence | Bound | RobustMean, Field(discriminator="rule")]
