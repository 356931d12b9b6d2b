"""Decoding of image files to uint8 arrays: the only place where a decoder reads untrusted bytes.

Pixels come upright, as EXIF says. Palettes are resolved and alpha is dropped, unless the image has
one colour, and only its alpha shows anything. Of a file with several frames or pages the first is
taken. Values of more than 8 bits are mapped to 8 linearly, from the image's own range or from a
given window. HEIC and DICOM each need an optional package.
"""

import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ccfcpp.core.data_kinds import NO_IMAGE
from ccfcpp.core.errors import UsageError
from ccfcpp.data import bit_depth, dicom
from ccfcpp.data.bit_depth import Window, to_8_bits

UNREAD = (
    *(".avif", ".jxl", ".svg", ".psd", ".exr", ".eps"),
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"),
)
"""Suffixes of image formats that are refused; some begin as a TIFF does, with a small preview."""
HEAD = 512
"""Number of bytes at the start of a file that show its format."""
MOST_PIXELS = 100_000_000
"""Default limit of an image's number of pixels."""

# PIL tries only these: for EPS it would start another program.
_FORMATS: tuple[str, ...] = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF", "JPEG2000")
_GREY_MODES = ("1", "L", "LA", "La")
_MIDDLE = 128
_ORIENTATION = 274
"""EXIF tag of the orientation."""
_SIGNATURES = re.compile(
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|BM.{4}\0{4}|II\*\0|MM\0\*|RIFF.{4}WEBP|\0\0\0\x0cjP  "
    rb"|P[1-6]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s|.{4}ftyp(hei[cxms]|hev[cxms]|mif1|msf1)|.{128}DICM",
    re.DOTALL,
)
_IS_HEIC = re.compile(rb".{4}ftyp(hei|hev|mif|msf)", re.DOTALL)


class UnreadableError(Exception):
    """Error if a file cannot be read as an image; the message says why, without the file's name."""


@dataclass(frozen=True)
class Header:
    """Properties of an image, read from its file's header.

    Attributes:
        kind: The file format, such as PNG.
        height: Height of the upright image in pixels; ``width`` is its width.
        bits: Bits per channel.
        channels: 1 for grey, 3 for colour.
        orientation: EXIF's orientation number; 1 is upright.
        frames: Number of frames or pages.
    """

    kind: str
    height: int
    width: int
    bits: int
    channels: int
    orientation: int = 1
    frames: int = 1


