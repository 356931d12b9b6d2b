"""Many image files as one array; what cannot be read is left out, up to a share, and listed."""

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import IMAGE_SUFFIXES
from ccfcpp.core.units import counted, first_of, shown
from ccfcpp.data.bit_depth import Window
from ccfcpp.data.decoding import (
    MOST_PIXELS,
    UNREAD,
    Header,
    Source,
    UnreadableError,
    extras,
    read_header,
    read_pixels,
)
from ccfcpp.data.sizes import Shape, Sizes, settled

if TYPE_CHECKING:
    from ccfcpp.data.encoders.encoder import Encoder
    from ccfcpp.data.images import Samples

SKIP = 0.01
"""Share of the files that may be unreadable, where the user gives no other one. An image that a
copy has cut short is usual among hundreds. More of them mean something else: an extra that is not
installed, another kind of images, a failing disk."""
_MOST_NAMED, _MOST_SAID = 20, 5
"""Files that a refusal names, and those that a note does."""


@dataclass(frozen=True)
class Options:
    """How files are read.

    Attributes:
        image_size: Height and width of all images; None lets them follow from the files.
        shape: Channels, height and width of all images, over `image_size`; None likewise.
        window: The values that become 0 and 255, in images of more than 8 bits.
        max_pixels: The most pixels of a file's image.
        skip: Share of the files that may be unreadable; above 0 it is one file at least.
        encoder: Makes vectors of images, of any size; None keeps the images.
    """

    image_size: int | None = None
    shape: Shape | None = None
    window: Window | None = None
    max_pixels: int = MOST_PIXELS
    skip: float = SKIP
    encoder: "Encoder | None" = None

    @property
    def key(self) -> str:
        """Everything on which the arrays of some files depend, as text."""
        window = self.window and tuple(self.window)
        return json.dumps([self.image_size, self.shape, window, self.max_pixels, extras()])

    def shape_of(self, sizes: Sizes) -> Shape:
        """Return the shape in which images of these sizes meet."""
        return self.shape or settled([sizes], self.image_size)


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file.

    Attributes:
        name: Its path below the folder or in the archive, with slashes.
        header: What it says of its image; None where it cannot be told.
        reason: Why it is left out; empty where it is read.
    """

    name: str
    header: Header | None = None
    reason: str = ""

    @property
    def is_image(self) -> bool:
        """Whether its name or its content is that of an image."""
        return self.header is not None or self.name.lower().endswith((*IMAGE_SUFFIXES, *UNREAD))


@dataclass(frozen=True)
class Reading:
    """How files became images.

    Attributes:
        files: All files that were looked at, in order.
        sizes: The sizes of the images, as they were.
        empty: Names of folders without an image.
        hidden: Names of files and folders that are not looked at, as they are hidden.
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
        """The files that are left out, as rows of a table."""
        return [{"file": file.name, "reason": file.reason} for file in self.skipped]


class Read(NamedTuple):
    """Images, and the files of which they are made.

    Attributes:
        images: uint8 `(files that are read, channels, height, width)`; of an encoder float32
            `(files that are read, d)`.
        files: What is known of each file that should be read.
    """

    images: NDArray[Any]
    files: list[FileFacts]


def read_files(files: Sequence[Path], names: Sequence[str], source: Source, how: Options) -> Read:
    """Decode images to one array, or embed them; a file that cannot be read is left out.

    Args:
        files: The files.
        names: What each is called.
        source: Returns the file of a path, or its content.
        how: Size, channels and range of values.
    """
    # The published data sets are listed without these.
    import torch

    from ccfcpp.data.images import fit

    found = [_examined(*each, source, how) for each in zip(files, names, strict=True)]
    if how.encoder is not None:
        return _embedded(files, found, source, how, how.encoder)
    while True:
        kept = [i for i, file in enumerate(found) if not file.reason]
        if not kept:
            return Read(np.empty((0, 1, 1, 1), np.uint8), found)
        shape = how.shape_of(sizes_of(found))
        images = np.empty((len(kept), *shape), np.uint8)
        for row, i in enumerate(kept):
            try:
                pixels = read_pixels(files[i], source, how.window)
                images[row] = fit(torch.from_numpy(pixels.copy())[None], shape)[0].numpy()
            except (UnreadableError, UsageError, MemoryError) as error:
                found[i] = replace(found[i], reason=str(error) or "it needs too much memory")
        read = np.array([not found[i].reason for i in kept])
        # A file that is damaged inside has had a say in the shape until it was decoded.
        if read.all() or (read.any() and how.shape_of(sizes_of(found)) == shape):
            return Read(images[read], found)


def _embedded(
    files: Sequence[Path],
    found: list[FileFacts],
    source: Source,
    how: Options,
    encoder: "Encoder",
) -> Read:
    kept = [i for i, file in enumerate(found) if not file.reason]
    keys = [_digest(source(files[i]), how.window) for i in kept]
    rows, reasons = encoder.embedded(
        keys, lambda row: read_pixels(files[kept[row]], source, how.window)
    )
    for row, reason in reasons.items():
        found[kept[row]] = replace(found[kept[row]], reason=reason)
    return Read(rows, found)


