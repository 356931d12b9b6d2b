import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives, decoding
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load
from ccfcpp.data.registry import describe
from ccfcpp.data.sets.tiny_imagenet import TINY_IMAGENET, TinyImageNet
from tests.support.originals import REAL_DATA, encoded, flat, md5, write_archive, write_tree

BASE = "tiny-imagenet-200"
ANNOTATIONS = (
    "val_0.JPEG\tn03\t0\t32\t44\t62\nval_10.JPEG\tn01\t0\t0\t63\t63\nval_2.JPEG\tn03\t1\t2\t3\t4\n"
)


def _files() -> dict[str, bytes]:
    """Two listed classes, one that is not, and one without images; a colour image among grey."""
    colour = encoded(np.full((64, 64, 3), (200, 30, 30), np.uint8), "JPEG")
    return {
        "wnids.txt": b"n03\nn09\nn01\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn03\ttabby, tabby cat\nn99\tentity\n",
        "train/n01/images/n01_0.JPEG": flat(10, 64, "JPEG"),
        "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t63\t63\n",
        "train/n03/images/n03_1.JPEG": colour,
        "train/n03/images/n03_0.JPEG": flat(30, 64, "JPEG"),
        "train/n02/images/n02_0.JPEG": flat(20, 64, "JPEG"),
        "val/images/val_2.JPEG": flat(102, 64, "JPEG"),
        "val/images/val_10.JPEG": flat(110, 64, "JPEG"),
        "val/images/val_0.JPEG": flat(100, 64, "JPEG"),
        "val/val_annotations.txt": ANNOTATIONS.encode(),
        "test/images/test_0.JPEG": flat(255, 64, "JPEG"),
    }


def _below_base(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{BASE}/{name}": content for name, content in files.items()}


def _write(root: Path, place: str, files: Mapping[str, bytes]) -> None:
    if place.endswith((".zip", ".tar.gz")):
        write_archive(root / place, _below_base(files))
    else:
        write_tree(root / place, files)


def _assert_whole(data: ImageData) -> None:
    assert data.name == "tiny-imagenet"
    assert data.images.shape == (7, 3, 64, 64)
    assert data.classes == ("tabby", "goldfish", "n02")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 1, 2, 0, 1, 0]
    assert data.test is not None
    assert data.test.tolist() == [False] * 4 + [True] * 3
    pixels = data.images[:, :, 0, 0].int()
    grey = torch.tensor([30, 10, 20, 100, 110, 102])[:, None].expand(6, 3)
    assert torch.equal(pixels[[0, 2, 3, 4, 5, 6]], grey.int())
    assert (pixels[1] - torch.tensor([200, 30, 30])).abs().max() <= 3


PLACES = [
    BASE,
    f"tiny-imagenet/{BASE}",
    "tiny-imagenet",
    f"{BASE}.zip",
    f"{BASE}.tar.gz",
    f"tiny-imagenet/{BASE}_part.tar.gz",
]


@pytest.mark.parametrize("place", PLACES)
def test_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    _write(tmp_path, place, _files())
    _assert_whole(load("tiny-imagenet", data_root=tmp_path))
    _, described = describe(tmp_path)["tiny-imagenet"]
    assert described == str(tmp_path / place)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr("ccfcpp.data.sets.tiny_imagenet.read_whole", fail)
    _assert_whole(load("tiny-imagenet", data_root=tmp_path))


def test_the_whole_set_comes_before_a_part(tmp_path: Path) -> None:
    for place in (f"{BASE}_part.tar.gz", f"{BASE}.zip", BASE):
        _write(tmp_path, place, _files())
        assert TINY_IMAGENET.find(tmp_path) == tmp_path / place


def test_all_grey_images_fill_three_channels(tmp_path: Path) -> None:
    files = _files()
    del files["train/n03/images/n03_1.JPEG"]
    _write(tmp_path, BASE, files)
    assert load("tiny-imagenet", data_root=tmp_path).images.shape == (6, 3, 64, 64)


def test_class_names_are_distinct(tmp_path: Path) -> None:
    words = b"n01\tcrane, bird\nn03\tcrane\nn02\t\n"
    _write(tmp_path, BASE, _files() | {"words.txt": words})
    data = load("tiny-imagenet", data_root=tmp_path)
    assert data.classes == ("crane (n03)", "crane (n01)", "n02")
    (tmp_path / BASE / "words.txt").unlink()
    assert load("tiny-imagenet", data_root=tmp_path).classes == ("n03", "n01", "n02")


def test_changed_annotations_count_at_once(tmp_path: Path) -> None:
    _write(tmp_path, BASE, _files())
    load("tiny-imagenet", data_root=tmp_path)
    changed = ANNOTATIONS.replace("val_2.JPEG\tn03", "val_2.JPEG\tn02")
    (tmp_path / BASE / "val" / "val_annotations.txt").write_text(changed)
    data = load("tiny-imagenet", data_root=tmp_path)
    assert data.labels is not None
    assert data.labels.tolist()[4:] == [0, 1, 2]


