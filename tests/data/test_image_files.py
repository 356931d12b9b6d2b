"""Files as they are: each is read right, or left out with its reason."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ccfcpp.core.config import DataConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load, open_images
from tests.support import traps
from tests.support.traps import COLOUR, GREY, Trap

GROUPS: dict[Callable[[], Iterator[Trap]], str] = {
    traps.orientations: "",
    traps.depths: "",
    traps.modes: "",
    traps.names: "",
    traps.dicoms: "pydicom",
    traps.heics: "pillow_heif",
}


def group_of(make: Callable[[], Iterator[Trap]]) -> list[Trap]:
    if (needed := GROUPS[make]) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    return list(make())


@pytest.mark.parametrize("make", GROUPS, ids=lambda make: make.__name__)
def test_what_can_be_read_is_read_right(tmp_path: Path, make: Callable[[], Iterator[Trap]]) -> None:
    files = group_of(make)
    traps.write(tmp_path / "photos", files)
    by_name = {trap.name: trap for trap in files}
    data = load(str(tmp_path / "photos"))
    assert data.reading is not None
    assert data.skipped == 0, data.reading.rows
    assert set(data.names) == by_name.keys()
    for name, image in zip(data.names, data.images.numpy(), strict=True):
        expected = by_name[name].pixels
        assert expected is not None
        difference = np.abs(image.astype(int) - expected).max()
        assert difference <= by_name[name].tolerance, name
    for file in data.reading.files:
        expected = by_name[file.name].pixels
        assert file.header is not None
        assert expected is not None
        assert (file.header.channels, file.header.height, file.header.width) == expected.shape


def test_what_cannot_be_read_is_left_out_with_its_reason(tmp_path: Path) -> None:
    files = list(traps.broken())
    traps.write(tmp_path, [*files, Trap("good.png", traps.encoded(traps.last(COLOUR), "PNG"))])
    data = load(str(tmp_path), skip=0.95)
    assert data.names == ("good.png",)
    assert data.reading is not None
    reasons = {file.name: file.reason for file in data.reading.skipped}
    assert reasons.keys() == {trap.name for trap in files}
    for trap in files:
        assert trap.reason in reasons[trap.name]
        assert reasons[trap.name]
        assert "\n" not in reasons[trap.name]
    counted = {file.name for file in data.reading.skipped if file.is_image}
    assert counted == {trap.name for trap in files if trap.counts}


def test_a_huge_image_is_read_where_it_may_be(tmp_path: Path) -> None:
    traps.write(tmp_path, [Trap("a.png", traps.encoded(GREY[0], "PNG"))])
    with pytest.raises(UsageError, match=r"it has 32x24 pixels, more than data\.max_pixels = 767"):
        load(str(tmp_path), max_pixels=767)
    assert load(str(tmp_path), max_pixels=768).names == ("a.png",)


def test_a_window_is_alike_for_all_images(tmp_path: Path) -> None:
    values = traps.scaled(GREY[0], 100, 1000)
    pytest.importorskip("pydicom")
    window: dict[str, Any] = {"WindowCenter": 1, "WindowWidth": 2}
    dark: dict[str, Any] = {"PhotometricInterpretation": "MONOCHROME1"}
    traps.write(
        tmp_path,
        [
            Trap("1.png", traps.encoded(values, "PNG")),
            Trap("2.dcm", traps.dicom(values, **window)),
            Trap("3.dcm", traps.dicom(values, **dark)),
            Trap("4.png", traps.encoded(GREY[0], "PNG")),
        ],
    )
    images = load(str(tmp_path), window=(200, 600)).images.numpy()
    expected = np.rint((values.astype(float).clip(200, 600) - 200) * 255 / 400).astype(np.uint8)
    np.testing.assert_array_equal(images[0, 0], expected)
    np.testing.assert_array_equal(images[1, 0], expected)
    np.testing.assert_array_equal(images[2, 0], 255 - expected)
    np.testing.assert_array_equal(images[3], GREY)


def test_padding_is_no_part_of_the_range(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    values = np.arange(0, 1024, 16, dtype=np.int16).reshape(8, 8)
    padded = np.where(np.eye(8) > 0, -2048, values).astype(np.int16)
    traps.write(tmp_path, [Trap("0.dcm", traps.dicom(padded, PixelPaddingValue=-2048))])
    shown = values[np.eye(8) == 0].astype(float)
    expected = np.rint((shown - shown.min()) * 255 / (shown.max() - shown.min()))
    (image,) = load(str(tmp_path)).images.numpy()[:, 0]
    np.testing.assert_array_equal(image[np.eye(8) == 0], expected)
    assert (image[np.eye(8) > 0] == 0).all()


@pytest.mark.parametrize(("ink", "ground"), [(0, 255), (255, 0)])
def test_a_drawing_in_alpha_is_seen(tmp_path: Path, ink: int, ground: int) -> None:
    shape = np.eye(8, dtype=np.uint8) * 255
    same = np.full((8, 8), ink, np.uint8)
    traps.write(
        tmp_path,
        [
            Trap("0.png", traps.encoded(np.dstack([same, same, same, shape]), "PNG")),
            Trap("1.png", traps.encoded(np.dstack([same, shape]), "PNG")),
        ],
    )
    for image in load(str(tmp_path)).images.numpy():
        np.testing.assert_array_equal(image, np.where(shape, ink, ground)[None].repeat(3, 0))


def test_a_line_says_what_of_images_is_not_read(tmp_path: Path) -> None:
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) + 29_000
    traps.write(tmp_path / "deep", [Trap("0.png", traps.encoded(deep, "PNG"))])
    (note,) = load(str(tmp_path / "deep")).notes
    assert note.startswith("1 image of more than 8 bits: each is mapped to 8 by its own range")
    assert open_images(str(tmp_path / "deep"), data=DataConfig(window=(0, 65535))).notes == ()
    pages = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (0, 90)]
    (tmp_path / "pages").mkdir()
    pages[0].save(tmp_path / "pages" / "0.tiff", save_all=True, append_images=pages[1:])
    (note,) = load(str(tmp_path / "pages")).notes
    assert note == "of 1 file with several frames or pages the first is read"
    flat = Trap("0.png", traps.encoded(np.eye(8, dtype=np.uint8), "PNG"))
    traps.write(tmp_path / "flat", [flat])
    assert open_images(str(tmp_path / "flat"), data=DataConfig(window=(0, 65535))).notes == (
        "--window has no effect, since no image has more than 8 bits",
    )


def test_images_of_one_value_are_not_black(tmp_path: Path) -> None:
    flat = np.full((4, 4), 700, np.uint16)
    traps.write(tmp_path, [Trap("a.png", traps.encoded(flat, "PNG"))])
    assert set(load(str(tmp_path)).images.flatten().tolist()) == {128}


@pytest.mark.parametrize(
    ("package", "name", "content", "extra"),
    [
        ("pydicom", "a.dcm", bytes(128) + b"DICM", "dicom"),
        ("pillow_heif", "a.heic", b"\0\0\0\x18ftypheic", "heic"),
    ],
)
def test_an_extra_that_is_missing_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    name: str,
    content: bytes,
    extra: str,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    traps.write(tmp_path, [Trap(name, content)])
    with pytest.raises(UsageError, match=rf"needs an extra: pip install '\.\[{extra}\]'"):
        load(str(tmp_path))


def some(folder: Path, good: int, bad: int) -> str:
    content = traps.encoded(GREY[0], "PNG")
    traps.write(folder, [Trap(f"good-{n}.png", content) for n in range(good)])
    traps.write(folder, [Trap(f"bad-{n:02}.png", b"no image") for n in range(bad)])
    return str(folder)


@pytest.mark.parametrize(
    ("good", "bad", "skip", "fits"),
    [
        (1, 1, 0.01, True),  # one always may
        (1, 1, 0.0, False),
        (8, 2, 0.01, False),
        (8, 2, 0.2, True),
        (7, 3, 0.2, False),
        (71, 29, 0.29, True),
        (0, 1, 1.0, False),
    ],
)
def test_files_are_left_out_up_to_a_share(
    tmp_path: Path, good: int, bad: int, skip: float, fits: bool
) -> None:
    place = some(tmp_path / "photos", good, bad)
    if fits:
        assert load(place, skip=skip).skipped == bad
        return
    with pytest.raises(UsageError) as caught:
        load(place, skip=skip)
    assert "\n" not in str(caught.value)
    assert all(f"bad-{n:02}.png (it is no image" in str(caught.value) for n in range(bad))


def test_of_many_files_a_refusal_names_twenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    place = some(tmp_path / "photos", 2, 25)
    with pytest.raises(UsageError) as caught:
        load(place)
    message = str(caught.value)
    assert message.count("it is no image") == 20
    assert message.endswith(f"; and 5 more: ccfcpp inspect {place} --json lists all")
    assert not list((tmp_path / "temporary").iterdir())  # nobody would remove a file


def owners(data: ImageData) -> list[str]:
    assert data.owners is not None
    return [data.owner_names[owner] for owner in data.owners.tolist()]


def test_an_empty_client_is_named(tmp_path: Path) -> None:
    some(tmp_path / "photos" / "ann", 2, 1)
    some(tmp_path / "photos" / "bob", 0, 1)
    (tmp_path / "photos" / "eve").mkdir()
    data = load(str(tmp_path / "photos"), folders_are_clients=True, skip=0.5)
    assert (data.owner_names, owners(data)) == (("ann",), ["ann", "ann"])
    assert data.reading is not None
    assert data.reading.empty == ("eve",)
    (tmp_path / "none" / "ann").mkdir(parents=True)
    with pytest.raises(UsageError, match="none holds no image"):
        load(str(tmp_path / "none"), folders_are_clients=True)


def test_names_and_files_come_from_archives_and_caches_too(tmp_path: Path) -> None:
    import shutil

    place = some(tmp_path / "photos", 3, 1)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", place)
    for path in (place, archive):
        for _ in range(2):
            data = load(path)
            assert data.names == ("good-0.png", "good-1.png", "good-2.png")
            assert data.skipped == 1
    flat = open_images(place, data=DataConfig(), flat=True, shape=(1, 24, 32))
    assert flat.names == data.names


def test_folders_of_any_depth(tmp_path: Path) -> None:
    content = traps.encoded(GREY[0], "PNG")
    names = ["ann/2023/may/1.png", "ann/2024/2.png", "bob/3.png", "bob/old/4.png"]
    traps.write(tmp_path, [Trap(name, content) for name in names])
    data = load(str(tmp_path), folders_are_clients=True)
    assert sorted(data.names) == names
    assert owners(data) == ["ann", "ann", "bob", "bob"]
    assert data.labels is None  # bob's are in no class
    data = load(str(tmp_path))
    assert data.classes == ("ann", "bob")
    (tmp_path / "bob" / "up").symlink_to(tmp_path)
    assert len(load(str(tmp_path))) == 4
