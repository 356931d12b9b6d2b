"""DICOM images, decoded by pydicom, which is an optional dependency."""

from io import BufferedReader
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfcpp.data.bit_depth import Window, to_8_bits

SUFFIXES = (".dcm", ".dicom")


def is_dicom(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a DICOM file."""
    return head[128:132] == b"DICM"


def read_dicom(encoded: BufferedReader) -> Any:
    """Parse a DICOM file without decoding its pixels.

    Raises:
        ValueError: The file holds no image.
    """
    import pydicom

    # Files without the preamble exist; what is no DICOM at all has no pixels.
    dataset = pydicom.dcmread(encoded, force=True)
    if "PixelData" not in dataset:
        raise ValueError("it holds no DICOM image")
    return dataset


def is_grey(dataset: Any) -> bool:
    """Return whether the image has one channel and no palette."""
    return str(dataset.PhotometricInterpretation).startswith("MONOCHROME")


def decode(dataset: Any, window: Window | None) -> NDArray[np.uint8]:
    """Decode the first frame to uint8 of shape `(channels, height, width)`.

    Grey values are rescaled by the file's slope and intercept, or its lookup table. Then they are
    mapped to 0 to 255: by `window`, the two values that become 0 and 255, if the image has more
    than 8 bits; else by the file's own first lookup table or window (DICOM PS3.3, C.11.2.1); else
    by the range of the values but padding or, up to 8 bits, of the stored bits. MONOCHROME1 is
    inverted.
    """
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    pixels = pixel_array(dataset, index=0)  # YCbCr becomes RGB
    if not is_grey(dataset):
        whole: Window | None = None
        if dataset.PhotometricInterpretation == "PALETTE COLOR":
            pixels = apply_color_lut(pixels, dataset)
            whole = 0, np.iinfo(pixels.dtype).max
        colours = pixels if pixels.dtype == np.uint8 else to_8_bits(pixels, whole or window)
        return colours.transpose(2, 0, 1)
    _take_first_frame(dataset)
    for item in (dataset.get("ModalityLUTSequence") or ())[:1]:
        item.LUTDescriptor = [*item.LUTDescriptor[:2], 16]  # pydicom has no type of 12 bits
    values = apply_modality_lut(pixels.astype(np.int64), dataset)
    if window is None or dataset.BitsStored <= 8:
        window = _window_of_file(dataset)
        if dataset.get("VOILUTSequence"):
            values, window = _apply_lookup_table(values, dataset)
        elif window and dataset.get("VOILUTFunction") == "SIGMOID":
            low, high = window
            steep = np.exp(-4 * (values - (low + high) / 2) / (high - low))
            values, window = 1 / (1 + steep), (0, 1)
        elif window is None and dataset.BitsStored <= 8:
            low = -(2 ** (dataset.BitsStored - 1)) if dataset.PixelRepresentation else 0
            ends = np.array([low, low + 2**dataset.BitsStored - 1])
            low, high = sorted(apply_modality_lut(ends, dataset).tolist())
            window = low, high
        elif window is None:
            window = _range_without_padding(values, pixels, dataset)
    grey = to_8_bits(values, window)[None]
    return 255 - grey if dataset.PhotometricInterpretation == "MONOCHROME1" else grey


def _range_without_padding(
    values: NDArray[Any], pixels: NDArray[Any], dataset: Any
) -> Window | None:
    """Return the smallest and largest value outside the padding; None if the image has none."""
    padding = _first(dataset.get("PixelPaddingValue"))
    if padding is None:
        return None
    limit = _first(dataset.get("PixelPaddingRangeLimit"))
    low, high = sorted((padding, padding if limit is None else limit))
    shown = values[(pixels < low) | (pixels > high)]
    return (float(shown.min()), float(shown.max())) if shown.size else None


def _take_first_frame(dataset: Any) -> None:
    """Copy the first frame's properties from functional groups to the top level of the header."""
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for group in (dataset.get(groups) or ())[:1]:
            for macro in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
                for item in (group.get(macro) or ())[:1]:
                    dataset.update(item)


def _apply_lookup_table(values: NDArray[Any], dataset: Any) -> tuple[NDArray[Any], Window]:
    from pydicom.pixels.processing import apply_voi

    item = dataset.VOILUTSequence[0]
    entries, first, bits = item.LUTDescriptor
    # With fewer bits pydicom would also cut the values, which index the table, to these.
    item.LUTDescriptor = [entries, first, 16]
    index = np.rint(values).clip(first, first + 0xFFFF).astype(np.int64)
    return apply_voi(index, dataset), (0, 2**bits - 1)


def _window_of_file(dataset: Any) -> Window | None:
    centre, width = (_first(dataset.get(f"Window{name}")) for name in ("Center", "Width"))
    if centre is None or width is None or width < 1:
        return None
    if dataset.get("VOILUTFunction", "LINEAR") == "LINEAR":
        centre, width = centre - 0.5, width - 1
    # A width of 1 makes a threshold.
    half = max(width, 1e-6) / 2
    return centre - half, centre + half


def _first(value: Any) -> float | None:
    """Return a DICOM value, or the first of several, as a float; None if there is none."""
    if value is None or value == "":
        return None
    return float(value[0] if isinstance(value, list | tuple) or hasattr(value, "append") else value)