def _digest(encoded: Path | BytesIO, window: Window | None) -> str:
    """Return a digest of a file's content and of how its values are mapped."""
    digest = hashlib.sha256(json.dumps(window and tuple(window)).encode())
    digest.update(encoded.read_bytes() if isinstance(encoded, Path) else encoded.getbuffer())
    return digest.hexdigest()


def read_whole(files: Sequence[Path], source: Source, shape: Shape) -> NDArray[np.uint8]:
    """Decode the images of a published data set, which must all be there and have one size.

    Returns:
        uint8 `(files, channels, height, width)`; grey images fill all channels.

    Raises:
        UsageError: One is damaged, or has another height or width.
    """
    images = np.empty((len(files), *shape), np.uint8)
    for row, file in enumerate(files):
        try:
            header = read_header(file, source)
            if (header.height, header.width) != shape[1:]:
                raise UnreadableError(
                    f"it has {header.width}x{header.height} pixels, not {shape[2]}x{shape[1]}"
                )
            images[row] = read_pixels(file, source)
        except UnreadableError as error:
            raise UsageError(f"{file} cannot be read ({error}): get it again") from error
    return images


def _examined(file: Path, name: str, source: Source, how: Options) -> FileFacts:
    try:
        return FileFacts(name, read_header(file, source, how.max_pixels))
    except (UnreadableError, UsageError) as error:
        return FileFacts(name, reason=str(error))


def sizes_of(files: Sequence[FileFacts]) -> Sizes:
    """Return the sizes of the images that are read, one at least."""
    headers = [file.header for file in files if file.header and not file.reason]
    colour = any(header.channels > 1 for header in headers)
    return Sizes.of(((header.height, header.width) for header in headers), colour)


def as_text(files: Sequence[FileFacts]) -> NDArray[np.str_]:
    """Return what is known of files as an array, which a cache can hold."""
    return np.array(json.dumps([asdict(file) for file in files]))


def from_text(text: NDArray[np.generic]) -> list[FileFacts]:
    """Return what `as_text` has written."""
    return [
        FileFacts(each["name"], each["header"] and Header(**each["header"]), each["reason"])
        for each in json.loads(str(text))
    ]


def check_share(files: Sequence[FileFacts], share: float, where: Path | str) -> None:
    """Check how many files of a place cannot be read. Files that are no images do not count.

    Raises:
        UsageError: More than the share, or all of them; the message names them.
    """
    images = [file for file in files if file.is_image]
    failed = [file for file in images if file.reason]
    if not images:
        raise UsageError(f"{where} holds no image ({' '.join(IMAGE_SUFFIXES)})")
    # As decimal numbers: 0.29 times 100 is a little less than 29.
    allowed = max(1, math.floor(share * len(images) + 1e-9)) if share else 0
    if len(failed) <= allowed and len(failed) < len(images):
        return
    rule = f"data.skip = {share:g} allows {allowed}"
    if len(failed) == len(images):
        rule = "none is left"
    raise UsageError(
        f"{len(failed)} of the {len(images)} images in {where} cannot be read, and {rule}: mend "
        f"them, or allow a larger share, such as --skip 5%. They are {_listed(failed, where)}"
    )


def _listed(files: Sequence[FileFacts], where: Path | str) -> str:
    named = "; ".join(f"{shown(file.name)} ({file.reason})" for file in files[:_MOST_NAMED])
    if len(files) <= _MOST_NAMED:
        return named
    more = len(files) - _MOST_NAMED
    return f"{named}; and {more} more: ccfcpp inspect {shlex.quote(str(where))} --json lists all"


def in_words(data: "Samples", listed: str = "skipped.csv") -> list[str]:
    """Say what became of a user's files, a line each: notes, the size, and what was left out.

    Args:
        data: The images, or vectors of images.
        listed: The file in which the files that were left out are listed.
    """
    from ccfcpp.data.images import ImageData

    lines, reading = [*data.notes], data.reading
    if isinstance(data, ImageData):
        height, width = data.images.shape[2:]
        found = [(w, h) for h, w, _ in data.sizes.common]
        if set(found) != {(width, height)}:
            least, most = min(found, key=math.prod), max(found, key=math.prod)
            sizes = "x".join(map(str, least))
            sizes += "" if least == most else f" to {'x'.join(map(str, most))}"
            lines.append(
                f"images of {sizes} pixels become {width}x{height}; data.image_size sets another "
                "size"
            )
    if reading is not None and reading.skipped:
        named = first_of([shown(file.name) for file in reading.skipped], _MOST_SAID)
        lines.append(
            f"{counted(len(reading.skipped), 'file')} left out, with reasons in {listed}: {named}"
        )
    if reading is not None and reading.hidden:
        named = first_of([shown(name) for name in reading.hidden], _MOST_SAID)
        lines.append(f"not looked at, as hidden: {named}")
    if reading is not None and reading.empty:
        lines.append(f"no image is in {', '.join(map(shown, reading.empty))}")
    return lines
