"""Decoding of many image files to one array; unreadable ones are left out and listed."""

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.config import DataConfig
from ccfcpp.core.data_kinds import IMAGE_SUFFIXES
from ccfcpp.core.errors import KeyValue, Piece, UsageError
from ccfcpp.core.units import format_count, list_first, printable_name
from ccfcpp.data.decoding import UNREAD, Header, UnreadableError, open_image
from ccfcpp.data.image_size import LARGEST_KEPT, Shape, Sizes, common_shape

if TYPE_CHECKING:
    from ccfcpp.data.encoders.encoder import Encoder
    from ccfcpp.data.file_tree import Tree
    from ccfcpp.data.images import Samples

_MOST_NAMED, _MOST_SAID = 20, 5
"""Numbers of files that an error message names, and that a note names."""


@dataclass(frozen=True)
class FileFacts:
    """Record of an examined file: its name, its image header, and why it is left out.

    Attributes:
        name: The file's path below the folder or in the archive, with slashes.
        header: Properties of the image; None if they cannot be read.
        reason: Why the file is left out; empty if it is read.
    """

    name: str
    header: Header | None = None
    reason: str = ""

    @property
    def is_image(self) -> bool:
        """Whether the file's name or content is that of an image."""
        return self.header is not None or self.name.lower().endswith((*IMAGE_SUFFIXES, *UNREAD))


@dataclass(frozen=True)
class Reading:
    """Record of how image files were read: all files, image sizes, and files left out.

    Attributes:
        files: All files that were examined, in order.
        sizes: The original sizes of the images.
        empty: Names of folders without an image.
        hidden: Names of hidden files and folders, which are ignored.
    """

    files: tuple[FileFacts, ...]
    sizes: Sizes
    empty: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def skipped(self) -> list[FileFacts]:
        """The files that are left out."""
        return [file for file in self.files if file.reason]

    @property
    def rows(self) -> list[dict[str, object]]:
        """The files that are left out, as rows of a table with the columns `file` and `reason`."""
        return [{"file": file.name, "reason": file.reason} for file in self.skipped]


Read = tuple[NDArray[Any], list[FileFacts]]
"""Images, uint8 `(read files, channels, height, width)`, or vectors of an encoder, float32 `(read
files, d)`; and the facts on each file, read or not."""


def read_files(files: Sequence[Path], tree: "Tree", how: DataConfig, shape: Shape | None) -> Read:
    """Decode image files to one array; leave out those that cannot be read.

    Small images, and all if a size is given, are decoded in a first pass. Others, which could fill
    the memory, are opened again once their common size is known.

    Args:
        files: The files, as paths in ``tree``.
        tree: The folder or archive that contains them.
        how: The settings ``data``: size, window, and limits.
        shape: Channels, height and width of the result; overrides ``how.image_size``.

    Returns:
        uint8 of shape `(readable files, channels, height, width)`, and a record of each file.
    """
    # Imported here, as listing the published data sets does not need them.
    import torch

    from ccfcpp.data.images import fit

    def resize(pixels: NDArray[np.uint8], to: Shape) -> NDArray[np.uint8]:
        return fit(torch.from_numpy(pixels.copy())[None], to)[0].numpy()

    facts: list[FileFacts] = []
    decoded: dict[int, NDArray[np.uint8]] = {}
    for file in files:
        header = None
        try:
            with open_image(tree.disk(file), how.max_pixels) as image:
                header = image.header
                if shape or how.image_size:
                    to = shape or common_shape([sizes_of([FileFacts("", header)])], how.image_size)
                    decoded[len(facts)] = resize(image.decode(how.window), to)
                elif max(header.height, header.width) <= LARGEST_KEPT:
                    decoded[len(facts)] = image.decode(how.window)
            facts.append(FileFacts(tree.name(file), header))
        except _LEFT_OUT as error:
            facts.append(FileFacts(tree.name(file), header, _reason(error)))
    while kept := [row for row, file in enumerate(facts) if not file.reason]:
        chosen_shape = _choose_shape(facts, how, shape)
        images = np.empty((len(kept), *chosen_shape), np.uint8)
        for row, number in enumerate(kept):
            try:
                # Removed one by one, so that the memory holds no image twice.
                if (pixels := decoded.pop(number, None)) is None:
                    with open_image(tree.disk(files[number]), how.max_pixels) as image:
                        pixels = image.decode(how.window)
                images[row] = resize(pixels, chosen_shape)
            except _LEFT_OUT as error:
                facts[number] = replace(facts[number], reason=_reason(error))
        read = np.array([not facts[number].reason for number in kept])
        # Files that turned out to be damaged must not influence the shape: else choose it again.
        if read.all() or (read.any() and _choose_shape(facts, how, shape) == chosen_shape):
            return images[read], facts
    return np.empty((0, 1, 1, 1), np.uint8), facts


_LEFT_OUT = UnreadableError, UsageError, MemoryError


def _reason(error: Exception) -> str:
    return str(error) or "it needs too much memory"


def _choose_shape(facts: Sequence[FileFacts], how: DataConfig, shape: Shape | None) -> Shape:
    return shape or common_shape([sizes_of(facts)], how.image_size)


