"""Conversion of images of more than 8 bits, which PIL would cut, scale or misread, to 8 bits.

Values are mapped linearly, from their own range or from a given window.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HIGH_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""PIL's modes of images of more than 8 bits."""
BITS = 258
"""TIFF tag of the number of bits of each channel."""
Window = tuple[float, float]
"""The two values of an image that become 0 and 255."""
_EVEN = 128
"""Result for an image whose values are all equal, which has no range."""
_PHOTOMETRIC, _PLANES, _SAMPLES = 262, 284, 339
_WHITE_IS_ZERO, _SEPARATE, _UNSIGNED, _SIGNED = 0, 2, 1, 2
_CODESTREAM = b"\xff\x4f\xff\x51"
"""First bytes of a JPEG 2000 image; the bit depth of its first channel lies 42 bytes on."""


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
    """Return PIL's name of an image file's pixel format, such as ``RGB;16B``; empty if none."""
    tile = getattr(image, "tile", None)
    args = tile[0][3] if tile else ""
    name = args[0] if isinstance(args, tuple) and args else args
    return name if isinstance(name, str) else ""


def has_16_bits(image: Image.Image) -> bool:
    """Return whether a file's channels have 16 bits; ``BGR;16`` has 16 bits in all three."""
    raw = raw_mode(image)
    return ";16" in raw and raw != "BGR;16"


def refuse_lossy(image: Image.Image) -> None:
    """Refuse an image with channels of more than 8 bits that PIL would cut to 8 bits.

    Raises:
        ValueError: It is such an image; the message says why, and does not name the image.
    """
    bits = _tag(image, BITS, (1,))
    if len(bits) > 1 and max(bits) > 8 and _tag(image, _PLANES) == _SEPARATE:
        raise ValueError(
            f"its channels of {max(bits)} bits lie apart: write it with PlanarConfiguration 1"
        )
    is_jpeg2000 = image.format == "JPEG2000" and image.mode not in HIGH_MODES
    if is_jpeg2000 and (depth := _bits_of_jpeg2000(image)) > 8:
        raise ValueError(f"it has {depth} bits of {image.mode}: make it PNG or TIFF")


def decode_grey(image: Image.Image) -> NDArray[Any]:
    """Decode a grey image to an array of shape `(height, width)`, in its full bit depth."""
    if image.format == "JPEG2000":  # which PIL fills up to 16 bits
        shift = 16 - _bits_of_jpeg2000(image)
        return np.asarray(np.asarray(image) >> shift)
    raw = raw_mode(image)
    if image.format == "TIFF" and image.tile[0][0] == "libtiff":  # type: ignore[attr-defined]
        # libtiff has already put the bytes in the machine's order.
        _reinterpret(image, re.sub(r";(16|32)B", r";\1N", raw))
    values = np.asarray(image)
    return values.view(np.uint32) if raw == "I;32N" else values


def is_white_zero(image: Image.Image) -> bool:
    """Return whether a TIFF stores white as 0, which PIL would show inverted."""
    return bool(_tag(image, _PHOTOMETRIC) == _WHITE_IS_ZERO)


def is_signed(image: Image.Image) -> bool:
    """Return whether a TIFF has signed 8-bit values, which PIL would read as unsigned."""
    return set(_tag(image, _SAMPLES, (_UNSIGNED,))) == {_SIGNED}


def _tag(image: Image.Image, tag: int, default: Any = None) -> Any:
    return image.tag_v2.get(tag, default) if image.format == "TIFF" else default  # type: ignore[attr-defined]


def _bits_of_jpeg2000(image: Image.Image) -> int:
    content = _read_from(image, 0)
    return (content[content.index(_CODESTREAM) + 42] & 127) + 1


def is_deep_pnm(image: Image.Image) -> bool:
    """Return whether an image is PGM or PPM with values above 255, which PIL would rescale."""
    args = image.tile[0][3] if image.format == "PPM" and image.tile else ""  # type: ignore[attr-defined]
    return isinstance(args, tuple) and args[-1] > 255


def decode_pnm(image: Image.Image) -> NDArray[np.uint16]:
    """Decode a 16-bit PGM or PPM to shape `(channels, height, width)`, without rescaling."""
    codec, _, start, _ = image.tile[0]  # type: ignore[attr-defined]
    content, channels = _read_from(image, start), len(image.getbands())
    count = image.width * image.height * channels
    if codec == "ppm_plain":
        numbers = re.sub(rb"#[^\r\n]*", b" ", content).split()[:count]
        values = np.array(list(map(int, numbers)), np.uint16)
    else:
        values = np.frombuffer(content, ">u2", count)
    return values.reshape(image.height, image.width, channels).transpose(2, 0, 1)


def _read_from(image: Image.Image, start: int) -> bytes:
    """Read the bytes of an image's file from position ``start`` on."""
    file = image.fp  # type: ignore[attr-defined]
    file.seek(start)
    content: bytes = file.read()
    return content


def decode_16_bits(image: Image.Image, opened: Callable[[], Image.Image]) -> NDArray[np.uint16]:
    """Decode an image of several 16-bit channels, which PIL cannot hold, without alpha.

    PIL reads the higher byte of each value; with the byte order swapped, the lower one.

    Args:
        image: The image, opened but not decoded.
        opened: Opens the same image file once more.

    Returns:
        Pixels of shape `(channels, height, width)`.
    """
    raw = raw_mode(image)
    if raw.startswith("LA"):  # Grey and alpha are four bytes.
        _reinterpret(image, "RGBA")
        high, low = np.asarray(image).transpose(2, 0, 1)[:2]
        return _join_bytes(high, low)[None]
    # Of RGBa, PIL would divide each byte by alpha.
    if not raw.startswith("RGB") or raw.startswith("RGBa"):
        raise ValueError(f"it has 16 bits of {raw.partition(';')[0]}: make it RGB")
    big = raw.endswith("B") or (raw.endswith("N") and sys.byteorder == "big")
    high = np.asarray(image).transpose(2, 0, 1)[:3]
    again = opened()
    _reinterpret(again, raw[:-1] + ("L" if big else "B"))
    low = np.asarray(again).transpose(2, 0, 1)[:3]
    return _join_bytes(high, low)


def _join_bytes(high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint16]:
    return np.left_shift(high.astype(np.uint16), 8) | low


def _reinterpret(image: Image.Image, raw: str) -> None:
    """Set the pixel format with which PIL will decode an image."""
    image.tile = [  # type: ignore[attr-defined]
        tile._replace(args=raw if isinstance(tile.args, str) else (raw, *tile.args[1:]))
        for tile in image.tile  # type: ignore[attr-defined]
    ]
