"""What a run does for privacy. Importing this module imports no network library."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ccfcpp.core.config import Section


class PrivacyConfig(Section):
    """Protection beyond images staying with their clients."""

    secure_sums: bool = False
    """Whether the server learns sums over clients alone, and no client's part of them."""
    threshold: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """Of secure sums: how many clients must be there at every stage; fewer learn nothing together
    with the server. null: two thirds of those that are asked, and one."""
    bits: Literal[32, 64] = 64
    """Of a number in a secure sum, modulo 2 to that power."""
    fraction_bits: Annotated[int, Field(ge=1, le=62)] | None = None
    """Of these, bits behind the point; null: half of them."""

    @property
    def behind_the_point(self) -> int:
        """Bits behind the point."""
        return self.bits // 2 if self.fraction_bits is None else self.fraction_bits

    @model_validator(mode="after")
    def _some_bits_are_before_the_point(self) -> "PrivacyConfig":
        if self.behind_the_point > self.bits - 2:
            raise ValueError(
                f"privacy.fraction_bits = {self.fraction_bits} of privacy.bits = {self.bits} leaves "
                f"none before the point: give at most {self.bits - 2}"
            )
        return self
