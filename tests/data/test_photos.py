"""Images by themselves: which are found, under what names, and which are refused."""

import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccfcpp.core.errors import UsageError
from ccfcpp.data.photos import Photos, read_photos

GREY, COLOUR = (1, 4, 6), (3, 4, 6)


def save(path: Path, value: int, size: tuple[int, int] = (4, 6), colour: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3) if colour else size, value, np.uint8)
    Image.fromarray(pixels).save(path)


def values(photos: Photos) -> dict[str, int]:
    return dict(zip(photos.names, photos.images[:, 0, 0, 0].tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for value, name in enumerate(
        ("b.png", "a.JPG", "10.bmp", "deep/er/c.png", "2/z.png", "2/y.pgm")
    ):
        save(folder / name, 10 * value)
    for name in (".hidden.png", ".thumbnails/a.png"):
        save(folder / name, 99)
    (folder / "notes.txt").write_text("no image")
    return folder


EXPECTED = {
    "10.bmp": 20,
    "a.JPG": 10,
    "b.png": 0,
    "2/y.pgm": 50,
    "2/z.png": 40,
    "deep/er/c.png": 30,
}


def test_images_at_any_depth(folder: Path) -> None:
    found = values(read_photos(folder, GREY, resized=False))
    assert found == EXPECTED
    assert list(found) == list(EXPECTED)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_archives_hold_the_same(folder: Path, tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"photos{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path in folder.rglob("*"):
                zipped.write(path, path.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz" if suffix == ".tar.gz" else "w") as tar:
            tar.add(folder, ".")
    found = values(read_photos(archive, GREY, resized=False))
    assert list(found.items()) == list(EXPECTED.items())


def test_arrays_are_named_by_their_index(tmp_path: Path) -> None:
    pixels = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((4, 6), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array(["x", "y", "x"]))
    found = read_photos(tmp_path / "a.npz", GREY, resized=False)
    assert values(found) == {"0": 0, "1": 1, "2": 2}
    assert read_photos(tmp_path / "a.npz", COLOUR, resized=False).images.shape == (3, 3, 4, 6)
    assert read_photos(tmp_path / "a.npz", (1, 5, 5), resized=True).images.shape == (3, 1, 5, 5)


def test_grey_images_fill_three_channels(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 7)
    images = read_photos(tmp_path, COLOUR, resized=False).images
    assert images.shape == (1, 3, 4, 6)
    assert (images == 7).all()


def test_images_are_resized_where_the_runs_were(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 7, (9, 5))
    save(tmp_path / "b.png", 8, (4, 4))
    assert read_photos(tmp_path, (1, 4, 4), resized=True).images.shape == (2, 1, 4, 4)


def test_a_link_to_a_folder_is_not_followed(folder: Path) -> None:
    (folder / "2" / "up").symlink_to(folder)
    assert values(read_photos(folder, GREY, resized=False)) == EXPECTED


def test_what_does_not_fit_is_said_with_the_mend(tmp_path: Path) -> None:
    def refused(path: Path, shape: tuple[int, ...] = GREY) -> str:
        with pytest.raises(UsageError) as caught:
            read_photos(path, shape, resized=False)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    save(tmp_path / "large/a.png", 1, (8, 8))
    assert refused(tmp_path / "large").endswith(
        "are 8x8 with 1 channel, and the model is for 6x4 with 1 channel: resize them to 6x4"
    )
    save(tmp_path / "colour/a.png", 1, colour=True)
    assert refused(tmp_path / "colour").endswith(
        "are 6x4 with 3 channels, and the model is for 6x4 with 1 channel: make them grey"
    )
    save(tmp_path / "both/a.png", 1, (8, 8), colour=True)
    assert refused(tmp_path / "both").endswith(": resize them to 6x4 and make them grey")
    save(tmp_path / "mixed/a.png", 1)
    save(tmp_path / "mixed/b.png", 1, (8, 8))
    assert refused(tmp_path / "mixed").endswith("a.png is 6x4: resize all to 6x4")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8), np.uint8))
    assert "a.npz are 8x8 with 1 channel" in refused(tmp_path / "a.npz")
    (tmp_path / "empty").mkdir()
    assert "empty holds no image (.png" in refused(tmp_path / "empty")
    assert "there is no " in refused(tmp_path / "none")
    (tmp_path / "a.txt").write_text("")
    assert "is neither a folder of images, nor an archive" in refused(tmp_path / "a.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.png").write_bytes(b"no image")
    assert "a.png cannot be read as an image" in refused(tmp_path / "broken")
    (tmp_path / "a.zip").write_bytes(b"no archive")
    assert "a.zip cannot be read" in refused(tmp_path / "a.zip")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read(folder: Path) -> None:
    (folder / "2").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        read_photos(folder, GREY, resized=False)
    (folder / "2").chmod(0o700)
