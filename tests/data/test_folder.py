import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ccfcpp.core.errors import UsageError
from ccfcpp.data import decoding, image_files
from ccfcpp.data.image_files import describe_reading
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load
from tests.support.originals import random_images


def _save(path: Path, pixels: Sequence[int] | np.ndarray | int, size: int = 4) -> None:
    """Write an image file: all pixels from an array, or of one grey level or one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, int):
        pixels = np.full((size, size), pixels, np.uint8)
    elif not isinstance(pixels, np.ndarray):
        pixels = np.tile(np.array(pixels, np.uint8), (size, size, 1))
    Image.fromarray(pixels).save(path)


def _values(data: ImageData) -> list[int]:
    """Return the top left value in the first channel of each image."""
    values: list[int] = data.images[:, 0, 0, 0].tolist()
    return values


def _labels(data: ImageData) -> list[str]:
    assert data.labels is not None
    return [data.classes[label] for label in data.labels.tolist()]


def _test(data: ImageData) -> list[bool]:
    assert data.test is not None
    test: list[bool] = data.test.tolist()
    return test


def _owners(data: ImageData) -> list[str]:
    assert data.owners is not None
    return [data.owner_names[owner] for owner in data.owners.tolist()]


def test_class_folders(tmp_path: Path) -> None:
    pixels = random_images(0, 3, 5, 7, 3)
    _save(tmp_path / "zebra" / "a.png", pixels[2])
    _save(tmp_path / "ant" / "b.bmp", pixels[1])
    _save(tmp_path / "ant" / "a.PNG", pixels[0])
    data = load(str(tmp_path))
    assert data.name == tmp_path.name
    assert data.images.dtype == torch.uint8
    np.testing.assert_array_equal(data.images.numpy(), pixels.transpose(0, 3, 1, 2))
    assert data.classes == ("ant", "zebra")
    assert data.labels is not None
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == [0, 0, 1]
    assert (data.owners, data.owner_names) == (None, ())
    assert data.test is None


CLIENTS: dict[str, Any] = {"folders_are_clients": True}
LAYOUTS: dict[str, tuple[dict[str, Any], str, list[tuple[object, ...]]]] = {
    "train comes before test and shares its classes": (
        {},
        "test/a/0=1 test/b/0=2 test/c/0=3 train/a/9=4 train/c/10=5 train/c/9=6",
        [
            *((4, "a", None, False), (5, "c", None, False), (6, "c", None, False)),
            *((1, "a", None, True), (2, "b", None, True), (3, "c", None, True)),
        ],
    ),
    "capitals": (
        {},
        "TEST/a/0=1 Train/a/0=2 train/b/0=3",
        [(2, "a", None, False), (3, "b", None, False), (1, "a", None, True)],
    ),
    "train alone": ({}, "train/a/0=1", [(1, "a", None, None)]),
    "test alone": ({}, "test/a/0=1", [(1, "a", None, True)]),
    "flat": ({}, "b=2 a=1 c=3", [(value, None, None, None) for value in (1, 2, 3)]),
    "flat train and test": (
        {}, "test/a=1 train/b=2", [(2, None, None, False), (1, None, None, True)],
    ),
    "hidden files": ({}, "a/0=1 a/.1=2 .thumbnails/0=3", [(1, "a", None, None)]),
    "clients": (
        CLIENTS,
        "webcam/mug/0=1 webcam/bike/0=2 amazon/mug/0=3",
        [
            *((3, "mug", "amazon", None), (2, "bike", "webcam", None)),
            (1, "mug", "webcam", None),
        ],
    ),
    "clients without classes": (
        CLIENTS, "b/0=1 a/0=2", [(2, None, "a", None), (1, None, "b", None)],
    ),
    "a client without test images holds training images": (
        CLIENTS,
        "a/test/x/0=1 a/train/x/0=2 b/x/0=3 c/train/x/0=4",
        [
            *((2, "x", "a", False), (1, "x", "a", True)),
            *((3, "x", "b", False), (4, "x", "c", False)),
        ],
    ),
    "classes of clients": (
        CLIENTS | {"classes": ["bike"]},
        "amazon/mug/0=1 dslr/bike/0=2 webcam/bike/0=3",
        [(2, "bike", "dslr", None), (3, "bike", "webcam", None)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    """Images in order, each with its value, class, client, and whether it is for testing."""
    how, files, expected = LAYOUTS[layout]
    for name, value in (file.split("=") for file in files.split()):
        _save(tmp_path / f"{name}.png", int(value))
    (tmp_path / "README.md").write_text("about")
    data = load(str(tmp_path), **how)
    count = len(data)
    labels = [None] * count if data.labels is None else _labels(data)
    owners = [None] * count if data.owners is None else _owners(data)
    test = [None] * count if data.test is None else _test(data)
    assert [*zip(_values(data), labels, owners, test, strict=True)] == expected
    assert data.classes == tuple(sorted({label for label in labels if label}))
    assert data.owner_names == tuple(sorted({owner for owner in owners if owner}))


def test_training_and_testing_are_no_classes(tmp_path: Path) -> None:
    for split in ("Training", "Testing"):
        for kind in ("glioma", "healthy"):
            _save(tmp_path / split / kind / "0.png", 7)
    data = load(str(tmp_path))
    assert (data.classes, _test(data)) == (("glioma", "healthy"), [False, False, True, True])


@pytest.mark.parametrize("stray", ["overview.png", "test/0.png"])
def test_an_image_outside_the_classes_is_named(tmp_path: Path, stray: str) -> None:
    top = tmp_path / ("train" if "test" in stray else "")
    for kind in "ab":
        _save(top / kind / "0.png", 7)
    _save(tmp_path / stray, 7)
    data = load(str(tmp_path))
    assert not data.classes
    assert data.notes == (f"no folder is a class, since {stray} lies in none of them",)


def test_names_do_not_come_from_an_earlier_reading_of_a_folder_above(tmp_path: Path) -> None:
    _save(tmp_path / "photos" / "a" / "0.png", 7)
    assert load(str(tmp_path)).names == ("photos/a/0.png",)
    assert load(str(tmp_path / "photos")).names == ("a/0.png",)


def test_classes_are_chosen_without_decoding_others(tmp_path: Path) -> None:
    images = tmp_path / "images"  # beside the cache
    for i, name in enumerate(("eel", "cat", "ant")):
        _save(images / "train" / name / "0.png", i)
    _save(images / "test" / "cat" / "0.png", 3)
    (images / "train" / "cat" / "1.png").write_bytes(b"damaged")
    data = load(str(images), classes=["eel", "ant", "eel"])
    assert _values(data) == [2, 0]
    assert _labels(data) == ["ant", "eel"]
    assert data.classes == ("ant", "eel")
    assert _test(data) == [False, False]  # the folder has test images, these classes have none
    with pytest.raises(UsageError, match=r"1 of the 3 images .* train/cat/1\.png \(it is no"):
        load(str(images), classes=["cat"], skip=0)


def test_unknown_classes_are_named(tmp_path: Path) -> None:
    for name in ("cat", "cart", "zebra"):
        _save(tmp_path / name / "0.png", 1)
    with pytest.raises(UsageError, match=r"no class 'catt': did you mean 'cat' or 'cart'\?"):
        load(str(tmp_path), classes=["cat", "catt"])
    with pytest.raises(UsageError, match="has no class 'lynx': take some of cart, cat, zebra"):
        load(str(tmp_path), classes=["lynx"])
    with pytest.raises(UsageError, match=r"no class of .* is chosen: name at least one"):
        load(str(tmp_path), classes=[])
    with pytest.raises(UsageError, match="has no classes to choose 'cat' from"):
        load(str(tmp_path / "cat"), classes=["cat"])


def _domains(folder: Path) -> None:
    """Write images as DomainNet has them, and lists of them."""
    for i, domain in enumerate(("clipart", "real")):
        for j, name in enumerate(("ant", "The_Eiffel_Tower")):
            for k in range(3):
                _save(folder / domain / name / f"{domain}_{k}.png", 100 * i + 10 * j + k)
    _list(folder, "clipart_train", ["clipart/ant/clipart_2.png 0", "clipart/ant/clipart_0.png 0"])
    _list(folder, "clipart_test", ["clipart/The_Eiffel_Tower/clipart_1.png 1"])
    _list(folder, "real_train", ["real/The_Eiffel_Tower/real_2.png 1", ""])
    _list(folder, "real_test", ["real/ant/real_1.png 0", "real/ant/real_0.png 0"])


def _list(folder: Path, name: str, lines: Sequence[str]) -> None:
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def test_lists_say_which_images_are_for_what(tmp_path: Path) -> None:
    _domains(tmp_path)
    data = load(str(tmp_path), folders_are_clients=True)
    assert _values(data) == [0, 2, 11, 112, 100, 101]
    assert _labels(data) == ["ant", "ant", *["The_Eiffel_Tower"] * 2, "ant", "ant"]
    assert _owners(data) == ["clipart"] * 3 + ["real"] * 3
    assert _test(data) == [False, False, True, False, True, True]


def test_an_image_in_both_lists_is_a_test_image(tmp_path: Path) -> None:
    _domains(tmp_path)
    _list(tmp_path, "clipart_test", ["clipart/ant/clipart_0.png 0"])
    data = load(str(tmp_path), folders_are_clients=True)
    assert _values(data)[:2] == [2, 0]
    assert _test(data)[:2] == [False, True]


def test_lists_of_other_classes_may_name_what_is_not_there(tmp_path: Path) -> None:
    images = tmp_path / "images"  # beside the cache
    _domains(images)
    shutil.rmtree(images / "real" / "The_Eiffel_Tower")
    data = load(str(images), folders_are_clients=True, classes=["ant"])
    assert _values(data) == [0, 2, 100, 101]
    with pytest.raises(UsageError, match=r"real_train\.txt, line 1, names .*real_2\.png"):
        load(str(images), folders_are_clients=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["real/ant/real_0.png 0", "real/ant/none.png 0"], "line 2, names .*none.png, which is no"),
        (["real/../clipart/ant/clipart_0.png 0"], "line 1, names .* is no image of this client"),
        (["/etc/hosts 0"], "line 1, names /etc/hosts, which is no image of this client"),
        (["clipart/ant/clipart_0.png 0"], "line 1, names .* is no image of this client"),
        (["real/ant/real_0.png"], "line 1: 'real/ant/real_0.png' is not of the form"),
        (["real/ant/real_0.png ant"], "line 1: .* is not of the form 'CLIENT/CLASS/IMAGE LABEL'"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    _domains(tmp_path)
    _list(tmp_path, "real_test", lines)
    with pytest.raises(UsageError, match=rf"real_test\.txt, {message}") as caught:
        load(str(tmp_path), folders_are_clients=True)
    assert "\n" not in str(caught.value)


def test_lists_of_some_clients_only_are_refused(tmp_path: Path) -> None:
    _domains(tmp_path)
    (tmp_path / "real_test.txt").unlink()
    with pytest.raises(UsageError, match=r"real_test\.txt is missing: where lists"):
        load(str(tmp_path), folders_are_clients=True)


def test_lists_that_name_nothing_are_refused(tmp_path: Path) -> None:
    _domains(tmp_path)
    for path in tmp_path.glob("*.txt"):
        path.write_text("")
    with pytest.raises(UsageError, match="name no image"):
        load(str(tmp_path), folders_are_clients=True)


def test_folders_that_hold_a_single_folder_tell_nothing(tmp_path: Path) -> None:
    def classes(names: str, clients: bool = False) -> tuple[str, ...]:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for number, name in enumerate(names.split()):
            _save(root / name / "0.png", number)
        data = load(str(root), folders_are_clients=clients)
        return (*data.owner_names, *data.classes)

    two = ("cat", "dog")
    assert classes("photos/cat photos/dog") == two
    assert classes("my/own/photos/cat my/own/photos/dog/old") == two
    assert classes("photos/train/cat photos/test/dog") == two
    assert classes("train/photos/cat test/photos/dog") == two
    assert classes("photos/cat/old photos/cat/new") == ("new", "old")
    assert classes("photos/@eaDir photos/cat photos/dog @eaDir") == two
    # With clients, what holds classes of images is a client, and one more holds clients.
    assert classes("anna/cat anna/dog", clients=True) == ("anna", *two)
    assert classes("all/anna/cat all/bob/dog", clients=True) == ("anna", "bob", *two)
    assert classes("all/our/anna/cat all/our/bob/dog", clients=True) == ("anna", "bob", *two)
    assert classes("anna/photos/cat bob/photos/dog", clients=True) == ("anna", "bob", *two)
    assert classes("anna/cat/1 bob/dog", clients=True) == ("anna", "bob", *two)
    assert classes("anna/train/cat anna/test/dog", clients=True) == ("anna", *two)
    # So does one around the classes of a single client.
    plain = "anna/cat anna/dog"
    expected = ("anna", "bob", *two)
    assert classes(f"{plain} bob/photos/cat bob/photos/dog", clients=True) == expected
    assert classes(f"{plain} bob/my/own/cat bob/my/own/dog", clients=True) == expected
    assert classes("anna/train/cat anna/test/dog bob/all/cat bob/all/dog", clients=True) == expected
    assert classes("anna/train/cat bob/all/train/cat bob/all/test/dog", clients=True) == expected
    assert classes(f"{plain} bob/cat/dog bob/cat/old", clients=True) == expected
    assert classes(f"{plain} bob/cow/1 bob/cow/2", clients=True) == (
        "anna",
        "bob",
        "cat",
        "cow",
        "dog",
    )


def test_names_are_known_by_one_spelling(tmp_path: Path) -> None:
    nfc, nfd = "caf\u00e9", "cafe\u0301"
    for number, name in enumerate((f"{nfc}/1", f"{nfd}/1.0", f"{nfd} /Low", "bar/low")):
        _save(tmp_path / name / "0.png", number)
    for split, listed in (("train", f"{nfc}/1/0.png 0\n"), ("test", "")):
        for client in (nfc, "bar"):
            (tmp_path / "lists" / f"{client}_{split}.txt").parent.mkdir(exist_ok=True)
            (tmp_path / "lists" / f"{client}_{split}.txt").write_text(
                listed if client == nfc else "bar/low/0.png 1\n" * (split == "test")
            )
    for name in (f"{nfd}/1", "bar/low"):
        shutil.copytree(
            tmp_path / ("bar/low" if name == "bar/low" else f"{nfc}/1"), tmp_path / "lists" / name
        )
    listed_data = load(str(tmp_path / "lists"), folders_are_clients=True, classes=["1.00", "low"])
    assert (_owners(listed_data), _labels(listed_data)) == (["bar", nfc], ["low", "1"])
    shutil.rmtree(tmp_path / "lists")
    data = load(str(tmp_path), folders_are_clients=True)
    assert (data.classes, data.owner_names) == (("1.0", "Low", "low"), ("bar", nfc))
    assert dict(
        zip(_values(data), zip(_owners(data), _labels(data), strict=True), strict=True)
    ) == {
        0: (nfc, "1.0"),
        1: (nfc, "1.0"),
        2: (nfc, "Low"),
        3: ("bar", "low"),
    }
    assert data.notes == (
        "classes '1' and '1.0' are taken for one, '1.0'",
        "classes 'Low' and 'low' look alike: rename one if they are the same",
        "clients 'cafe\\u0301' and 'cafe\\u0301 ' and 'caf\\xe9' are taken for one, 'caf\u00e9'",
    )
    assert set(data.notes) <= set(describe_reading(data))


@pytest.mark.parametrize(
    "suffix", ["png", "jpg", "jpeg", "bmp", "webp", "tif", "tiff", "ppm", "JPG"]
)
def test_formats(tmp_path: Path, suffix: str) -> None:
    _save(tmp_path / f"a.{suffix}", (10, 120, 240), size=16)
    images = load(str(tmp_path)).images.int()
    assert images.shape == (1, 3, 16, 16)
    assert (images - torch.tensor([10, 120, 240])[:, None, None]).abs().max() < 6  # lossy ones


def test_image_size_resizes_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((16, 16), np.uint8)
    stripes[:, ::2] = 200
    _save(tmp_path / "a.png", stripes)
    _save(tmp_path / "b.png", np.full((8, 6), 40, np.uint8))
    images = load(str(tmp_path), image_size=4).images
    assert images.shape == (2, 1, 4, 4)
    assert (images[1] == 40).all()
    # Without antialiasing some pixels would miss every bright stripe, or every dark one.
    inner = images[0, 0, :, 1:3].int()
    assert (inner - 100).abs().max() <= 5


def test_images_of_different_sizes_meet_at_one(tmp_path: Path) -> None:
    _save(tmp_path / "a.png", np.zeros((20, 30), np.uint8))
    _save(tmp_path / "b.png", np.zeros((31, 40), np.uint8))
    assert load(str(tmp_path)).images.shape == (2, 1, 16, 16)
    assert load(str(tmp_path), shape=(3, 5, 7)).images.shape == (2, 3, 5, 7)
    assert load(str(tmp_path), image_size=12).images.shape == (2, 1, 12, 12)


def test_what_is_damaged_inside_has_no_say_in_the_size(tmp_path: Path) -> None:
    for name in "abc":
        _save(tmp_path / f"{name}.png", np.zeros((20, 30), np.uint8))
    _save(tmp_path / "d.png", random_images(0, 33, 40, 3))
    whole = (tmp_path / "d.png").read_bytes()
    (tmp_path / "d.png").write_bytes(whole[: len(whole) // 2])
    data = load(str(tmp_path))
    assert data.images.shape == (3, 1, 20, 30)
    assert data.names == ("a.png", "b.png", "c.png")
    assert data.reading is not None
    assert [file.name for file in data.reading.skipped] == ["d.png"]


@pytest.mark.parametrize(
    ("files", "clients", "message"),
    [
        ([], False, "holds no image"),
        ([], True, "has no client folders"),
        (["a/x.txt"], False, "root holds no image"),
        (["a/x.txt"], True, "root holds no image"),
        (["x.png", "a/x.png"], True, r"x\.png belongs to no client"),
        (["train/a/x.png", "val/a/x.png"], False, r"holds train/ and other folders \(val, …\)"),
    ],
)
def test_unclear_layouts_are_refused(
    tmp_path: Path, files: list[str], clients: bool, message: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in files:
        if name.endswith(".png"):
            _save(root / name, 1)
        else:
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text("text")
    with pytest.raises(UsageError, match=message) as caught:
        load(str(root), folders_are_clients=clients)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("broken", ["empty", "text", "cut", "postscript"])
def test_a_broken_image_is_named(tmp_path: Path, broken: str) -> None:
    _save(tmp_path / "a.png", 1, size=32)
    _save(tmp_path / "b.png", random_images(0, 32, 32))
    whole = (tmp_path / "b.png").read_bytes()
    content = {
        "empty": b"",
        "text": b"not an image",
        "cut": whole[: len(whole) // 2],
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n",
    }[broken]
    (tmp_path / "b.png").write_bytes(content)
    with pytest.raises(UsageError, match=r"1 of the 2 .* cannot be read.* b\.png \(.+") as caught:
        load(str(tmp_path), skip=0)
    assert "\n" not in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path / "a.png", 1, size=12)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_decode_upright", lambda *_: pytest.fail("it is decoded"))
        with pytest.raises(UsageError, match=r"12x12 pixels, more than data.max_pixels = 143"):
            load(str(tmp_path), max_pixels=143)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # PIL would refuse over 20
    assert load(str(tmp_path), max_pixels=144).images.shape == (1, 1, 12, 12)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_files_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tmp_path / "images"
    _save(images / "a" / "0.png", 1)
    _save(images / "b" / "0.png", 2)
    first = load(str(images))

    def fail(*_: object) -> None:
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(image_files, "open_image", fail)
        again = load(str(images))
        as_clients = load(str(images), folders_are_clients=True)
        with pytest.raises(AssertionError, match="decoded again"):
            load(str(images), image_size=2)
    assert torch.equal(again.images, first.images)
    assert (_labels(again), _owners(as_clients)) == (["a", "b"], ["a", "b"])

    _save(images / "b" / "0.png", 3)
    os.utime(images / "b" / "0.png", ns=(0, 1))
    assert _values(load(str(images))) == [1, 3]
    _save(images / "b" / "1.png", 4)
    assert _values(load(str(images))) == [1, 3, 4]


def test_names_that_are_numbers_are_shown_as_they_are_written(tmp_path: Path) -> None:
    for value, name in enumerate(("001/0007/1", "001/1.10/2", "2/7.0/3", "2/1.1/4"), 1):
        _save(tmp_path / f"{name}.png", value)
    data = load(str(tmp_path), folders_are_clients=True)
    assert (data.owner_names, data.classes) == (("001", "2"), ("0007", "1.1", "1.10"))
    chosen = load(str(tmp_path), folders_are_clients=True, classes=["7"])
    assert (chosen.classes, _values(chosen)) == (("0007",), [1, 3])