@pytest.mark.parametrize("place", [BASE, f"{BASE}.zip", f"{BASE}.tar.gz"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "val/val_annotations.txt",
            ANNOTATIONS.rpartition("val_2")[0].encode(),
            r"val_annotations\.txt has no line for val_2\.JPEG: get it again",
        ),
        (
            "val/val_annotations.txt",
            ANNOTATIONS.encode() + b"val_3.JPEG\tn03\t0\t0\t1\t1\n",
            r"val_annotations\.txt, line 4: there is no image 'val_3\.JPEG'",
        ),
        (
            "val/val_annotations.txt",
            ANNOTATIONS.replace("n01", "n07").encode(),
            r"val_annotations\.txt, line 2: there is no class 'n07'",
        ),
        ("val/val_annotations.txt", b"val_0.JPEG", "line 1: there is no class ''"),
        ("val/val_annotations.txt", None, r"val_annotations\.txt is missing"),
        ("train/n01/images/n01_0.JPEG", b"damaged", r"n01_0\.JPEG cannot be read \(it is no image"),
        ("train/n01/images/n01_0.JPEG", None, r"train/n01/images is missing"),
        (
            "train/n01/images/n01_0.JPEG",
            flat(1, 32, "JPEG"),
            r"n01_0\.JPEG cannot be read \(it has 32x32 pixels, not 64x64\): get it again",
        ),
    ],
)
def test_faults_are_named(
    tmp_path: Path, place: str, name: str, content: bytes | None, message: str
) -> None:
    files = _files()
    if content is None:
        del files[name]
    else:
        files[name] = content
    _write(tmp_path, place, files)
    with pytest.raises(UsageError, match=message) as caught:
        load("tiny-imagenet", data_root=tmp_path)
    assert "\n" not in str(caught.value)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    archive = tmp_path / f"{BASE}.zip"
    write_archive(archive, {"a/0.JPEG": flat(1)})
    with pytest.raises(UsageError, match=r"tiny-imagenet-200\.zip/train is missing"):
        load("tiny-imagenet", data_root=tmp_path)
    write_archive(archive, _below_base({"train/n01/images/0.JPEG": flat(1)}))
    with pytest.raises(UsageError, match=r"wnids\.txt is missing"):
        load("tiny-imagenet", data_root=tmp_path)
    archive.write_bytes(archive.read_bytes()[:50])
    with pytest.raises(UsageError, match=r"tiny-imagenet-200\.zip cannot be read"):
        load("tiny-imagenet", data_root=tmp_path)


@pytest.mark.parametrize("place", [f"{BASE}.zip", f"{BASE}.tar.gz"])
def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    _write(tmp_path, place, _files() | {"train/n01/images/n01_0.JPEG": flat(1, 3000, "PNG")})
    decoded = []

    def decode(image: Image.Image, *_: object) -> int:
        decoded.append(image.size)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_decode_upright", decode)
        with pytest.raises(UsageError, match="it has 3000x3000 pixels, not 64x64"):
            load("tiny-imagenet", data_root=tmp_path)
    assert (3000, 3000) not in decoded
    monkeypatch.setattr(archives, "_FEW_BYTES", 100)
    monkeypatch.setattr(archives, "_MOST_INFLATED", 0)
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="holds more than the 100 bytes"):
        load("tiny-imagenet", data_root=tmp_path)


def test_downloads_the_archive(
    tmp_path: Path,
    served: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, address = served
    _write(folder, f"{BASE}.zip", _files())
    monkeypatch.setattr(TinyImageNet, "url", f"{address}{BASE}.zip")
    root = tmp_path / "root"
    with pytest.raises(UsageError, match=r"'tiny-imagenet' is not in .* cannot be downloaded"):
        load("tiny-imagenet", data_root=root)  # another checksum
    assert list(root.iterdir()) == []
    monkeypatch.setattr(TinyImageNet, "md5", md5((folder / f"{BASE}.zip").read_bytes()))
    _assert_whole(load("tiny-imagenet", data_root=root))
    assert capfd.readouterr().out == ""
    assert [path.name for path in root.iterdir()] == [f"{BASE}.zip"]
    shutil.rmtree(folder)
    _assert_whole(load("tiny-imagenet", data_root=root))


def test_the_size_of_the_published_set(tmp_path: Path) -> None:
    data, _ = describe(tmp_path)["tiny-imagenet"]
    assert (data.images, data.classes, data.shape) == (110_000, 200, (3, 64, 64))


def test_the_real_part(tmp_path: Path) -> None:
    archive = REAL_DATA / "tiny-imagenet-200_mini.tar.gz"
    if not archive.is_file():
        pytest.skip(f"needs a part of the real data set: no {archive}")
    root = tmp_path / "root"
    root.mkdir()
    (root / archive.name).symlink_to(archive)  # whatever else of it lies beside
    data = load("tiny-imagenet", data_root=root)
    assert data.images.shape == (12_120, 3, 64, 64)
    assert len(set(data.classes)) == 202
    assert data.classes[0] == "Egyptian cat"
    assert data.labels is not None
    assert data.test is not None
    assert torch.bincount(data.labels[data.test]).tolist() == [10] * 202
    assert torch.bincount(data.labels[~data.test]).tolist() == [50] * 202
    assert (int(data.images.min()), int(data.images.max())) == (0, 255)
