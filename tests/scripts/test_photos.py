"""Folders of photos that a script makes of a data set."""

from pathlib import Path

import numpy as np

from ccfcpp.data.open import load
from scripts.photos import main


def test_photos_are_images_of_the_classes_drawn(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    images = source.integers(0, 256, (40, 3, 8, 8)).astype(np.uint8)
    labels = np.arange(40) % 5
    np.savez(tmp_path / "all.npz", images=images, labels=labels)
    main(str(tmp_path / "all.npz"), tmp_path / "photos", classes=3, each=4, seed=1)
    made = load(str(tmp_path / "photos"))
    assert made.labels is not None
    assert made.labels.bincount().tolist() == [4, 4, 4]
    kinds = [int(folder.name.removeprefix("class-")) for folder in (tmp_path / "photos").iterdir()]
    whole = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    found = [whole[image.numpy().tobytes()] for image in made.images]
    assert sorted(set(found)) == sorted(kinds)
