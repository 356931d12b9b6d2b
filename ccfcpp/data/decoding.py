"""Decoding of image files to uint8 arrays: the one place where a decoder sees foreign bytes."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ccfcpp.core.errors import UsageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of image files' names, in lower case."""

Source = Callable[[Path], Path | BytesIO]
"""Maps the name of a file to the file on disk, or to its content."""

_GIVE_A_SIZE = "give one size to all, for instance --set data.image_size=32"
# Named, so that a file with an image's name never reaches a decoder that starts a program (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")
_GREY_MODES = ("1", "L", "LA", "La")
_GREY_16_BIT_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


def decode_images(
    files: Sequence[Path],
    source: Source,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    mend: str = _GIVE_A_SIZE,
) -> NDArray[np.uint8]:
    """Decode images to one array.

    Palettes are resolved, alpha is dropped, 16-bit grey is scaled to 8 bits, and pixels are taken
    as stored (no rotation by EXIF).

    Args:
        files: The names of the files, at least one.
        source: Returns the file of a name.
        image_size: Resize every image to this height and width; without it, all must have one size.
        channels: 3 to let grey images fill three channels; by default one channel if all images
            are grey, else three.
        mend: The remedy for differing sizes, for the message.

    Returns:
        uint8 `(files, channels, height, width)`.

    Raises:
        UsageError: If an image is broken, or the sizes differ.
    """
    # The headers first: they tell the number of channels, and a wrong size before long work.
    modes, sizes = zip(*(_header(file, source) for file in files), strict=True)
    width, height = sizes[0]
    if image_size is not None:
        width = height = image_size
    for file, (wide, high) in zip(files, sizes, strict=True):
        if image_size is None and (wide, high) != sizes[0]:
            raise UsageError(f"{file} is {wide}x{high}, but {files[0]} is {width}x{height}: {mend}")
    channels = channels or (1 if all(_is_grey(mode) for mode in modes) else 3)
    images = np.empty((len(files), channels, height, width), np.uint8)
    for i, file in enumerate(files):
        images[i] = _pixels(file, source, image_size)  # a grey image fills all channels
    return images


def _header(file: Path, source: Source) -> tuple[str, tuple[int, int]]:
    with _opened(file, source) as image:
        return image.mode, image.size


def _pixels(file: Path, source: Source, image_size: int | None) -> NDArray[np.uint8]:
    """Decode one image to `(channels, height, width)`, resized if asked."""
    with _opened(file, source) as image:
        pixels = _to_8_bits(image)
    if image_size is None:
        return pixels
    import torch

    from ccfcpp.data.images import resize

    return resize(torch.from_numpy(pixels)[None], image_size)[0].numpy()


def _to_8_bits(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in _GREY_16_BIT_MODES:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values need more than 16 bits")
        return np.rint(values / 257).astype(np.uint8)[None]
    if image.mode == "F":
        raise ValueError("its values are floating-point numbers")
    if _is_grey(image.mode):
        return np.array(image.convert("L"))[None]
    return np.array(image.convert("RGB")).transpose(2, 0, 1)


def _is_grey(mode: str) -> bool:
    return mode in _GREY_MODES or mode in _GREY_16_BIT_MODES


@contextmanager
def _opened(file: Path, source: Source) -> Iterator[Image.Image]:
    encoded = source(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata
            # An image large enough to exhaust the memory when decoded is refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(encoded, formats=_FORMATS) as image:
                yield image
    except Exception as error:  # decoders raise almost anything on broken files
        raise UsageError(f"{file} cannot be read as an image: {error}") from error
