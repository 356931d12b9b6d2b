"""A folder of files on which readers of images stumble, each with what must come of it."""

import io
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

Pixels = NDArray[np.uint8]
HEIGHT, WIDTH = 24, 32

_RAMP = np.rint(np.linspace(0, 255, HEIGHT * WIDTH)).astype(np.uint8).reshape(HEIGHT, WIDTH)
GREY: Pixels = _RAMP[None]
"""From 0 to 255, unlike its turned and mirrored images, of shape (1, height, width)."""
COLOUR: Pixels = np.stack([_RAMP, 255 - _RAMP, _RAMP[:, ::-1]])


@dataclass(frozen=True)
class Trap:
    """A file.

    Attributes:
        name: Its path.
        content: Its bytes.
        pixels: What must be read, uint8 of shape (channels, height, width); None where it must be
            left out.
        reason: Part of why it is left out.
        tolerance: The largest difference of a value, for formats that lose some.
        counts: Whether it counts as an image that could not be read.
    """

    name: str
    content: bytes
    pixels: Pixels | None = None
    reason: str = ""
    tolerance: int = 0
    counts: bool = True


def write(folder: Path, traps: list[Trap]) -> None:
    """Write files into a folder."""
    for trap in traps:
        path = folder / trap.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(trap.content)


def encoded(pixels: NDArray[Any] | Image.Image, form: str, **options: Any) -> bytes:
    """Encode (height, width) or (height, width, channels), or an image of PIL."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def last(pixels: Pixels) -> Pixels:
    """Move the channels behind."""
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def stored(pixels: Pixels, orientation: int) -> Pixels:
    """How an upright image lies in a file whose EXIF has an orientation.

    By the table of the EXIF standard: at which side of the scene row 0 and column 0 are.
    """
    turned = pixels.swapaxes(0, 1)
    return {
        1: pixels,  # row 0 at the top, column 0 at the left
        2: pixels[:, ::-1],  # top, right
        3: pixels[::-1, ::-1],  # bottom, right
        4: pixels[::-1],  # bottom, left
        5: turned,  # left, top
        6: turned[::-1],  # right, top
        7: turned[::-1, ::-1],  # right, bottom
        8: turned[:, ::-1],  # left, bottom
    }[orientation]


def png_of_16_bits(values: NDArray[np.uint16], colour_type: int) -> bytes:
    """Encode (height, width, channels) of 16 bits, of which PIL writes no colours."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def tiff(values: NDArray[Any], order: str = "<", deflated: bool = False, **tags: int) -> bytes:
    """Encode (height, width) or (height, width, channels) of any type, in an order of bytes.

    Args:
        values: The values.
        order: `<` or `>`, little or big end first.
        deflated: Whether they are compressed.
        tags: `photometric`, `extra` (what a fourth channel is) and `planes`, 2 if channels lie
            apart.
    """
    height, width = values.shape[:2]
    channels = values.shape[2] if values.ndim == 3 else 1
    apart = tags.get("planes") == 2
    parts = np.moveaxis(values, -1, 0) if apart else values[None]
    strips = [part.astype(part.dtype.newbyteorder(order)).tobytes() for part in parts]
    strips = [zlib.compress(strip) if deflated else strip for strip in strips]
    sizes = [len(strip) for strip in strips]
    fields: dict[int, list[int]] = {
        256: [width],
        257: [height],
        258: [8 * values.dtype.itemsize] * channels,
        259: [8 if deflated else 1],
        262: [tags.get("photometric", 2 if channels > 2 else 1)],
        273: [8 + sum(sizes[:part]) for part in range(len(sizes))],
        277: [channels],
        278: [height],
        279: sizes,
        284: [2 if apart else 1],
        **({338: [tags["extra"]]} if "extra" in tags else {}),
        339: [{"u": 1, "i": 2, "f": 3}[values.dtype.kind]] * channels,
    }
    start, entries, longer = 8 + sum(sizes), b"", b""
    for tag, numbers in fields.items():
        packed = struct.pack(f"{order}{len(numbers)}I", *numbers)
        if len(numbers) > 1:
            packed, longer = struct.pack(f"{order}I", start + len(longer)), longer + packed
        entries += struct.pack(f"{order}HHI", tag, 4, len(numbers)) + packed
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start + len(longer))
    count = struct.pack(f"{order}H", len(fields))
    return head + b"".join(strips) + longer + count + entries + bytes(4)


def pnm(values: NDArray[np.uint16], most: int, plain: bool = False) -> bytes:
    """Encode (height, width) or (height, width, 3) as PGM or PPM, up to a largest value."""
    height, width = values.shape[:2]
    kind = (2 if plain else 5) + values.ndim - 2
    head = f"P{kind}\n# {width} by {height}\n{width} {height}\n{most}\n".encode()
    if plain:
        rows = (" ".join(map(str, row)) for row in values.reshape(height, -1).tolist())
        return head + b"# values\n" + "\n".join(rows).encode()
    return head + values.astype(">u2" if most > 255 else "u1").tobytes()


