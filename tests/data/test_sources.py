import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torchvision import datasets

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.images import ImageData, fit
from ccfcpp.data.open import load
from ccfcpp.data.registry import DATASETS
from ccfcpp.data.sets.tiny_imagenet import TinyImageNet
from tests.support import originals

IDX_IMAGES = originals.random_images(0, 7, 28, 28)
IDX_LABELS = np.array([5, 0, 4, 1, 9, 2, 2], np.uint8)
CIFAR_IMAGES = originals.random_images(1, 12, 3, 32, 32)
CIFAR_LABELS = [9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1]
STL10_IMAGES = originals.random_images(2, 5, 3, 96, 96)
STL10_LABELS = np.array([0, 9, 3, 3, 1], np.uint8)


def _assert_is(
    data: ImageData,
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    train: int | None = None,
) -> None:
    """Check the data: the first `train` images are for training, or nobody divided them."""
    assert data.name == name
    assert data.images.dtype == torch.uint8
    np.testing.assert_array_equal(data.images.numpy(), images)
    assert data.labels is not None
    assert data.labels.dtype == torch.int64
    np.testing.assert_array_equal(data.labels.numpy(), labels)
    assert (data.owners, data.owner_names) == (None, ())
    assert len(data) == len(images)
    if train is None:
        assert data.test is None
    else:
        assert data.test is not None
        assert data.test.tolist() == [False] * train + [True] * (len(images) - train)


def test_digits() -> None:
    data = load("digits")
    images, labels = load_digits(return_X_y=True)
    expected = np.floor(images * 255 / 16 + 0.5).reshape(1797, 1, 8, 8)
    _assert_is(data, "digits", expected, labels)
    assert data.classes == tuple("0123456789")
    assert (int(data.images.min()), int(data.images.max())) == (0, 255)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_idx_sets(tmp_path: Path, name: str, folder: str, gz: bool) -> None:
    originals.write_idx_set(tmp_path / folder, IDX_IMAGES, IDX_LABELS, 5, gz=gz)
    data = load(name, data_root=tmp_path)
    _assert_is(data, name, IDX_IMAGES[:, None], IDX_LABELS, 5)
    assert len(data.classes) == 10


@pytest.mark.parametrize(
    ("name", "packed"),
    [(name, packed) for name in ("cifar10", "cifar100", "stl10") for packed in (False, True)],
)
@pytest.mark.parametrize("base", [".", "{name}"])
def test_archive_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, packed: bool, base: str
) -> None:
    files, images, labels, folder, archive = _archive_set(name)
    root = tmp_path / base.format(name=name)
    if packed:
        originals.write_tar_gz(root / archive, folder, files)
    else:
        originals.write_files(root / folder, files)
    for attempt in range(2):
        if packed and attempt == 1:  # an archive is unpacked once, and then cached
            monkeypatch.delattr(archives, "_Unpacking")
        data = load(name, data_root=tmp_path)
        _assert_is(data, name, images, labels, {"cifar10": 10, "cifar100": 8, "stl10": 3}[name])
        assert data.classes[0] in {"class 0", "class0"}
        assert len(data.classes) == (100 if name == "cifar100" else 10)


def test_an_archive_of_jpeg_files_is_not_taken_for_cifar10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/archive.tar.gz")
    monkeypatch.setenv("no_proxy", "*")
    originals.write_archive(tmp_path / "cifar10_jpeg.tar.gz", {"train/cat/0.png": b""})
    with pytest.raises(UsageError, match="'cifar10' is not in"):
        load("cifar10", data_root=tmp_path)


def test_classes_of_a_named_set() -> None:
    whole = load("digits")
    data = load("digits", classes=["7", 3], image_size=4)
    assert whole.labels is not None
    chosen = (whole.labels == 3) | (whole.labels == 7)
    assert torch.equal(data.images, fit(whole.images[chosen], (1, 4, 4)))
    assert data.classes == ("3", "7")
    assert data.labels is not None
    assert torch.equal(data.labels, (whole.labels[chosen] == 7).long())
    with pytest.raises(UsageError, match="digits has no class 'seven': take some of 0, 1, 2"):
        load("digits", classes=["seven"])


