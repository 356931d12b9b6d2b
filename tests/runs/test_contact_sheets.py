"""Sheets of small images."""

import io

import numpy as np
import torch
from PIL import Image

from ccfcpp.runs.contact_sheets import as_png, contact_sheet


def test_images_stand_in_rows_enlarged_on_white() -> None:
    images = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 28, 20)
    picture = contact_sheet(images, columns=2)
    assert picture.shape == (2 * (2 * 28 + 2) + 2, 2 * (2 * 20 + 2) + 2, 3)
    assert (picture[2:58, 2:42] == 0).all()
    assert (picture[2:58, 44:84] == 1).all()
    assert (picture[60:116, 2:42] == 2).all()
    assert (picture[60:116, 44:84] == 255).all()
    assert (picture[:2] == 255).all()
    assert (picture[58:60] == 255).all()


def test_colours_are_kept() -> None:
    image = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    picture = contact_sheet(image, columns=1)
    assert picture[2, 2].tolist() == [10, 20, 30]
    assert picture.shape == (68, 68, 3)


def test_a_picture_survives_its_file() -> None:
    picture = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    read = np.asarray(Image.open(io.BytesIO(as_png(picture))))
    assert np.array_equal(read, picture.numpy())
