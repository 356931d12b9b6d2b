"""Values of more than 8 bits: a ramp is a ramp in whatever file it comes."""

import itertools
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ccfcpp.data.decoding import UnreadableError, open_image
from tests.support import traps
from tests.support.traps import COLOUR, GREY, Pixels, last, scaled

WINDOW = (200.0, 3000.0)
RAMP = scaled(GREY[0], 100, 4000)


def pixels_of(content: bytes, name: str = "a", window: tuple[float, float] | None = None) -> Pixels:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        with open_image(file) as image:
            found = image.decode(window)
    assert (image.header.channels, image.header.height, image.header.width) == found.shape
    return found


def jpeg2000_of_12_bits(values: np.ndarray) -> bytes:
    """Encode 16 bits and say 12: the decoder adds half of 4096 then, not of 65536."""
    content = bytearray(traps.encoded((values + 30720).astype(np.uint16), "JPEG2000"))
    content[content.index(b"ihdr") + 14] = 11
    content[content.index(b"\xff\x4f\xff\x51") + 42] = 11
    return bytes(content)


CONTAINERS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: traps.encoded(RAMP, "PNG"),
    "JPEG 2000": lambda: jpeg2000_of_12_bits(RAMP),
    "P5": lambda: traps.pnm(RAMP, 4095),
    "P5, 65535": lambda: traps.pnm(RAMP, 65535),
    "P2": lambda: traps.pnm(RAMP, 5000, plain=True),
    "P6": lambda: traps.pnm(np.dstack([RAMP] * 3), 4095),
    "P6, 65535": lambda: traps.pnm(np.dstack([RAMP] * 3), 65535),
    "P3": lambda: traps.pnm(np.dstack([RAMP] * 3), 4000, plain=True),
    "PNG in colour": lambda: traps.png_of_16_bits(np.dstack([RAMP] * 3), 2),
} | {
    f"TIFF, {order}{kind}{', deflated' * deflated}": (
        lambda kind=kind, order=order, deflated=deflated: traps.tiff(
            RAMP.astype(kind), order, deflated
        )
    )
    for kind, order, deflated in itertools.product(
        ("u2", "i2", "u4", "i4", "f4"), "<>", (False, True)
    )
    if (kind, order) != ("u4", ">")
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_ramp_is_a_ramp_in_each_container(container: str) -> None:
    content = CONTAINERS[container]()
    expected = np.rint((RAMP.clip(*WINDOW) - WINDOW[0]) * 255 / (WINDOW[1] - WINDOW[0]))
    for found, wanted in (
        (pixels_of(content, window=WINDOW), expected),
        (pixels_of(content), GREY[0]),
    ):
        for channel in found:
            np.testing.assert_array_equal(channel, wanted)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("deflated", [False, True])
def test_values_of_a_tiff_at_the_ends_of_their_type(order: str, deflated: bool) -> None:
    for kind in ("i1", "i2", "u2", "i4", "u4"):
        if (kind, order) == ("u4", ">"):
            continue
        ends = np.iinfo(kind)
        values = scaled(GREY[0], ends.min, ends.max, kind)  # type: ignore[arg-type]
        found = pixels_of(traps.tiff(values, order, deflated))
        np.testing.assert_array_equal(found, GREY)
    for values, name in ((RAMP, "u2"), (RAMP.astype("f4"), "f4")):
        if (name, order) == ("u2", ">"):
            continue
        np.testing.assert_array_equal(
            pixels_of(traps.tiff(values, order, deflated, photometric=0)), 255 - GREY
        )
    apart = pixels_of(traps.tiff(last(COLOUR), order, deflated, planes=2))
    np.testing.assert_array_equal(apart, COLOUR)


def test_what_would_be_read_wrong_is_left_out_with_its_reason() -> None:
    colour, alpha = scaled(last(COLOUR), 0, 4095), np.full((*RAMP.shape, 1), 900, np.uint16)
    wide = np.dstack([colour, alpha])
    refused: dict[str, tuple[bytes, str]] = {
        "planes": (traps.tiff(colour, planes=2), "its channels of 16 bits lie apart: write it"),
        "deflated": (traps.tiff(colour, ">", True, planes=2), "its channels of 16 bits lie apart"),
        "alpha": (traps.tiff(wide, extra=1), "it has 16 bits of RGBa: make it RGB"),
        "double": (traps.tiff(RAMP.astype(float)), "it is no image of a kind that is read"),
        "big": (traps.tiff(RAMP.astype("u4"), ">"), "it is no image of a kind that is read"),
        "cut": (traps.pnm(RAMP, 4095)[:-1], "buffer is smaller"),
    }
    image = Image.fromarray(last(COLOUR))
    content = bytearray(traps.encoded(image, "JPEG2000"))
    content[content.index(b"\xff\x4f\xff\x51") + 42] = 11
    refused["JPEG 2000"] = bytes(content), "it has 12 bits of RGB: make it PNG or TIFF"
    for name, (encoded, reason) in refused.items():
        with pytest.raises(UnreadableError, match=reason):
            pixels_of(encoded, f"{name}.tif")
    np.testing.assert_array_equal(pixels_of(traps.tiff(wide, extra=2)), COLOUR)


def test_a_bmp_of_16_bits_a_pixel_has_colours_of_8_bits(tmp_path: Path) -> None:
    """With 5, 6 and 5 bits, as small displays and cameras write it."""
    masks, pixels = (0xF800, 0x07E0, 0x001F), np.array([[0xF800, 0x07E0], [0x001F, 0]], "<u2")
    header = struct.pack("<IiiHHIIiiII3I", 40, 2, -2, 1, 16, 3, 8, 0, 0, 0, 0, *masks)
    file = tmp_path / "a.bmp"
    file.write_bytes(struct.pack("<2sIHHI", b"BM", 74, 0, 0, 66) + header + pixels.tobytes())
    found = pixels_of(file.read_bytes())
    assert found.tolist() == [[[255, 0], [0, 0]], [[0, 255], [0, 0]], [[0, 0], [255, 0]]]
    with open_image(file) as image:
        assert (image.header.kind, image.header.bits) == ("BMP", 8)


def test_an_8_bit_pnm_is_read_as_it_was() -> None:
    np.testing.assert_array_equal(
        pixels_of(traps.pnm(RAMP // 256, 15), window=(0, 3))[0], RAMP // 256 * 17
    )


def _nested(kind: str, **groups: dict[str, Any]) -> dict[str, Any]:
    """Make elements of functional groups: those of all frames, or a first and another one's."""
    from pydicom.dataset import Dataset

    def made(values: dict[str, Any]) -> Dataset:
        dataset = Dataset()
        for name, value in values.items():
            setattr(dataset, name, value)
        return dataset

    first = made({name: [made(values)] for name, values in groups.items()})
    other = made({name: [made(dict.fromkeys(values, 1))] for name, values in groups.items()})
    return {f"{kind}FunctionalGroupsSequence": [first, other] if kind == "PerFrame" else [first]}


SCALE: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": -1024}
VIEW: dict[str, Any] = {"WindowCenter": 1000, "WindowWidth": 2001}


@pytest.mark.parametrize("window", [None, (-160.0, 2240.0)])
def test_an_enhanced_image_is_read_as_the_plain_one(window: tuple[float, float] | None) -> None:
    pytest.importorskip("pydicom")
    ramp = scaled(GREY[0], 0, 2047)
    frames = np.stack([ramp, np.zeros_like(ramp)])
    groups = {"PixelValueTransformationSequence": SCALE, "FrameVOILUTSequence": VIEW}
    scale, view = ({name: groups[name]} for name in groups)
    plain = pixels_of(traps.dicom(ramp, **SCALE, **VIEW), "a.dcm", window)
    low, high = window or (-0.5, 1999.5)  # half a value off, by the standard
    expected = np.rint(((2.0 * ramp - 1024).clip(low, high) - low) * 255 / (high - low))
    np.testing.assert_array_equal(plain[0], expected)
    for elements in (
        _nested("Shared", **groups),
        _nested("PerFrame", **groups),
        _nested("Shared", **scale) | _nested("PerFrame", **view),
        _nested("PerFrame", **scale) | _nested("Shared", **view),
    ):
        found = pixels_of(traps.dicom(frames, **elements), "a.dcm", window)
        np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_table_of_values_of_interest_is_used(bits: int) -> None:
    pytest.importorskip("pydicom")
    from pydicom.dataset import Dataset

    entries, first, most = 1500, 100, 2**bits - 1
    curve = np.rint(np.linspace(0, 1, entries) ** 2 * most).astype(int)
    item = Dataset()
    item.LUTDescriptor = [entries, first, bits]
    item.LUTData = curve.tolist()
    item["LUTData"].VR = "US"
    rescaled: dict[str, Any] = {"RescaleSlope": 1, "RescaleIntercept": -200}
    content = traps.dicom(RAMP, VOILUTSequence=[item], **rescaled, **VIEW)
    places = (RAMP.astype(int) - 200 - first).clip(0, entries - 1)
    np.testing.assert_array_equal(
        pixels_of(content, "a.dcm")[0], np.rint(curve[places] * 255 / most)
    )
    expected = np.rint(((RAMP - 200.0).clip(0, 2000)) * 255 / 2000)
    np.testing.assert_array_equal(pixels_of(content, "a.dcm", (0, 2000))[0], expected)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_table_of_modality_comes_before_the_window(bits: int) -> None:
    pytest.importorskip("pydicom")
    from pydicom.dataset import Dataset

    curve = np.rint(np.linspace(1, 0, 4096) ** 2 * (2**bits - 1)).astype(int)
    item = Dataset()
    item.LUTDescriptor = [4096, 0, bits]
    item.LUTData = curve.tolist()
    item["LUTData"].VR = "US"
    found = pixels_of(traps.dicom(RAMP, ModalityLUTSequence=[item]), "a.dcm", (10, 200))
    expected = np.rint((curve[RAMP].clip(10, 200) - 10) * 255 / 190)
    np.testing.assert_array_equal(found[0], expected)


def test_other_ways_to_show_a_dicom_file() -> None:
    pytest.importorskip("pydicom")
    curved = traps.dicom(RAMP, VOILUTFunction="SIGMOID", WindowCenter=2000, WindowWidth=1000)
    expected = np.rint(255 / (1 + np.exp(-4 * (RAMP - 2000.0) / 1000)))
    np.testing.assert_array_equal(pixels_of(curved, "a.dcm")[0], expected)
    # All that 8 bits can hold is shown, signed or rescaled.
    signed = (GREY[0].astype(int) - 128).astype(np.int8)
    eight: dict[str, Any] = {"BitsStored": 8, "HighBit": 7}
    np.testing.assert_array_equal(pixels_of(traps.dicom(signed, **eight), "a.dcm"), GREY)
    half = traps.dicom(GREY[0] // 2, **SCALE)
    np.testing.assert_array_equal(pixels_of(half, "a.dcm"), GREY // 2)