def _archive_set(name: str) -> tuple[dict[str, bytes], np.ndarray, np.ndarray, str, str]:
    labels = np.array(CIFAR_LABELS)
    if name == "cifar10":
        files = originals.cifar10(CIFAR_IMAGES, CIFAR_LABELS)
        return files, CIFAR_IMAGES, labels, "cifar-10-batches-py", "cifar-10-python.tar.gz"
    if name == "cifar100":
        fine = labels * 11
        files = originals.cifar100(CIFAR_IMAGES, fine.tolist(), 8)
        return files, CIFAR_IMAGES, fine, "cifar-100-python", "cifar-100-python.tar.gz"
    files = originals.stl10(STL10_IMAGES, STL10_LABELS, 3)
    return files, STL10_IMAGES, STL10_LABELS, "stl10_binary", "stl10_binary.tar.gz"


def test_files_directly_in_a_folder_named_as_the_data_set(tmp_path: Path) -> None:
    originals.write_files(tmp_path / "cifar10", originals.cifar10(CIFAR_IMAGES, CIFAR_LABELS))
    assert len(load("cifar10", data_root=tmp_path)) == 12


def test_broken_archives_are_named(tmp_path: Path) -> None:
    files = originals.cifar10(CIFAR_IMAGES, CIFAR_LABELS)
    archive = tmp_path / "cifar-10-python.tar.gz"
    originals.write_tar_gz(archive, "cifar-10-batches-py", files)
    archive.write_bytes(archive.read_bytes()[:-3000])
    with pytest.raises(UsageError, match=r"cifar-10-python\.tar\.gz cannot be read"):
        load("cifar10", data_root=tmp_path)
    del files["data_batch_3"]
    originals.write_tar_gz(archive, "cifar-10-batches-py", files)
    with pytest.raises(UsageError, match=r"py/data_batch_3 is not there: get it again"):
        load("cifar10", data_root=tmp_path)
    originals.write_tar_gz(archive, "another", files)
    with pytest.raises(UsageError, match=r"data_batch_1 is not there: get it again"):
        load("cifar10", data_root=tmp_path)


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    originals.write_idx_set(tmp_path / "mnist", IDX_IMAGES, IDX_LABELS[:-1], 5, gz=False)
    with pytest.raises(UsageError, match=r"does not hold 'mnist': labels must be int64 \(7,\)"):
        load("mnist", data_root=tmp_path)
    originals.write_idx_set(tmp_path / "mnist", IDX_IMAGES, IDX_LABELS + 5, 5, gz=False)
    with pytest.raises(UsageError, match=r"labels must lie in \[0, 10\)"):
        load("mnist", data_root=tmp_path)
    originals.write_idx_set(tmp_path / "mnist", IDX_LABELS, IDX_LABELS, 5, gz=False)
    with pytest.raises(UsageError, match="train and test do not go together"):
        load("mnist", data_root=tmp_path)


