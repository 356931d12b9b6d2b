import contextlib
import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.core.errors import UsageError
from ccfcpp.data.sets import cifar, mnist, stl10
from tests.support import originals


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3, 3)])
@pytest.mark.parametrize("gz", [False, True])
def test_idx_gives_the_array_that_was_written(shape: tuple[int, ...], gz: bool) -> None:
    array = originals.random_images(0, *shape)
    content = originals.idx(array)
    read = mnist.read_idx(gzip.compress(content) if gz else content, "file")
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


def test_idx_faults_are_named() -> None:
    content = originals.idx(originals.random_images(0, 2, 3, 4))
    with pytest.raises(UsageError, match="file has 39 bytes, but its header states 40"):
        mnist.read_idx(content[:-1], "file")
    with pytest.raises(UsageError, match="not a whole gzip file"):
        mnist.read_idx(gzip.compress(content)[:-9], "file")
    with pytest.raises(UsageError, match="not an IDX file of unsigned bytes"):
        mnist.read_idx(b"<html>", "file")
    with pytest.raises(UsageError, match="not an IDX file of unsigned bytes"):
        mnist.read_idx(b"\0\0\x0d" + content[3:], "file")  # floats


@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\0\0\x08" + tail))
def test_idx_from_any_bytes_is_an_array_or_a_usage_error(content: bytes) -> None:
    with contextlib.suppress(UsageError):
        assert mnist.read_idx(content, "file").dtype == np.uint8


def test_cifar_batch_of_python_2() -> None:
    images = originals.random_images(1, 4, 3, 32, 32)
    content = originals.cifar_batch(images, [3, 0, 9, 3], "labels")
    # That the bytes are what numpy itself takes for such a batch is part of the test.
    reference = pickle.loads(  # noqa: S301 - written by this test
        content.replace(b"numpy.core", b"numpy._core"), encoding="latin1"
    )
    np.testing.assert_array_equal(reference["data"].reshape(images.shape), images)

    read, labels = cifar.read_cifar_batch(content, "labels", "file")
    np.testing.assert_array_equal(read, images)
    np.testing.assert_array_equal(labels, [3, 0, 9, 3])
    assert read.dtype == np.uint8
    assert labels.dtype == np.int64


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_cifar_batch_of_python_3(protocol: int) -> None:
    images = originals.random_images(2, 3, 3, 32, 32)
    batch = {"data": images.reshape(3, -1), "fine_labels": [99, 0, 5], "coarse_labels": [1, 1, 1]}
    read, labels = cifar.read_cifar_batch(pickle.dumps(batch, protocol), "fine_labels", "file")
    np.testing.assert_array_equal(read, images)
    np.testing.assert_array_equal(labels, [99, 0, 5])


def test_cifar_batch_in_fortran_order() -> None:
    images = originals.random_images(5, 3, 3, 32, 32)
    data = np.asfortranarray(images.reshape(3, -1))
    content = pickle.dumps({"data": data, "labels": [1, 2, 3]}, 2)
    read, _ = cifar.read_cifar_batch(content, "labels", "file")
    np.testing.assert_array_equal(read, images)


def test_cifar_classes() -> None:
    content = originals.python2_pickle({"label_names": ["cat", "dog"], "other": 3})
    assert cifar.read_cifar_classes(content, "label_names", "file") == ("cat", "dog")
    with pytest.raises(UsageError, match="no class names 'fine_label_names'"):
        cifar.read_cifar_classes(content, "fine_label_names", "file")


class _Runs:
    """Runs a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    content = pickle.dumps({"data": _Runs(f"touch {tmp_path}/ran"), "labels": []})
    with pytest.raises(UsageError, match=r"file cannot be read .* asks for \w+\.system"):
        cifar.read_cifar_batch(content, "labels", "file")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "target",
    [
        "builtins\neval",
        "builtins\ngetattr",
        "numpy\nload",
        "numpy.f2py.diagnose\nrun",
        "os\nsystem",
    ],
)
def test_a_pickle_gets_nothing_but_arrays(target: str) -> None:
    content = b"\x80\x02c" + target.encode() + b"\n(U\x011tR."
    with pytest.raises(UsageError, match="which is refused"):
        cifar.read_cifar_classes(content, "label_names", "file")


class _ForgedDtype:
    """Claims that plain bytes are references to objects: numpy would follow them and crash."""

    def __reduce__(self) -> tuple[object, ...]:
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 1)


class _ForgedArray:
    def __reduce__(self) -> tuple[object, ...]:
        state = (1, (4,), _ForgedDtype(), False, b"A" * 32)
        reconstruct = np.zeros(0).__reduce__()[0]
        return reconstruct, (np.ndarray, (0,), b"b"), state


def test_an_array_cannot_be_forged() -> None:
    content = pickle.dumps({"data": _ForgedArray(), "labels": []})
    with pytest.raises(UsageError, match="no 'data' of uint8"):
        cifar.read_cifar_batch(content, "labels", "file")


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": [1]},
        {"data": np.zeros((1, 3072), np.uint8)},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [-1]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [10**30]},
        {"data": np.zeros((1, 3072), np.float32), "labels": [1]},
        {"data": np.zeros((1, 3071), np.uint8), "labels": [1]},
        ["data"],
    ],
)
def test_cifar_batches_of_a_wrong_kind_are_refused(batch: object) -> None:
    with pytest.raises(UsageError, match=r"^file "):
        cifar.read_cifar_batch(pickle.dumps(batch, 2), "labels", "file")


_BATCH = originals.cifar_batch(originals.random_images(3, 1, 3, 32, 32), [7], "labels")


@settings(max_examples=200)
@given(st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_broken_cifar_batches_are_usage_errors(position: int, garbage: bytes) -> None:
    content = _BATCH[:position] + garbage + _BATCH[position + len(garbage) :]
    with contextlib.suppress(UsageError):
        images, labels = cifar.read_cifar_batch(content, "labels", "file")
        assert images.shape == (len(labels), 3, 32, 32)


def test_stl10_images_lie_column_after_column() -> None:
    content = bytearray(2 * 3 * 96 * 96)
    content[1 * 27648 + 2 * 9216 + 5 * 96 + 7] = 200  # image 1, channel 2, column 5, row 7
    images = stl10.read_stl10_images(bytes(content), "file")
    assert images.shape == (2, 3, 96, 96)
    assert np.argwhere(images).tolist() == [[1, 2, 7, 5]]
    assert images[1, 2, 7, 5] == 200


def test_stl10_images_come_back_as_written() -> None:
    images = originals.random_images(4, 2, 3, 96, 96)
    read = stl10.read_stl10_images(originals.stl10_plane_order(images), "file")
    np.testing.assert_array_equal(read, images)


def test_stl10_labels_count_from_zero() -> None:
    labels = stl10.read_stl10_labels(bytes([1, 10, 3]), "file")
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 9, 2]


def test_stl10_faults_are_named() -> None:
    with pytest.raises(UsageError, match="file does not hold whole images"):
        stl10.read_stl10_images(bytes(100), "file")
    with pytest.raises(UsageError, match="file has a label 0"):
        stl10.read_stl10_labels(bytes([1, 0]), "file")