def looks_like_image(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a supported image format."""
    return _SIGNATURES.match(head) is not None


def installed_extras() -> list[str]:
    """Return the names of those optional packages for image formats that are installed."""
    return [name for name in ("pydicom", "pillow_heif") if importlib.util.find_spec(name)]


@dataclass(frozen=True)
class OpenImage:
    """Open image file, whose pixels are not decoded yet.

    Attributes:
        header: The image's properties.
        decode: Returns the upright image, uint8 `(channels, height, width)`. Its argument is the
            two values that become 0 and 255 if the image has more than 8 bits; None: the window of
            a DICOM file, or else the smallest and the largest value.
    """

    header: Header
    decode: Callable[[Window | None], NDArray[np.uint8]]


@contextmanager
def open_image(file: Path, most_pixels: int = MOST_PIXELS) -> Iterator[OpenImage]:
    """Open an image file and read its header; its pixels are decoded on demand.

    Raises:
        UnreadableError: The file is no image, has too many pixels, or is damaged; also if
            decoding fails later, in the context.
    """
    try:
        with warnings.catch_warnings(), file.open("rb") as stream:
            warnings.simplefilter("ignore")  # odd metadata
            image = _open_stream(file.suffix.lower(), stream)
            header = image.header
            if header.width * header.height > most_pixels:
                raise UnreadableError(
                    f"it has {header.width}x{header.height} pixels, more than data.max_pixels = "
                    f"{most_pixels}"
                )
            yield image
    except (UnreadableError, UsageError):
        raise
    except UnidentifiedImageError as error:
        raise UnreadableError(NO_IMAGE) from error
    except Exception as error:  # decoders raise almost anything on broken files
        raise UnreadableError(" ".join(str(error).split()) or type(error).__name__) from error


def _open_stream(suffix: str, stream: BufferedReader) -> OpenImage:
    head = stream.read(HEAD)
    stream.seek(0)
    if not head:
        raise UnreadableError("it is empty")
    if suffix in UNREAD:
        raise UnreadableError(f"{suffix} is not read: convert it, for instance to PNG")
    if dicom.is_dicom(head) or (suffix in dicom.SUFFIXES and not looks_like_image(head)):
        _require("pydicom", "dicom", "DICOM")
        dataset = dicom.read_dicom(stream)
        return OpenImage(_header_of_dicom(dataset), partial(dicom.decode, dataset))
    formats = _FORMATS
    if _IS_HEIC.match(head):
        _require("pillow_heif", "heic", "HEIC")
        import pillow_heif

        pillow_heif.register_heif_opener()
        formats = (*_FORMATS, "HEIF")

    def open_with_pil() -> Image.Image:
        stream.seek(0)
        most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # `open_image` has its own
        try:
            return Image.open(stream, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = most

    image = open_with_pil()
    return OpenImage(_header_of_pil(image), partial(_decode_upright, image, open_with_pil))


def _require(package: str, extra: str, kind: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UnreadableError(f"{kind} needs an extra: pip install '.[{extra}]'")


def _decode_upright(
    image: Image.Image, opened: Callable[[], Image.Image], window: Window | None
) -> NDArray[np.uint8]:
    if bit_depth.is_deep_pnm(image):
        pixels = to_8_bits(bit_depth.decode_pnm(image), window)
    elif bit_depth.has_16_bits(image) and image.mode not in bit_depth.HIGH_MODES:
        pixels = to_8_bits(bit_depth.decode_16_bits(image, opened), window)
    else:
        pixels = _decode_pil(image, window)
    # If PIL has turned a TIFF itself, it has also reset the orientation.
    return _turn_upright(pixels, _orientation(image))


def _header_of_pil(image: Image.Image) -> Header:
    bit_depth.refuse_lossy(image)
    # PIL would decode a whole PNG to look for EXIF behind the pixels.
    has_exif = image.format != "PNG" or "exif" in image.info
    turned = _orientation(image) if has_exif else 1
    width, height = image.size
    if image.format == "TIFF":  # whose size some versions of PIL turn by themselves
        width, height = (image.tag_v2[tag] for tag in (256, 257))  # type: ignore[attr-defined]
    if turned >= 5:
        width, height = height, width
    return Header(
        kind=image.format or "",
        height=height,
        width=width,
        bits=_bits(image),
        channels=1 if _is_grey(image) else 3,
        orientation=turned,
        frames=getattr(image, "n_frames", 1),
    )


def _header_of_dicom(dataset: Any) -> Header:
    return Header(
        kind="DICOM",
        height=int(dataset.Rows),
        width=int(dataset.Columns),
        bits=int(dataset.BitsStored),
        channels=1 if dicom.is_grey(dataset) else 3,
        frames=int(dataset.get("NumberOfFrames") or 1),
    )


def _orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata does not spoil an image
        return 1
    return orientation if orientation in range(1, 9) else 1


def _turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Rotate and flip `(channels, height, width)` pixels according to EXIF's orientation."""
    if orientation >= 5:
        pixels = pixels.swapaxes(1, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[:, ::-1]
    return pixels


def _is_grey(image: Image.Image) -> bool:
    grey = (*_GREY_MODES, *bit_depth.HIGH_MODES)
    return image.mode in grey or bit_depth.raw_mode(image).startswith("LA;")


def _bits(image: Image.Image) -> int:
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(bit_depth.BITS, (1,))))  # type: ignore[attr-defined] # only there
    if image.mode in bit_depth.HIGH_MODES or bit_depth.is_deep_pnm(image):
        return 16
    return 1 if image.mode == "1" else 16 if bit_depth.has_16_bits(image) else 8


def _decode_pil(image: Image.Image, window: Window | None) -> NDArray[np.uint8]:
    """Decode an image to `(channels, height, width)`, in the file's orientation."""
    if image.mode in bit_depth.HIGH_MODES:
        grey = to_8_bits(bit_depth.decode_grey(image), window)[None]
        return 255 - grey if bit_depth.is_white_zero(image) else grey
    image = _flatten_alpha(image)
    if image.mode in _GREY_MODES:
        grey = np.array(image.convert("L"))[None]
        return np.bitwise_xor(grey, 128) if bit_depth.is_signed(image) else grey
    return np.array(image.convert("RGB")).transpose(2, 0, 1)


def _flatten_alpha(image: Image.Image) -> Image.Image:
    """Put a drawing of one colour, whose shape is in alpha, on a background of white or black."""
    if image.getbands()[-1] != "A":
        return image
    extrema: Any = image.getextrema()
    *colours, (least, most) = extrema
    if least == most or any(low != high for low, high in colours):
        return image
    is_dark = sum(low for low, _ in colours) < _MIDDLE * len(colours)
    below = Image.new("RGBA", image.size, "white" if is_dark else "black")
    flat = Image.alpha_composite(below, image.convert("RGBA"))
    return flat.convert("L" if len(colours) == 1 else "RGB")