def test_the_root_is_the_argument_then_the_variable_then_the_user_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "argument", tmp_path / "variable", tmp_path / "user/ccfcpp/data"]
    for i, root in enumerate(folders):
        labels = np.full(7, i, np.uint8)
        originals.write_idx_set(root / "mnist", IDX_IMAGES, labels, 5, gz=False)

    def first_label(data_root: Path | None = None) -> int:
        data = load("mnist", data_root=data_root)
        assert data.labels is not None
        return int(data.labels[0])

    assert first_label() == 2
    monkeypatch.setenv("CCFCPP_DATA", str(folders[1]))
    assert first_label() == 1
    assert first_label(folders[0]) == 0


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_image_size(tmp_path: Path, name: str) -> None:
    originals.write_idx_set(tmp_path / "mnist", IDX_IMAGES, IDX_LABELS, 5, gz=True)
    whole = load(name, data_root=tmp_path)
    small = load(name, data_root=tmp_path, image_size=6)
    assert small.images.shape == (len(whole), 1, 6, 6)
    assert torch.equal(small.images, fit(whole.images, (1, 6, 6)))
    assert small.labels is not None
    assert whole.labels is not None
    assert torch.equal(small.labels, whole.labels)
    same = load(name, data_root=tmp_path, image_size=whole.images.shape[-1])
    assert torch.equal(same.images, whole.images)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("minst", "unknown data set 'minst': did you mean 'mnist'? Known: digits, mnist, "),
        ("CIFAR10", "unknown data set 'CIFAR10': did you mean 'cifar10'? Known: "),
        ("", "the name of the data set is empty: give one, or a path"),
        ("zebra", "unknown data set 'zebra': Known: "),
        ("zebra", "a path: to an .npz file, or to an image folder or its archive, laid out as "),
        ("no/such/folder", "there is no file or folder no/such/folder: give a folder of images"),
        ("nothere/", "there is no folder nothere/: give a folder of images"),
        ("nothere.npz", "there is no file or folder nothere.npz: "),
    ],
)
def test_unknown_sources(source: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(source)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_questions(tmp_path: Path) -> None:
    (tmp_path / "data.csv").touch()
    with pytest.raises(UsageError, match=r"neither an \.npz file nor an image folder"):
        load(str(tmp_path / "data.csv"))
    with pytest.raises(UsageError, match=r"image_size = 0 is refused"):
        load("digits", image_size=0)
    with pytest.raises(UsageError, match=r"only in an image folder, or .* and 'digits' is neither"):
        load("digits", folders_are_clients=True)


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals.write_idx_set(tmp_path / "mnist", IDX_IMAGES, IDX_LABELS, 5, gz=False)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"'mnist' cannot be read: .*Permission denied.*ubyte"):
        load("mnist", data_root=tmp_path)


def test_a_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    images = load("digits", data_root=tmp_path / "data")
    assert len(images) == 1797
    assert images.notes == ("digits is the named data set: write ./digits for what lies here",)
    assert load("digits", data_root=Path()).notes == ()  # The folder may be that of its own files.
    with pytest.raises(UsageError, match="holds no image"):
        load("./digits")


def _serve_mnist(folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    originals.write_idx_set(folder, IDX_IMAGES, IDX_LABELS, 5, gz=True)
    resources = [
        (name, originals.md5((folder / name).read_bytes())) for name, _ in datasets.MNIST.resources
    ]
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [address + "none/", address])