def dicom(pixels: NDArray[Any], preamble: bool = True, **elements: Any) -> bytes:
    """Encode (height, width), (frames, height, width) or RGB as DICOM."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    samples = 3 if pixels.shape[-1] == 3 else 1
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID
    dataset.Rows, dataset.Columns = pixels.shape[:2] if samples == 3 else pixels.shape[-2:]
    dataset.SamplesPerPixel = samples
    if samples == 3:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = "RGB" if samples == 3 else "MONOCHROME2"
    dataset.BitsAllocated = 8 * pixels.dtype.itemsize
    dataset.BitsStored = 8 if pixels.dtype == np.uint8 else 12
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    if samples == 1 and pixels.ndim == 3:
        dataset.NumberOfFrames = len(pixels)
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.tobytes()
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    content = buffer.getvalue()
    return content if preamble else content[132:]


def scaled(pixels: Pixels, low: int, high: int, kind: type = np.uint16) -> NDArray[Any]:
    """Stretch 0 to 255 to another range of integers."""
    return np.rint(low + pixels.astype(float) * ((high - low) / 255)).astype(kind)


def orientations() -> Iterator[Trap]:
    """The eight of EXIF, in the formats that have it."""
    lossless: dict[str, tuple[str, dict[str, Any], int]] = {
        "jpg": ("JPEG", {"quality": 100, "subsampling": 0}, 6),
        "tif": ("TIFF", {}, 0),
        "png": ("PNG", {}, 0),
        "webp": ("WEBP", {"lossless": True}, 0),
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        for suffix, (form, options, tolerance) in lossless.items():
            content = encoded(stored(last(COLOUR), orientation), form, exif=exif, **options)
            yield Trap(f"exif {orientation}.{suffix}", content, COLOUR, tolerance=tolerance)


def depths() -> Iterator[Trap]:
    """More than 8 bits, in containers of 16 and 32."""
    grey = GREY[0]
    for bits, (low, high) in {10: (0, 1023), 12: (90, 1000), 16: (0, 65535)}.items():
        yield Trap(f"{bits} bits.png", encoded(scaled(grey, low, high), "PNG"), GREY)
        yield Trap(f"{bits} bits.tif", encoded(scaled(grey, low, high), "TIFF"), GREY)
    yield Trap("signed.tif", encoded(scaled(grey, -1000, 3000, np.int32), "TIFF"), GREY)
    yield Trap("floats.tif", encoded((grey / 255).astype(np.float32), "TIFF"), GREY)
    yield Trap("white is 0.tif", tiff(65535 - scaled(grey, 0, 65535), photometric=0), GREY)
    colour = scaled(last(COLOUR), 0, 4095)
    alpha = np.full((HEIGHT, WIDTH, 1), 9, np.uint16)
    yield Trap("12 bits in colour.png", png_of_16_bits(colour, 2), COLOUR)
    yield Trap("12 bits with alpha.png", png_of_16_bits(np.dstack([colour, alpha]), 6), COLOUR)
    both = np.dstack([scaled(last(GREY), 0, 4095), alpha])
    yield Trap("12 bits, grey with alpha.png", png_of_16_bits(both, 4), GREY)
    for deflated in (False, True):
        content = tiff(colour, deflated=deflated)
        yield Trap(f"12 bits in colour, {deflated}.tif", content, COLOUR)


def modes() -> Iterator[Trap]:
    """Colours in other forms, and files with several images."""
    colour, grey = Image.fromarray(last(COLOUR)), Image.fromarray(GREY[0])
    yield Trap(
        "cmyk.jpg", encoded(colour.convert("CMYK"), "JPEG", quality=100), COLOUR, tolerance=9
    )
    yield Trap("cmyk.tif", encoded(colour.convert("CMYK"), "TIFF"), COLOUR, tolerance=1)
    srgb, space = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    to_lab = ImageCms.buildTransform(srgb, space, "RGB", "LAB")
    lab = ImageCms.applyTransform(grey.convert("RGB"), to_lab)
    assert lab is not None
    yield Trap("lab.tif", encoded(lab, "TIFF"), np.repeat(GREY, 3, 0), tolerance=3)
    transparent = colour.copy()
    transparent.putalpha(0)
    yield Trap("rgba.png", encoded(transparent, "PNG"), COLOUR)
    yield Trap("la.png", encoded(grey.convert("LA"), "PNG"), GREY)
    palette = colour.quantize(16)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    yield Trap("palette.png", encoded(palette, "PNG"), expected)
    others = [Image.new("P", palette.size), Image.new("P", palette.size, 1)]
    moving = encoded(palette, "GIF", save_all=True, append_images=others)
    yield Trap("moving.gif", moving, expected)
    pages = encoded(colour, "TIFF", save_all=True, append_images=[Image.new("RGB", (5, 5))])
    yield Trap("pages.tif", pages, COLOUR)
    yield Trap("a.jp2", encoded(colour, "JPEG2000"), COLOUR)
    yield Trap(
        "bits.png",
        encoded(grey.convert("1"), "PNG"),
        np.asarray(grey.convert("1").convert("L"))[None],
    )


def names() -> Iterator[Trap]:
    """Odd names, and names that say nothing of the kind."""
    png = encoded(last(COLOUR), "PNG")
    for name in ("ünï 日本.png", "a, b;c.png", "a\nb.png", "=1+1.png", "deep/er/still/a.png"):
        yield Trap(name, png, COLOUR)
    yield Trap(os.fsdecode(b"\xff\xfe.png"), png, COLOUR)
    yield Trap("IMG_0001", png, COLOUR)
    yield Trap("no image by its name.dat", png, COLOUR)
    yield Trap("a PNG.jpg", png, COLOUR)


def dicoms() -> Iterator[Trap]:
    """DICOM files; pydicom must be there."""
    grey = GREY[0]
    x_ray = scaled(grey, 40, 1000)
    inverted: dict[str, Any] = {"PhotometricInterpretation": "MONOCHROME1"}
    rescaled: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": -1024}
    yield Trap("12 bits.dcm", dicom(x_ray), GREY)
    yield Trap("12 bits in no suffix", dicom(x_ray), GREY)
    yield Trap("without preamble.dcm", dicom(x_ray, preamble=False), GREY)
    yield Trap("monochrome 1.dcm", dicom(scaled(255 - grey, 0, 4095), **inverted), GREY)
    yield Trap("rescaled.dcm", dicom(x_ray, **rescaled), GREY)
    # Of the values from -944 to 976 those from -144 to 656 are shown.
    window: dict[str, Any] = {"WindowCenter": ["256.5", "1"], "WindowWidth": ["801", "1"]}
    shown = (2.0 * x_ray - 1024 + 144).clip(0, 800) * 255 / 800
    expected = np.rint(shown).astype(np.uint8)[None]
    yield Trap("own window.dcm", dicom(x_ray, **rescaled, **window), expected)
    yield Trap("frames.dcm", dicom(np.stack([x_ray, np.zeros_like(x_ray)])), GREY)
    yield Trap("8 bits.dcm", dicom((grey // 2 + 20).astype(np.uint8)), (GREY // 2 + 20))
    dark = dicom(255 - grey // 2, **inverted)
    yield Trap("8 bits, monochrome 1.dcm", dark, GREY // 2)
    yield Trap("colour.dcm", dicom(last(COLOUR)), COLOUR)


def heics() -> Iterator[Trap]:
    """HEIC files; pillow-heif must be there."""
    import pillow_heif

    for orientation in (1, 6):
        image = Image.fromarray(stored(last(COLOUR), orientation))
        exif = Image.Exif()
        exif[274] = orientation
        buffer = io.BytesIO()
        pillow_heif.from_pillow(image).save(buffer, quality=-1, chroma=444, exif=exif.tobytes())
        yield Trap(f"{orientation}.heic", buffer.getvalue(), COLOUR, tolerance=8)
    yield Trap("heic.jpg", buffer.getvalue(), COLOUR, tolerance=8)


def broken() -> Iterator[Trap]:
    """What cannot be read, or is no image."""
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    for form in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"):
        whole = encoded(noise, form)
        yield Trap(f"cut.{form.lower()}", whole[: len(whole) // 2])
    huge = bytearray(png_of_16_bits(np.zeros((1, 1, 1), np.uint16), 0))
    huge[16:24] = struct.pack(">II", 60_000, 60_000)
    huge[29:33] = struct.pack(">I", zlib.crc32(bytes(huge[12:29])))
    yield Trap(
        "huge.png", bytes(huge), reason="it has 60000x60000 pixels, more than data.max_pixels"
    )
    nothing = np.full((4, 4), np.nan, np.float32)
    yield Trap("nan.tif", encoded(nothing, "TIFF"), reason="some of its values are NaN or infinite")
    yield Trap("empty.jpg", b"", reason="it is empty")
    yield Trap("text.png", b"no image", reason="it is no image")
    yield Trap("text.dcm", b"no image at all")
    raw = encoded(noise, "TIFF")
    yield Trap("camera.dng", raw, reason=".dng is not read: convert it")
    yield Trap("a.avif", b"\0\0\0 ftypavif", reason=".avif is not read: convert it")
    yield Trap("notes.txt", b"no image", reason="it is no image", counts=False)
    yield Trap("BM", b"BM is the beginning of a text", reason="it is no image", counts=False)
