"""The common size and number of channels of images from files.

Networks need images of one shape, and files differ. The shape follows from statistics of image
sizes, so that the clients of a deployment, which send only these, get the same shape.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import Section

Shape = tuple[int, int, int]
"""Channels, height and width."""

SIDES = (8, 16, 32, 64)
"""Sides of the squares to which images of different sizes are resized."""
LARGEST_KEPT = 256
"""Largest side in pixels of images that keep their common size."""
_NEARLY_ALL = 0.9
_MOST_LISTED = 20

Number = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Listed = tuple[Positive, Positive, Positive]


class Sizes(Section):
    """Statistics of images' sizes, from which `common_shape` chooses one shape for all.

    Attributes:
        images: Number of images.
        channels: 1 if all are grey, else 3.
        common: Height, width and number of images of the most frequent sizes, 20 at most.
        reaching: Numbers of images whose shorter side has at least 8, at least 16, at least 32, and
            at least 64 pixels.
    """

    images: Number
    channels: Literal[1, 3]
    common: Annotated[tuple[Listed, ...], Field(max_length=_MOST_LISTED)]
    reaching: tuple[Number, Number, Number, Number]

    @staticmethod
    def of(sizes: Iterable[tuple[int, int]], colour: bool) -> "Sizes":
        """Compute statistics from each image's (height, width), and whether any is in colour."""
        counts = Counter(sizes)
        # Equally frequent sizes are sorted, so that the order of the images does not matter.
        common = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_LISTED]
        a, b, c, d = (sum(n for size, n in counts.items() if min(size) >= side) for side in SIDES)
        return Sizes(
            images=counts.total(),
            channels=3 if colour else 1,
            common=tuple((*size, n) for size, n in common),
            reaching=(a, b, c, d),
        )

    @property
    def is_sound(self) -> bool:
        """Whether the statistics are consistent, so that some images could have them."""
        listed = sum(n for _, _, n in self.common)
        return 0 < listed <= self.images and max(self.reaching) <= self.images


def common_shape(found: Sequence[Sizes], image_size: int | None = None) -> Shape:
    """Choose one shape (channels, height, width) for the images of all clients.

    If any image is in colour, grey ones become colour images, too. A size that nine of ten images
    have is kept, up to 256 pixels a side, and the others are resized to it. Otherwise all become
    squares. Their side is the largest of 8, 16, 32 and 64 that is no longer than the shorter side
    of at least half of the images.

    Args:
        found: Size statistics of each client's images.
        image_size: Height and width that the user has chosen, used instead.
    """
    channels = max(each.channels for each in found)
    if image_size is not None:
        return channels, image_size, image_size
    images = sum(each.images for each in found)
    counts = Counter[tuple[int, int]]()
    for each in found:
        for height, width, n in each.common:
            counts[height, width] += n
    (height, width), most = counts.most_common(1)[0]
    if most >= _NEARLY_ALL * images and max(height, width) <= LARGEST_KEPT:
        return channels, height, width
    reaching = [sum(numbers) for numbers in zip(*(s.reaching for s in found), strict=True)]
    reached = (side for side, n in zip(SIDES, reaching, strict=True) if 2 * n >= images)
    side = max(reached, default=SIDES[0])
    return channels, side, side