def test_downloads_idx_files_from_the_mirror_that_has_them(
    tmp_path: Path,
    served: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    _serve_mnist(*served, monkeypatch)
    root = tmp_path / "root"
    _assert_is(load("mnist", data_root=root), "mnist", IDX_IMAGES[:, None], IDX_LABELS, 5)
    assert capfd.readouterr().out == ""
    assert [path.name for path in root.iterdir()] == ["MNIST"]
    assert len(datasets.MNIST(root, train=True)) == 5  # torchvision finds them, too

    monkeypatch.setattr(datasets.MNIST, "mirrors", [])
    assert len(load("mnist", data_root=root)) == 7


def test_downloads_an_archive(
    tmp_path: Path,
    served: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, address = served
    files, images, labels, inner, name = _archive_set("cifar10")
    originals.write_tar_gz(folder / name, inner, files)
    monkeypatch.setattr(datasets.CIFAR10, "url", address + name)
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", originals.md5((folder / name).read_bytes()))
    root = tmp_path / "root"
    _assert_is(load("cifar10", data_root=root), "cifar10", images, labels, 10)
    assert capfd.readouterr().out == ""
    assert [path.name for path in root.iterdir()] == [name]


def test_a_download_with_a_wrong_checksum_is_refused_and_leaves_nothing(
    tmp_path: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _serve_mnist(*served, monkeypatch)
    last = served[0] / datasets.MNIST.resources[-1][0]
    last.write_bytes(gzip.compress(b"something else"))
    root = tmp_path / "root"
    with pytest.raises(UsageError, match=r"'mnist' is not in .* cannot be downloaded"):
        load("mnist", data_root=root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", DATASETS.own()[1:])
def test_without_a_network_the_error_says_what_belongs_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    nowhere = "http://127.0.0.1:9/"
    for idx_set in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(idx_set, "mirrors", [nowhere])
    for archive_set in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10, TinyImageNet):
        monkeypatch.setattr(archive_set, "url", nowhere + "archive.tar.gz")
    files = {
        "mnist": "train-images-idx3-ubyte.gz, ",
        "fashion-mnist": "(in fashion-mnist/)",
        "cifar10": "cifar-10-python.tar.gz (or its unpacked folder cifar-10-batches-py/)",
        "cifar100": "cifar-100-python.tar.gz (or its unpacked folder cifar-100-python/)",
        "stl10": "stl10_binary.tar.gz (or its unpacked folder stl10_binary/)",
        "tiny-imagenet": "tiny-imagenet-200.zip (or its unpacked folder tiny-imagenet-200/)",
    }
    with pytest.raises(UsageError) as caught:
        load(name, data_root=tmp_path / "root")
    message = str(caught.value)
    assert f"data set '{name}' is not in {tmp_path}/root" in message
    assert files[name] in message
    assert "'digits', which works offline" in message
    assert "\n" not in message


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cifar10.*cannot be downloaded \(NotADirectoryError"):
        load("cifar10", data_root=tmp_path / "file" / "root")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_files(name: str) -> None:
    files = originals.REAL_DATA / name
    if not (files / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"needs the real data set: no {files}/train-images-idx3-ubyte.gz")
    data = load(name, data_root=originals.REAL_DATA)
    assert data.images.shape == (70_000, 1, 28, 28)
    assert data.test is not None
    assert data.test.tolist() == [False] * 60_000 + [True] * 10_000
    assert data.labels is not None
    if name == "fashion-mnist":
        assert torch.bincount(data.labels).tolist() == [7_000] * 10
    else:
        assert data.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        train = originals.idx(data.images[:60_000, 0].numpy())
        assert originals.md5(train) == "6bbc9ace898e44ae57da46a324031adb"


TWO = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "facts", "message"),
    [
        (TWO.float(), {}, "images must be uint8"),
        (TWO[:, 0], {}, "images must be uint8"),
        (TWO, {"labels": torch.zeros(2), "classes": ("a",)}, "labels must be"),
        (TWO, {"labels": torch.tensor([0]), "classes": ("a",)}, "labels must be"),
        (TWO, {"labels": torch.tensor([0, 1]), "classes": ("a",)}, "must lie in"),
        (TWO, {"classes": ("a",)}, "classes without labels"),
        (TWO, {"test": torch.zeros(2)}, r"test must be bool \(2,\), not torch"),
        (TWO, {"test": torch.zeros(3, dtype=torch.bool)}, r"test must be bool \(2,\), not torch"),
        (TWO, {"names": ("a",)}, "1 names for 2 images"),
    ],
)
def test_image_data_checks_itself(
    images: torch.Tensor, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ImageData("data", images, **facts)


def test_image_data_moves_whole() -> None:
    tensors = torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([False, True])
    labels, owners, test = tensors
    moved = ImageData("data", TWO, labels, ("a", "b"), owners, ("o",), test).to("cpu")
    assert (moved.name, moved.classes, moved.owner_names) == ("data", ("a", "b"), ("o",))
    for tensor, own in zip((moved.labels, moved.owners, moved.test), tensors, strict=True):
        assert tensor is not None
        assert torch.equal(tensor, own)
