"""Hostile clients, and what the server does against them. This imports no network library."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.conditions import Unless, When
from ccfcpp.core.config import PositiveNumber, Section, Share
from ccfcpp.core.errors import UsageError


class AttackConfig(Section):
    """Clients that are made to send something false, so that its effect can be measured."""

    kind: Literal[
        "none", "sign-flip", "scaled", "noise", "constant", "false-sizes", "one-point"
    ] = "none"
    """``sign-flip``: what was learned, with the other sign; ``scaled``: ``scale`` times as much;
    ``noise``: normal numbers of ``scale`` times its size; ``constant``: one number everywhere, the
    same for all attackers; ``false-sizes``: ``scale`` times as many images as the client has;
    ``one-point``: all centroids at one place."""
    attackers: Annotated[Share, Unless("attack.kind", "none")] = 0.3
    """Share of the connected clients that are hostile, in whole clients, halves up."""
    scale: Annotated[PositiveNumber, When("attack.kind", "scaled", "noise", "false-sizes")] = 10.0
    """Of ``scaled``, ``noise`` and ``false-sizes``."""

    @property
    def is_on(self) -> bool:
        """Whether there is an attack."""
        return self.kind != "none" and self.attackers > 0

    def refuse_deployed(self) -> None:
        """Refuse an attack where clients are on several machines."""
        if self.is_on:
            raise UsageError(
                f"attack.kind = {self.kind} is for clients of one process, to measure what it "
                "does: leave it out of a run over several machines"
            )


class DefenceConfig(Section):
    """What the server makes of updates that may be hostile."""

    rule: Literal[
        "none", "bound", "trimmed-mean", "median", "geometric-median", "krum", "multi-krum"
    ] = "none"
    """How updates become one: ``none``: the mean or sum of the system; ``bound``: the same, with a
    client's part bounded; the others take the place of the mean, and of the server's k-means."""
    hostile: Annotated[float, Field(ge=0, lt=0.5), Unless("defence.rule", "none", "bound")] = 0.3
    """The largest share of clients that may be hostile, in whole clients, rounded up: for
    ``trimmed-mean``, ``krum`` and ``multi-krum``; and for centroids by each rule but ``bound``."""
    norm: Annotated[PositiveNumber, When("defence.rule", "bound")] = 1.0
    """Of ``bound``: the longest change or sum of a client, by the median over the clients."""
    weight: Annotated[PositiveNumber, When("defence.rule", "bound")] = 2.0
    """Of ``bound``: the most images that a client may count for, by the median over the clients."""

    @property
    def is_on(self) -> bool:
        """Whether updates are treated."""
        return self.rule != "none"
