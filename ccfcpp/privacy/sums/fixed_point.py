"""Fixed-point numbers: integers modulo 2³² or 2⁶⁴, whose sums are exact."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.engine.exchange import RefusedUpdateError

Words = NDArray[Any]
"""uint32 or uint64 of shape (numbers,); sums wrap around."""


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point format: multiples of 2^−fraction in two's complement.

    Attributes:
        bits: Number of bits, 32 or 64.
        fraction: Number of bits after the binary point.
    """

    bits: int
    fraction: int

    @property
    def words(self) -> np.dtype[Any]:
        """The dtype of a number as it is sent: little-endian, unsigned."""
        return np.dtype("<u4" if self.bits == 32 else "<u8")

    @property
    def step(self) -> float:
        """Distance between neighbouring numbers; rounding errors are at most half of it."""
        return math.ldexp(1.0, -self.fraction)

    def largest(self, summands: int) -> float:
        """Return the largest absolute value of ``summands`` numbers whose sum cannot overflow."""
        # Half a unit for rounding, and as much for the representation as float64.
        whole = ((1 << (self.bits - 1)) - 1) // summands - 1
        return whole * self.step * (1 - math.ldexp(1.0, -50))

    def encode(self, values: Tensor, summands: int) -> Words:
        """Convert numbers to fixed point: round them to multiples of ``step``.

        Args:
            values: float64 of shape (numbers,).
            summands: Largest number of such vectors in the sum.

        Raises:
            RefusedUpdateError: A number is not finite, or too large for the sum.
        """
        array = values.cpu().numpy()
        if not np.isfinite(array).all():
            raise RefusedUpdateError("it holds NaN or Inf")
        most = self.largest(summands)
        if np.abs(array).max(initial=0.0) > most:
            # The message keeps the number itself secret: it follows from images.
            raise RefusedUpdateError(
                f"it holds a number beyond {most:.3g}, up to which secure sums of {summands} "
                "clients go: lower privacy.fraction_bits"
            )
        whole = np.rint(np.ldexp(array, self.fraction)).astype(np.int64)
        words: Words = whole.astype(self.words)  # wraps around: two's complement
        return words

    def decode(self, words: Words) -> Tensor:
        """Convert a sum of fixed-point numbers to float64 of shape (numbers,)."""
        signed = words.view(np.dtype(f"<i{self.bits // 8}"))
        return torch.from_numpy(np.ldexp(signed.astype(np.float64), -self.fraction))
