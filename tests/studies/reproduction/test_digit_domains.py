"""The digits as four domains: each image is in one of them, shown in that domain's way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits

from ccfcpp.data.open import load
from ccfcpp.studies.reproduction.plan import write_digit_domains

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def domains(folder: Path) -> Path:
    return write_digit_domains(folder)


def originals() -> Pixels:
    pixels: Pixels = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    return pixels


def shown(domain: Path) -> dict[int, Pixels]:
    """The images of a domain, by their numbers among the digits."""
    return {int(path.stem): np.asarray(Image.open(path)) for path in domain.rglob("*.png")}


def test_each_digit_is_in_one_of_four_domains_of_one_size(domains: Path) -> None:
    parts = {path.name: sorted(shown(path)) for path in domains.iterdir()}
    assert set(parts) == {"plain", "inverted", "turned", "blurred"}
    assert sorted(number for part in parts.values() for number in part) == list(range(1797))
    assert {len(part) for part in parts.values()} == {450, 447}
    # At random: not the first quarter, the second and so on.
    assert all(part[-1] - part[0] > 1700 for part in parts.values())


def test_each_image_is_in_the_folder_of_its_class(domains: Path) -> None:
    classes = load_digits().target
    for path in domains.rglob("*.png"):
        assert path.parent.name == str(classes[int(path.stem)])


@pytest.mark.parametrize(
    ("domain", "show"),
    [
        ("plain", lambda image: image),
        ("inverted", lambda image: 255 - image),
        ("turned", lambda image: np.rot90(image)),
    ],
)
def test_pixels_of_a_domain(
    domains: Path, domain: str, show: Callable[[Pixels], NDArray[Any]]
) -> None:
    before = originals()
    for number, image in shown(domains / domain).items():
        np.testing.assert_array_equal(image, show(before[number]))


def test_the_blurred_are_about_a_gaussian_of_one_pixel(domains: Path) -> None:
    before = originals().astype(float)
    images = shown(domains / "blurred")
    expected = [gaussian_filter(before[number], 1, mode="nearest") for number in images]
    # Pillow's is an approximation by boxes.
    assert np.abs(np.array(list(images.values())) - np.array(expected)).mean() < 4
    assert np.abs(np.array(list(images.values())) - before[list(images)]).mean() > 20


def test_the_folder_is_read_as_four_clients(domains: Path) -> None:
    data = load(str(domains), folders_are_clients=True)
    assert set(data.owner_names) == {"plain", "inverted", "turned", "blurred"}
    assert (len(data), data.classes) == (1797, tuple(map(str, range(10))))


def test_what_is_written_is_not_written_again(domains: Path, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in domains.rglob("*")}
    assert write_digit_domains(folder) == domains
    assert {path: path.stat().st_mtime_ns for path in domains.rglob("*")} == before


def test_what_was_written_in_part_is_written_again(domains: Path, tmp_path: Path) -> None:
    part = tmp_path / "digit-domains" / "plain"
    part.mkdir(parents=True)
    again = write_digit_domains(tmp_path)
    assert again.parent == tmp_path
    expected, found = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.png")}
        for root in (domains, again)
    )
    assert found == expected
