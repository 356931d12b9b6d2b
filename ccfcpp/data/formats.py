"""Readers of the byte formats in which data sets were published.

They take the content of a file and its name for error messages, and every fault in the content is a
`UsageError`. Nothing that is read can run code.
"""

import gzip
import io
import math
import pickle
import zlib
from typing import ClassVar, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError

_T = TypeVar("_T")

_GZIP_MAGIC = b"\x1f\x8b"
_IDX_UINT8 = 0x08
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_MOST_CLASSES = 100
_STL10_SHAPE = (3, 96, 96)


def read_idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """Read an IDX array of unsigned bytes (MNIST's format), gzipped or plain.

    Returns:
        A read-only uint8 array of the shape that the file states.
    """
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{where} is not a whole gzip file ({error}): get it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise UsageError(f"{where} is not an IDX file of unsigned bytes: get it again")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise UsageError(
            f"{where} has {len(content)} bytes, but its header states "
            f"{start + math.prod(shape)}: get it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar_batch(
    content: bytes, label_key: str, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one python batch of CIFAR-10 (`label_key` "labels") or CIFAR-100 ("fine_labels").

    Returns:
        Images, uint8 `(samples, 3, 32, 32)`, and labels, int64 `(samples,)`.
    """
    batch = _restricted_unpickle(content, where)
    images = _cifar_images(batch.get("data"), where)
    labels = batch.get(label_key)
    if not _is_list_of(labels, int) or len(labels) != len(images):
        raise UsageError(f"{where} has no '{label_key}' for each image: get it again")
    if not all(label in range(_CIFAR_MOST_CLASSES) for label in labels):
        raise UsageError(f"{where} has a label that is no class: get it again")
    return images, np.array(labels, dtype=np.int64)


def read_cifar_classes(content: bytes, key: str, where: str) -> tuple[str, ...]:
    """Read the class names from the entry `key` of CIFAR's meta file."""
    names = _restricted_unpickle(content, where).get(key)
    if not _is_list_of(names, str):
        raise UsageError(f"{where} has no class names '{key}': get it again")
    return tuple(names)


def read_stl10_images(content: bytes, where: str) -> NDArray[np.uint8]:
    """Read the images of an STL-10 `_X.bin` file: planes of 96×96, column after column.

    Returns:
        A read-only uint8 array `(samples, 3, 96, 96)`.
    """
    if len(content) % math.prod(_STL10_SHAPE):
        raise UsageError(f"{where} does not hold whole images of 96x96: get it again")
    return np.frombuffer(content, np.uint8).reshape(-1, *_STL10_SHAPE).swapaxes(2, 3)


def read_stl10_labels(content: bytes, where: str) -> NDArray[np.int64]:
    """Read an STL-10 `_y.bin` file, which counts classes from 1, as int64 labels from 0."""
    labels = np.frombuffer(content, np.uint8).astype(np.int64) - 1
    if (labels < 0).any():
        raise UsageError(f"{where} has a label 0, but STL-10 counts from 1: get it again")
    return labels


def _is_list_of(value: object, kind: type[_T]) -> TypeGuard[list[_T]]:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _cifar_images(pickled: object, where: str) -> NDArray[np.uint8]:
    width = math.prod(_CIFAR_SHAPE)
    if (
        not isinstance(pickled, _PickledArray)
        or not pickled.is_uint8()
        or len(pickled.content) % width
        or pickled.shape != (len(pickled.content) // width, width)
    ):
        raise UsageError(f"{where} has no 'data' of uint8 (samples, {width}): get it again")
    pixels = np.frombuffer(pickled.content, np.uint8)
    rows = pixels.reshape((-1, width), order="F" if pickled.is_fortran else "C")
    return rows.reshape(-1, *_CIFAR_SHAPE)


def _restricted_unpickle(content: bytes, where: str) -> dict[object, object]:
    try:
        # latin1 keeps the bytes of the strings, arrays among them, that Python 2 pickled.
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a broken pickle can raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{where} cannot be read as a CIFAR pickle: {reason}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where} holds no CIFAR batch: get it again")
    return value


class _PickledDtype:
    """Stand-in for a pickled numpy dtype."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore the state: it says nothing more of a byte."""


class _PickledArray:
    """Stand-in for a pickled numpy array, since numpy trusts the sizes and flags in a pickle."""

    shape: object = None
    content = b""
    is_fortran: object = False
    _dtype: object = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[object, object, object, object, str | bytes]) -> None:
        _, self.shape, self._dtype, self.is_fortran, content = state
        self.content = content.encode("latin1") if isinstance(content, str) else bytes(content)

    def is_uint8(self) -> bool:
        return isinstance(self._dtype, _PickledDtype) and self._dtype.code == "u1"


def _encode_latin1(text: str, _: str) -> bytes:
    """Stand in for `_codecs.encode`, with which Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Unpickles dictionaries, lists, strings, numbers and stand-ins for arrays, nothing else."""

    _stand_ins: ClassVar[dict[tuple[str, str], object]] = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): "an argument of _reconstruct, never called",
        ("numpy", "dtype"): _PickledDtype,
        ("_codecs", "encode"): _encode_latin1,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return self._stand_ins[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused") from None
