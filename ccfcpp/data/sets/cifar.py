"""CIFAR-10 and CIFAR-100: batches of images in pickles, read so that no code can run."""

import io
import math
import pickle
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays
from ccfcpp.data.sets.published import BinarySet, Contents, split_mask

_T = TypeVar("_T")

_SHAPE = (3, 32, 32)
_MOST_CLASSES = 100


def _decode(contents: Contents, place: Path, labels_key: str, names_key: str) -> Arrays:
    """Decode CIFAR's files (training batches, test batch, class names) to arrays by name."""
    *batches, meta = contents
    images, labels = zip(
        *(read_cifar_batch(contents[batch], labels_key, f"{place}: {batch}") for batch in batches),
        strict=True,
    )
    names = read_cifar_classes(contents[meta], names_key, f"{place}: {meta}")
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels),
        "classes": np.array(names),
        "test": split_mask(sum(map(len, images[:-1])), len(images[-1])),
    }


CIFAR10 = BinarySet(
    "cifar10",
    60_000,
    10,
    _SHAPE,
    original="CIFAR10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    members=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    decode=partial(_decode, labels_key="labels", names_key="label_names"),
)
CIFAR100 = BinarySet(
    "cifar100",
    60_000,
    100,
    _SHAPE,
    original="CIFAR100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    members=("train", "test", "meta"),
    decode=partial(_decode, labels_key="fine_labels", names_key="fine_label_names"),
)


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
    if not all(label in range(_MOST_CLASSES) for label in labels):
        raise UsageError(f"{where} has a label that is no class: get it again")
    return images, np.array(labels, dtype=np.int64)


def read_cifar_classes(content: bytes, key: str, where: str) -> tuple[str, ...]:
    """Read the class names from the entry `key` of CIFAR's meta file."""
    names = _restricted_unpickle(content, where).get(key)
    if not _is_list_of(names, str):
        raise UsageError(f"{where} has no class names '{key}': get it again")
    return tuple(names)


def _is_list_of(value: object, kind: type[_T]) -> TypeGuard[list[_T]]:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _cifar_images(pickled: object, where: str) -> NDArray[np.uint8]:
    width = math.prod(_SHAPE)
    if (
        not isinstance(pickled, _PickledArray)
        or not pickled.is_uint8()
        or len(pickled.content) % width
        or pickled.shape != (len(pickled.content) // width, width)
    ):
        raise UsageError(f"{where} has no 'data' of uint8 (samples, {width}): get it again")
    pixels = np.frombuffer(pickled.content, np.uint8)
    rows = pixels.reshape((-1, width), order="F" if pickled.is_fortran else "C")
    return rows.reshape(-1, *_SHAPE)


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
        """Ignore the pickled state, which does not matter for a dtype of bytes."""


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
    """Encode as Latin-1: stand-in for `_codecs.encode`, with which Python 3 pickles bytes."""
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
