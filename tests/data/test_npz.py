import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.data.npz import read_npz
from ccfcpp.data.open import load
from tests.support.originals import random_images


def _save(folder: Path, **arrays: Any) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("stored", "axes"),
    [
        ((4, 5, 6), (0, 1, 2)),
        ((4, 5, 6, 3), (0, 3, 1, 2)),
        ((4, 5, 6, 1), (0, 3, 1, 2)),
        ((4, 3, 5, 6), (0, 1, 2, 3)),
        ((4, 1, 5, 6), (0, 1, 2, 3)),
        ((4, 3, 5, 3), (0, 1, 2, 3)),  # both fit: channels first
    ],
)
def test_every_order_of_axes(
    tmp_path: Path, stored: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    images = random_images(0, *stored)
    data = read_npz(_save(tmp_path, images=images))
    expected = images.transpose(axes)
    expected = expected[:, None] if expected.ndim == 3 else expected
    assert data.images.is_contiguous()
    assert data.images.dtype == torch.uint8
    np.testing.assert_array_equal(data.images.numpy(), expected)
    assert (data.name, data.labels, data.classes, data.owners) == ("some", None, (), None)


@pytest.mark.parametrize(
    ("labels", "indices", "classes"),
    [
        (np.array([7, -1, 7, 10]), [1, 0, 1, 2], ("-1", "7", "10")),
        (np.array([3, 3, 1, 1], np.uint8), [1, 1, 0, 0], ("1", "3")),
        (np.array(["dog", "cat", "dog", "eel"]), [1, 0, 1, 2], ("cat", "dog", "eel")),
        (np.array([b"b", b"a", b"a", b"a"]), [1, 0, 0, 0], ("a", "b")),
    ],
)
def test_labels_are_numbered_in_sorted_order(
    tmp_path: Path, labels: Any, indices: list[int], classes: tuple[str, ...]
) -> None:
    data = read_npz(_save(tmp_path, images=random_images(0, 4, 2, 2), labels=labels))
    assert data.labels is not None
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == indices
    assert data.classes == classes


def test_short_keys_and_other_arrays(tmp_path: Path) -> None:
    images = random_images(0, 2, 4, 4)
    path = _save(tmp_path, x=images, y=[1, 0], names=np.array([object()], object))
    data = load(str(path))
    np.testing.assert_array_equal(data.images[:, 0].numpy(), images)
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0]


def test_an_array_of_the_test_images(tmp_path: Path) -> None:
    path = _save(tmp_path, images=random_images(0, 3, 2, 2), test=[True, False, True])
    data = load(str(path))
    assert data.test is not None
    assert data.test.tolist() == [True, False, True]
    assert read_npz(_save(tmp_path, images=random_images(0, 3, 2, 2))).test is None


def test_classes(tmp_path: Path) -> None:
    images = random_images(0, 4, 2, 2)
    test = [False, True, False, True]
    path = _save(tmp_path, images=images, labels=["eel", "cat", "ant", "eel"], test=test)
    data = load(str(path), classes=["eel", "ant"])
    np.testing.assert_array_equal(data.images[:, 0].numpy(), images[[0, 2, 3]])
    assert data.classes == ("ant", "eel")
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.test is not None
    assert data.test.tolist() == [False, False, True]
    with pytest.raises(UsageError, match="some has no class 'eal': did you mean 'eel'"):
        load(str(path), classes=["ant", "eal"])
    with pytest.raises(UsageError, match="some has no classes to choose 'ant' from"):
        load(str(_save(tmp_path, images=images)), classes=["ant"])


def test_image_size(tmp_path: Path) -> None:
    path = _save(tmp_path, images=np.full((2, 8, 6, 3), 90, np.uint8))
    data = load(str(path), image_size=4)
    assert data.images.shape == (2, 3, 4, 4)
    assert (data.images == 90).all()


_GOOD = np.zeros((3, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": _GOOD}, r"no array 'images' \(or 'x'\): it holds pictures"),
        ({}, "it holds nothing"),
        ({"images": _GOOD / 255}, r"float64, but must be uint8: .*round\(\)"),
        ({"images": _GOOD.astype(np.int64)}, r"int64, but must be uint8: .*astype\('uint8'\)"),
        ({"images": _GOOD > 0}, r"bool, but must be uint8: .*\* 255"),
        ({"images": _GOOD[0]}, r"shape \(4, 4\)"),
        ({"images": np.zeros((3, 4, 4, 2), np.uint8)}, r"shape \(3, 4, 4, 2\)"),
        ({"images": _GOOD[:0]}, r"shape \(0, 1, 4, 4\)"),
        ({"images": _GOOD, "labels": [1, 2]}, r"labels have shape \(2,\), but must have \(3,\)"),
        ({"images": _GOOD, "labels": [[1], [2], [3]]}, r"labels have shape \(3, 1\)"),
        ({"images": _GOOD, "labels": [1.0, 2.0, 3.0]}, "labels are float64"),
        ({"images": _GOOD, "test": [0, 1, 1]}, r"test is int64 \(3,\), but must be bool \(3,\)"),
        ({"images": _GOOD, "test": [True]}, r"test is bool \(1,\), but must be bool \(3,\)"),
        ({"images": np.array([None, _GOOD], object)}, "array of Python objects"),
        ({"images": _GOOD, "labels": np.array([1, "a", None], object)}, "Python objects"),
    ],
)
def test_faults_are_named_with_their_mend(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    path = _save(tmp_path, **arrays)
    with pytest.raises(UsageError, match=message) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class _Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_an_npz_cannot_run_code(tmp_path: Path) -> None:
    runs = np.array([_Runs(f"touch {tmp_path}/ran")], object)
    path = _save(tmp_path, images=_GOOD, labels=runs)
    with pytest.raises(UsageError, match="Python objects"):
        read_npz(path)
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("images")
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        read_npz(text)
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, _GOOD)
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        read_npz(single)


def test_a_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    np.savez_compressed(path, images=random_images(0, 50, 20, 20))
    content = bytearray(path.read_bytes())
    content[500:600] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path}"):
        read_npz(path)


def test_names_in_several_spellings_are_one(tmp_path: Path) -> None:
    """Labels that are numbers are in their order, as they are where they are integers."""
    labels, clients = np.array(["10", "2", "2.0"]), np.array(["é", "e\u0301 ", "E"])
    data = read_npz(_save(tmp_path, images=_GOOD, labels=labels, clients=clients))
    assert data.labels is not None
    assert data.owners is not None
    assert (data.classes, data.labels.tolist()) == (("2", "10"), [1, 0, 0])
    assert (data.owner_names, data.owners.tolist()) == (("E", "é"), [1, 1, 0])
    assert data.notes == (
        "labels '2' and '2.0' are taken for one, '2'",
        r"clients 'e\u0301 ' and '\xe9' are taken for one, 'é'",
    )
