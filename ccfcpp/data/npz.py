"""Images from numpy arrays, and from an `.npz` file of them.

Keys: `images` (or `x`) and optionally `labels` (or `y`), `clients` and `test`; the longer name
wins, others are ignored.
"""

import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical, describe_spellings, display_names
from ccfcpp.data.images import ImageData

Array = NDArray[np.generic]
_KEYS = (("images", "x"), ("labels", "y"), ("test",), ("clients",))
_CHANNELS = (1, 3)
NOTHING = frozenset(("", "na", "n/a", "nan", "null", "none"))
"""Contents, in lower case, of a table cell without a value."""


def read_npz(path: Path) -> ImageData:
    """Read images, and labels if there are any, from an `.npz` file.

    Images are uint8 `(n, h, w)`, `(n, c, h, w)` or `(n, h, w, c)` with c 1 or 3; if both of the
    last two fit, channels come first. Labels are `(n,)` integers or strings; their sorted distinct
    values are the classes. `clients` likewise name the owner of each image. `test` is `(n,)` of
    bool, True for the test images.

    Raises:
        UsageError: If the file is not such an `.npz`; the message says what to change.
    """
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an .npz file: write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels, test, clients = (_find(file, keys) for keys in _KEYS)
            held = ", ".join(sorted(file.files)) or "nothing"
    except ValueError as error:
        raise UsageError(
            f"{path} holds an array of Python objects, or a broken one ({error}): "
            "save plain integers or strings"
        ) from error
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} cannot be read ({error}): write it again") from error
    if images is None:
        raise UsageError(f"{path} has no array 'images' (or 'x'): it holds {held}")
    return from_arrays(path.stem, images, labels, str(path), test, clients)


def from_arrays(
    name: str,
    images: Array,
    labels: Array | None,
    where: str,
    test: Array | None = None,
    clients: Array | None = None,
) -> ImageData:
    """Make a data set from arrays with the dtypes and shapes that `read_npz` takes.

    Raises:
        UsageError: If the arrays do not fit; the message names their origin, `where`.
    """
    pixels = _channels_first(_checked_dtype(images, where), where)
    indices, classes, notes = index_names(labels, len(pixels), where, "labels")
    mask = None if test is None else _test_mask(test, len(pixels), where)
    owners, owner_names, more = index_names(clients, len(pixels), where, "clients")
    facts = indices, classes, owners, owner_names
    return ImageData(name, torch.from_numpy(pixels), *facts, test=mask, notes=(*notes, *more))


def _find(file: Mapping[str, Array], keys: tuple[str, ...]) -> Array | None:
    # A member that is not an array is read as bytes, whose dtype is refused later.
    return next((np.asarray(file[key]) for key in keys if key in file), None)


def _checked_dtype(images: Array, where: str) -> NDArray[np.uint8]:
    if images.dtype == np.uint8:
        return images.view(np.uint8)
    mend = {
        "f": "scale them to 0..255 and store images.round().astype('uint8')",
        "b": "store images.astype('uint8') * 255",
    }.get(images.dtype.kind, "scale them to 0..255 and store images.astype('uint8')")
    raise UsageError(f"{where}: images are {images.dtype}, but must be uint8: {mend}")


def _channels_first(images: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in _CHANNELS and images.shape[3] in _CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in _CHANNELS or images.size == 0:
        raise UsageError(
            f"{where}: images have shape {images.shape}, but must have (n, h, w), (n, h, w, c) or "
            "(n, c, h, w) with c 1 or 3, and none of them 0"
        )
    return np.ascontiguousarray(images)


def _test_mask(test: Array, samples: int, where: str) -> torch.Tensor:
    if test.dtype != np.bool_ or test.shape != (samples,):
        raise UsageError(
            f"{where}: test is {test.dtype} {test.shape}, but must be bool ({samples},), one for "
            "each image: store test.astype('bool')"
        )
    return torch.from_numpy(test)


def index_names(
    names: Array | None, samples: int, where: str, what: str, unit: str = "image"
) -> tuple[torch.Tensor | None, tuple[str, ...], list[str]]:
    """Encode each sample's name, an integer or a string, as an index into the distinct names.

    Names with the same canonical form (see ``name_matching``) count as one, spelt as it first
    occurs. The distinct names are sorted, by value if all are numbers.

    Returns:
        int64 indices of shape `(samples,)`, the distinct names, and warnings of similar spellings;
        None, () and [] if `names` is None.

    Raises:
        UsageError: If the names do not fit; the message says `what` they are, and from `where`.
    """
    if names is None:
        return None, (), []
    check_names(names, samples, where, what, unit)
    if names.dtype.kind == "S":
        names = as_strings(names)
    distinct, first, indices = np.unique(names, return_index=True, return_inverse=True)
    written = [str(name) for name in distinct]
    shown = display_names(written[place] for place in np.argsort(first))
    known = sorted(shown)
    with suppress(InvalidOperation):
        known = sorted(known, key=Decimal)
    place = {name: number for number, name in enumerate(known)}
    places = torch.tensor([place[canonical(name)] for name in written], dtype=torch.int64)
    notes = describe_spellings((written[place] for place in np.argsort(first)), what)
    if gaps := [name for name in known if name.lower() in NOTHING]:
        notes.append(f"{what} {gaps[0]!r} are taken for a name, and not for missing ones")
    return places[torch.from_numpy(indices)], tuple(shown[name] for name in known), notes


def check_names(names: Array, samples: int, where: str, what: str, unit: str) -> None:
    """Check that there is a name, an integer or a string, for each sample, called ``unit``.

    Raises:
        UsageError: There is not; the message says `what` they are, and from `where`.
    """
    if names.dtype.kind not in "iuUS":
        raise UsageError(
            f"{where}: {what} are {names.dtype}, but must be integers or strings: "
            f"store {what}.astype('int64')"
        )
    if names.shape != (samples,):
        raise UsageError(
            f"{where}: {what} have shape {names.shape}, but must have ({samples},), "
            f"one for each {unit}"
        )


def as_strings(names: Array) -> Array:
    """Convert an array of names, bytes or integers, to strings; leave other dtypes unchanged."""
    if names.dtype.kind == "S":
        return np.char.decode(names.view(np.ndarray), "utf-8", "replace")
    return names.astype(np.str_) if names.dtype.kind in "iu" else names
