"""Images by themselves: which are found, under what names, and which are refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccfcpp.core.config import DataConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.data.image_size import Shape
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import open_images

GREY, COLOUR = (1, 4, 6), (3, 4, 6)


def photos(path: Path, shape: Shape) -> ImageData:
    return open_images(str(path), data=DataConfig(), flat=True, shape=shape)


def save(path: Path, value: int, size: tuple[int, int] = (4, 6), colour: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3) if colour else size, value, np.uint8)
    Image.fromarray(pixels).save(path)


def values(photos: ImageData) -> dict[str, int]:
    return dict(zip(photos.called, photos.images[:, 0, 0, 0].tolist(), strict=True))


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
    found = values(photos(folder, GREY))
    assert found == EXPECTED
    assert list(found) == list(EXPECTED)


def test_arrays_are_named_by_their_index(tmp_path: Path) -> None:
    pixels = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((4, 6), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.array(["x", "y", "x"]))
    found = photos(tmp_path / "a.npz", GREY)
    assert values(found) == {"0": 0, "1": 1, "2": 2}
    assert photos(tmp_path / "a.npz", COLOUR).images.shape == (3, 3, 4, 6)
    assert photos(tmp_path / "a.npz", (1, 5, 5)).images.shape == (3, 1, 5, 5)


def test_what_does_not_fit_is_said_with_the_mend(tmp_path: Path) -> None:
    def refused(path: Path, shape: tuple[int, int, int] = GREY) -> str:
        with pytest.raises(UsageError) as caught:
            photos(path, shape)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    save(tmp_path / "colour/a.png", 1, colour=True)
    assert "a.png (it is in colour, and grey images are wanted" in refused(tmp_path / "colour")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8, 3), np.uint8))
    assert refused(tmp_path / "a.npz").endswith("and grey ones are wanted: make them grey")
    (tmp_path / "empty").mkdir()
    assert "empty holds no image (.png" in refused(tmp_path / "empty")
    assert "there is no " in refused(tmp_path / "none")
    (tmp_path / "a.txt").write_text("")
    assert "is neither an .npz file nor an image folder" in refused(tmp_path / "a.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.png").write_bytes(b"no image")
    assert "a.png (it is no image of a kind that is read)" in refused(tmp_path / "broken")
    (tmp_path / "a.zip").write_bytes(b"no archive")
    assert "a.zip cannot be read" in refused(tmp_path / "a.zip")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read(folder: Path) -> None:
    (folder / "2").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        photos(folder, GREY)
    (folder / "2").chmod(0o700)
