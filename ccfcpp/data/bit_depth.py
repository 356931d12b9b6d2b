"""From values of more than 8 bits to 8 bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Window = tuple[float, float]
"""The values that become 0 and 255."""
_EVEN = 128
"""What an image of a single value becomes, which has no range."""


def to_8_bits(values: NDArray[Any], window: Window | None = None) -> NDArray[np.uint8]:
    """Map values linearly so that the window becomes 0 to 255, and round.

    Args:
        values: Integers or floats of any shape.
        window: What becomes 0 and 255; values outside are clipped. None takes the smallest and the
            largest of the values.

    Returns:
        uint8 of the same shape; 128 everywhere where all values are equal and no window is given.

    Raises:
        ValueError: A value is NaN or infinite.
    """
    exact = values.astype(np.float64)
    low, high = window or (float(exact.min()), float(exact.max()))
    if not np.isfinite(exact.sum()):
        raise ValueError("some of its values are NaN or infinite")
    if low == high:
        return np.full(values.shape, _EVEN, np.uint8)
    np.clip(exact, low, high, out=exact)
    exact -= low
    exact *= 255
    exact /= high - low
    return np.rint(exact, out=exact).astype(np.uint8)
