"""Settings of privacy. Importing this module imports no network library."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ccfcpp.core.config import Count, PositiveNumber, Section, Unused, require, unused_without
from ccfcpp.core.errors import KeyValue, UsageError


class PrivacyConfig(Section):
    """Settings of secure sums and differential privacy, beyond keeping images at clients."""

    secure_sums: bool = False
    """Let the server learn only sums over clients, and no client's part of them (an extra)."""
    threshold: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """Number of clients that a secure sum needs at every stage, always more than half
    of those that are asked. null: two thirds of those, plus one."""
    holders: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """Number of clients that hold shares of a client's secrets in a secure sum, and have masks in
    common with it. null: all, up to 100 clients; of more, as many as are safe if a tenth of all
    colludes with the server and another tenth is lost."""
    bits: Literal[32, 64] = 64
    """Bits of a number in a secure sum, which is computed modulo 2 to that power."""
    fraction_bits: Annotated[int, Field(ge=1, le=62)] | None = None
    """Bits of a number after the binary point; null: half of all. If clients add the noise, numbers
    are integers, in a unit that follows from the noise."""
    smallest_count: Count = 0
    """A client sends no centroid, mean or sum over fewer of its images."""
    level: Literal["none", "client", "image"] = "none"
    """Differential privacy (an extra): ``client`` hides whether a client took part at all,
    ``image`` whether any one image did."""
    epsilon: PositiveNumber = 8.0
    """Budget ε of differential privacy; the run ends before the round that would spend more."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ: about the probability with which the guarantee of ε may fail."""
    noise: PositiveNumber | None = None
    """Standard deviation of a sum's noise, divided by the largest change that one client, or one
    image, can make; null: the smallest that keeps all rounds within the budget."""
    clip: PositiveNumber = 1.0
    """Largest Euclidean norm of a client's, or an image's, part of a sum; larger ones are
    scaled down to it. feddp-kmeans: in multiples of the usual size."""
    clips: dict[str, PositiveNumber] = Field(default_factory=dict)
    """Bounds in place of ``clip`` for single parts of updates, such as ``gradient``, ``model`` or
    ``counts``; or for one sum, such as ``sums/predictions``."""
    noise_at: Literal["clients", "server"] = "clients"
    """With secure sums: who adds the noise. Each of the ``clients`` adds a part of it under its
    masks, so that the server sees no sum without noise; or the ``server`` adds it to the sum."""
    colluders: Count = 0
    """Number of clients that may tell the server their parts of the noise; the others add more."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Method of adding up ε: privacy loss distributions, or Rényi divergences (a larger ε)."""
    reproducible_noise: bool = False
    """Draw noise and samples from the run's seed. The noise then protects nothing."""

    def unused(self) -> Unused:
        """Yield the settings that have no effect because secure sums or noise are off."""
        of_both = "privacy.noise_at privacy.colluders"
        if self.level == "none":
            keys = "epsilon delta noise clip clips accountant reproducible_noise"
            keys = " ".join(f"privacy.{key}" for key in keys.split())
            yield from unused_without(
                f"{keys} {of_both}", require("privacy.level", "client or image")
            )
        if not self.secure_sums:
            keys = "privacy.threshold privacy.holders privacy.bits privacy.fraction_bits"
            yield from unused_without(f"{keys} {of_both}", require("privacy.secure_sums"))
        if self.noise_at == "server":
            yield from unused_without("privacy.colluders", require("privacy.noise_at", "clients"))
        elif self.level != "none":
            either = (
                require("privacy.level", "none"),
                ", or ",
                require("privacy.noise_at", "server"),
            )
            yield from unused_without("privacy.fraction_bits", *either)

    @property
    def own_noise(self) -> bool:
        """Whether the clients, and not the server, add the noise of differential privacy."""
        return self.secure_sums and self.level != "none" and self.noise_at == "clients"

    @property
    def behind_the_point(self) -> int:
        """Bits after the binary point of a number in a secure sum; 0 if clients add the noise."""
        if self.own_noise:
            return 0
        return self.bits // 2 if self.fraction_bits is None else self.fraction_bits

    @property
    def rounding(self) -> float:
        """Rounding step: clients round the numbers they send to multiples of it; 0: no rounding."""
        return math.ldexp(1.0, -self.behind_the_point) if self.secure_sums else 0.0

    @property
    def is_on(self) -> bool:
        """Whether secure sums or differential privacy are on."""
        return self.secure_sums or self.level != "none"

    @model_validator(mode="after")
    def _settings_go_together(self) -> "PrivacyConfig":
        if self.smallest_count > 0 and self.level == "image":
            raise UsageError(
                KeyValue("privacy.smallest_count", self.smallest_count),
                " with ",
                KeyValue("privacy.level", "image"),
                ": one image would decide whether a whole sum is sent; leave one of them out",
            )
        if self.secure_sums and self.level != "none" and self.bits == 32:
            raise UsageError(
                KeyValue("privacy.bits", 32),
                " with ",
                KeyValue("privacy.level", self.level),
                ": numbers are rounded after they are clipped, and 32 bits would take them beyond "
                "their bounds; give 64",
            )
        if self.behind_the_point > self.bits - 2:
            raise UsageError(
                f"privacy.fraction_bits = {self.fraction_bits} of privacy.bits = {self.bits} "
                f"leaves none before the point: give at most {self.bits - 2}"
            )
        return self
