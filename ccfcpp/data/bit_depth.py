"""Values of more than 8 bits, which PIL would cut, scale or misread, mapped to 8 bits.

They are mapped by their own range, or by a window.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HIGH_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Modes of PIL's images of more than 8 bits."""
BITS = 258
"""The tag of TIFF for the bits of each channel."""
Window = tuple[float, float]
"""The values that become 0 and 255."""
_EVEN = 128
"""The value of an image of a single value, which has no range."""
_PHOTOMETRIC, _PLANES, _SAMPLES = 262, 284, 339
_WHITE_IS_ZERO, _APART, _UNSIGNED, _SIGNED = 0, 2, 1, 2
_CODESTREAM = b"\xff\x4f\xff\x51"
"""The beginning of an image in JPEG 2000; the bits of its first channel lie 42 bytes on."""


def to_8_bits(values: NDArray[Any], window: Window | None = None) -> NDArray[np.uint8]:
    """Map values linearly so that the window becomes 0 to 255, and round.

    Args:
        values: Integers or floats of any shape.
        window: The values that become 0 and 255; values outside are clipped. None: the smallest
            and the largest of the values.

    Returns:
        uint8 of the same shape; 128 everywhere if all values are equal and no window is given.

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


def raw_mode(image: Image.Image) -> str:
    """Return PIL's name of the pixel format in the file, such as ``RGB;16B``; empty if none."""
    tile = getattr(image, "tile", None)
    args = tile[0][3] if tile else ""
    name = args[0] if isinstance(args, tuple) and args else args
    return name if isinstance(name, str) else ""


def refuse_lossy(image: Image.Image) -> None:
    """Refuse an image with channels of more than 8 bits that PIL would cut to 8 bits.

    Raises:
        ValueError: The message says why, and does not name the image.
    """
    bits = _tag(image, BITS, (1,))
    if len(bits) > 1 and max(bits) > 8 and _tag(image, _PLANES) == _APART:
        raise ValueError(
            f"its channels of {max(bits)} bits lie apart: write it with PlanarConfiguration 1"
        )
    is_jpeg2000 = image.format == "JPEG2000" and image.mode not in HIGH_MODES
    if is_jpeg2000 and (depth := _bits_of_jpeg2000(image)) > 8:
        raise ValueError(f"it has {depth} bits of {image.mode}: make it PNG or TIFF")


def grey_values(image: Image.Image) -> NDArray[Any]:
    """Decode a grey image to an array of shape `(height, width)`, with all its bits."""
    if image.format == "JPEG2000":  # which PIL fills up to 16 bits
        shift = 16 - _bits_of_jpeg2000(image)
        return np.asarray(np.asarray(image) >> shift)
    raw = raw_mode(image)
    if image.format == "TIFF" and image.tile[0][0] == "libtiff":  # type: ignore[attr-defined]
        # The library has put the bytes in order already.
        _reinterpret(image, re.sub(r";(16|32)B", r";\1N", raw))
    values = np.asarray(image)
    return values.view(np.uint32) if raw == "I;32N" else values


def white_is_zero(image: Image.Image) -> bool:
    """Return whether a TIFF stores white as 0, which PIL would show inverted."""
    return bool(_tag(image, _PHOTOMETRIC) == _WHITE_IS_ZERO)


def is_signed(image: Image.Image) -> bool:
    """Return whether a TIFF has signed bytes, which PIL would read as unsigned."""
    return set(_tag(image, _SAMPLES, (_UNSIGNED,))) == {_SIGNED}


def _tag(image: Image.Image, tag: int, default: Any = None) -> Any:
    return image.tag_v2.get(tag, default) if image.format == "TIFF" else default  # type: ignore[attr-defined]


def _bits_of_jpeg2000(image: Image.Image) -> int:
    content = _content(image, 0)
    return (content[content.index(_CODESTREAM) + 42] & 127) + 1


def is_deep_pnm(image: Image.Image) -> bool:
    """Return whether the image is a PGM or PPM with more than 8 bits, which PIL would rescale."""
    args = image.tile[0][3] if image.format == "PPM" and image.tile else ""  # type: ignore[attr-defined]
    return isinstance(args, tuple) and args[-1] > 255


def of_pnm(image: Image.Image) -> NDArray[np.uint16]:
    """Decode a PGM or PPM of 16 bits to `(channels, height, width)`, without rescaling."""
    codec, _, start, _ = image.tile[0]  # type: ignore[attr-defined]
    content, channels = _content(image, start), len(image.getbands())
    count = image.width * image.height * channels
    if codec == "ppm_plain":
        numbers = re.sub(rb"#[^\r\n]*", b" ", content).split()[:count]
        values = np.array(list(map(int, numbers)), np.uint16)
    else:
        values = np.frombuffer(content, ">u2", count)
    return values.reshape(image.height, image.width, channels).transpose(2, 0, 1)


def _content(image: Image.Image, start: int) -> bytes:
    """Return the bytes of an image's file from ``start`` on, before it is decoded."""
    file = image.fp  # type: ignore[attr-defined]
    file.seek(start)
    content: bytes = file.read()
    return content


def of_16_bits(
    image: Image.Image, opened: Callable[[], Image.Image], raw: str
) -> NDArray[np.uint16]:
    """Decode a colour image of 16 bits a channel, which PIL cannot hold, without alpha.

    PIL reads the higher byte of each value; with the byte order swapped, the lower one.

    Args:
        image: The image.
        opened: Opens the image once more, not yet decoded.
        raw: The pixel format in the file, as PIL names it.

    Returns:
        `(channels, height, width)`.
    """
    if raw.startswith("LA"):  # Grey and alpha are four bytes.
        _reinterpret(image, "RGBA")
        high, low = np.asarray(image).transpose(2, 0, 1)[:2]
        return _joined(high, low)[None]
    if not raw.startswith("RGB") or raw.startswith("RGBa"):  # of which PIL would divide each byte
        raise ValueError(f"it has 16 bits of {raw.partition(';')[0]}: make it RGB")
    big = raw.endswith("B") or (raw.endswith("N") and sys.byteorder == "big")
    high = np.asarray(image).transpose(2, 0, 1)[:3]
    again = opened()
    _reinterpret(again, raw[:-1] + ("L" if big else "B"))
    low = np.asarray(again).transpose(2, 0, 1)[:3]
    return _joined(high, low)


def _joined(high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint16]:
    return np.left_shift(high.astype(np.uint16), 8) | low


def _reinterpret(image: Image.Image, raw: str) -> None:
    """Set the pixel format with which PIL will decode an image."""
    image.tile = [  # type: ignore[attr-defined]
        tile._replace(args=raw if isinstance(tile.args, str) else (raw, *tile.args[1:]))
        for tile in image.tile  # type: ignore[attr-defined]
    ]