def embed_files(files: Sequence[Path], tree: "Tree", how: DataConfig, encoder: "Encoder") -> Read:
    """Embed image files of any size; return vectors of readable ones, and a record of each."""
    # Vectors are cached by a file's content and how its values are mapped.
    prefix = json.dumps(how.window and tuple(how.window)).encode()
    facts: list[FileFacts] = []
    keys: dict[int, str] = {}
    for file in files:
        try:
            with open_image(path := tree.disk(file), how.max_pixels) as image:
                key = hashlib.sha256(prefix + path.read_bytes()).hexdigest()
            keys[len(facts)] = key
            facts.append(FileFacts(tree.name(file), image.header))
        except _LEFT_OUT as error:
            facts.append(FileFacts(tree.name(file), reason=_reason(error)))
    numbers = [*keys]

    def pixels(row: int) -> NDArray[np.uint8]:
        with open_image(tree.disk(files[numbers[row]]), how.max_pixels) as image:
            return image.decode(how.window)

    vectors, reasons = encoder.embed([*keys.values()], pixels)
    for row, reason in reasons.items():
        facts[numbers[row]] = replace(facts[numbers[row]], reason=reason)
    return vectors, facts


def read_whole(files: Sequence[Path], tree: "Tree", shape: Shape) -> NDArray[np.uint8]:
    """Decode the images of a published data set, which must all exist and have one size.

    Returns:
        uint8 `(files, channels, height, width)`; grey images fill all channels.

    Raises:
        UsageError: An image is damaged, or has another height or width.
    """
    images = np.empty((len(files), *shape), np.uint8)
    for row, file in enumerate(files):
        try:
            with open_image(tree.disk(file)) as image:
                header = image.header
                if (header.height, header.width) != shape[1:]:
                    raise UnreadableError(
                        f"it has {header.width}x{header.height} pixels, not {shape[2]}x{shape[1]}"
                    )
                images[row] = image.decode(None)
        except UnreadableError as error:
            raise UsageError(f"{file} cannot be read ({error}): get it again") from error
    return images


def sizes_of(files: Sequence[FileFacts]) -> Sizes:
    """Return statistics of the sizes of the readable images; there must be at least one."""
    headers = [file.header for file in files if file.header and not file.reason]
    colour = any(header.channels > 1 for header in headers)
    return Sizes.of(((header.height, header.width) for header in headers), colour)


def facts_as_array(files: Sequence[FileFacts]) -> NDArray[np.str_]:
    """Convert records of files to a 0-dimensional array, a JSON string, that can be cached."""
    return np.array(json.dumps([asdict(file) for file in files]))


def facts_from_array(array: NDArray[np.generic]) -> list[FileFacts]:
    """Convert a result of `facts_as_array` back to records of files."""
    return [
        FileFacts(each["name"], each["header"] and Header(**each["header"]), each["reason"])
        for each in json.loads(str(array))
    ]


def check_share(files: Sequence[FileFacts], share: float, where: Path | str) -> None:
    """Refuse data with too many unreadable image files; files that are not images do not count.

    Raises:
        UsageError: More than ``share`` (0 to 1) of the image files, or all, are unreadable.
    """
    images = [file for file in files if file.is_image]
    failed = [file for file in images if file.reason]
    if not images:
        raise UsageError(f"{where} holds no image ({' '.join(IMAGE_SUFFIXES)})")
    # In floating point, 0.29 times 100 is a little less than 29.
    allowed = max(1, math.floor(share * len(images) + 1e-9)) if share else 0
    if len(failed) <= allowed and len(failed) < len(images):
        return
    rule: Sequence[Piece] = [KeyValue("data.skip", share), f" allows {allowed}"]
    if len(failed) == len(images):
        rule = ["none is left"]
    raise UsageError(
        f"{len(failed)} of the {len(images)} images in {where} cannot be read, and ",
        *rule,
        ": mend them, or allow a larger share, such as --skip 5%. They are "
        f"{_list_files(failed, where)}",
    )


def _list_files(files: Sequence[FileFacts], where: Path | str) -> str:
    named = "; ".join(
        f"{printable_name(file.name)} ({file.reason})" for file in files[:_MOST_NAMED]
    )
    if len(files) <= _MOST_NAMED:
        return named
    more = len(files) - _MOST_NAMED
    return f"{named}; and {more} more: ccfcpp inspect {shlex.quote(str(where))} --json lists all"


def describe_reading(data: "Samples", listed: str = "skipped.csv") -> list[str]:
    """Return lines on how a user's files were read: remarks, image size, and files left out.

    Args:
        data: The images, or vectors of images.
        listed: Name of the file that lists the files left out.
    """
    from ccfcpp.data.images import ImageData

    lines, reading = [*data.notes], data.reading
    if isinstance(data, ImageData):
        height, width = data.images.shape[2:]
        originals = [(w, h) for h, w, _ in data.sizes.common]
        if set(originals) != {(width, height)}:
            least, most = min(originals, key=math.prod), max(originals, key=math.prod)
            sizes = "x".join(map(str, least))
            sizes += "" if least == most else f" to {'x'.join(map(str, most))}"
            lines.append(
                f"images of {sizes} pixels become {width}x{height}; data.image_size sets another "
                "size"
            )
    if reading is not None and reading.skipped:
        named = list_first([printable_name(file.name) for file in reading.skipped], _MOST_SAID)
        lines.append(
            f"{format_count(len(reading.skipped), 'file')} left out, with reasons in {listed}: "
            f"{named}"
        )
    if reading is not None and reading.hidden:
        named = list_first([printable_name(name) for name in reading.hidden], _MOST_SAID)
        lines.append(f"not looked at, as hidden: {named}")
    if reading is not None and reading.empty:
        lines.append(f"no image is in {', '.join(map(printable_name, reading.empty))}")
    return lines
