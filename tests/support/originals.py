"""Tiny data sets, written byte for byte in the formats in which the real ones were published."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Images = NDArray[np.uint8]

# Read before the fixture of this folder hides it.
REAL_DATA = Path(
    os.environ.get("CCFCPP_DATA") or Path(__file__).parents[2].parent / "shared" / "data"
)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def random_images(seed: int, *shape: int) -> Images:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: Images) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx_set(folder: Path, images: Images, labels: Images, train: int, *, gz: bool) -> None:
    """Write MNIST's four files: the first `train` samples for training, the rest for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, part in (("train", slice(None, train)), ("t10k", slice(train, None))):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array[part])
            name = f"{split}-{kind}-ubyte"
            if gz:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def python2_pickle(value: Mapping[str, object]) -> bytes:
    """Pickle as Python 2 and its numpy did, which wrote the CIFAR batches (protocol 2)."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: object) -> bytes:
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode()
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, np.ndarray):
        return _python2_array(value)
    assert isinstance(value, Mapping)
    return b"}(" + b"".join(_python2(k) + _python2(v) for k, v in value.items()) + b"u"


def _python2_array(array: Images) -> bytes:
    shape = b"(" + b"".join(_python2(size) for size in array.shape) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01btR"
    dtype = (
        b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    raw = b"T" + struct.pack("<i", array.size) + array.tobytes()
    return empty + b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb"


def cifar_batch(images: Images, labels: Sequence[int], label_key: str) -> bytes:
    names = [f"image_{i}.png" for i in range(len(images))]
    data = images.reshape(len(images), -1)
    return python2_pickle({"data": data, label_key: list(labels), "filenames": names})


def cifar10(images: Images, labels: Sequence[int]) -> dict[str, bytes]:
    """Return CIFAR-10's files: a sixth of the samples in each of the six batches."""
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    each = len(images) // 6
    files = {
        name: cifar_batch(images[i : i + each], labels[i : i + each], "labels")
        for name, i in zip(batches, range(0, len(images), each), strict=True)
    }
    names = [f"class {i}" for i in range(10)]
    return files | {"batches.meta": python2_pickle({"label_names": names})}


def cifar100(images: Images, labels: Sequence[int], train: int) -> dict[str, bytes]:
    names = [f"class {i}" for i in range(100)]
    return {
        "train": cifar_batch(images[:train], labels[:train], "fine_labels"),
        "test": cifar_batch(images[train:], labels[train:], "fine_labels"),
        "meta": python2_pickle({"coarse_label_names": ["all"], "fine_label_names": names}),
    }


def stl10_plane_order(images: Images) -> bytes:
    """Write each channel column after column."""
    columns = (channel.T for image in images for channel in image)
    return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)


def stl10(images: Images, labels: Images, train: int) -> dict[str, bytes]:
    """Return STL-10's files; `labels` count from 0 here, and from 1 in the files."""
    return {
        "train_X.bin": stl10_plane_order(images[:train]),
        "train_y.bin": (labels[:train] + 1).tobytes(),
        "test_X.bin": stl10_plane_order(images[train:]),
        "test_y.bin": (labels[train:] + 1).tobytes(),
        "class_names.txt": "\n".join(f"class{i}" for i in range(10)).encode(),
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_tar_gz(archive: Path, folder: str, files: Mapping[str, bytes]) -> None:
    write_archive(archive, {f"{folder}/{name}": content for name, content in files.items()})


def write_archive(archive: Path, files: Mapping[str, bytes]) -> None:
    """Write a .zip, a .tar or a gzipped tar, as the archive's name says."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as pack:
            for name, content in files.items():
                pack.writestr(name, content)
        return
    with tarfile.open(archive, "w" if archive.suffix == ".tar" else "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def encoded(pixels: Images, image_format: str = "PNG") -> bytes:
    """Encode grey `(height, width)` or colour `(height, width, 3)` pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, image_format)
    return file.getvalue()


def flat(value: int, size: int = 4, image_format: str = "PNG") -> bytes:
    """Encode a grey image of one value."""
    return encoded(np.full((size, size), value, np.uint8), image_format)


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
