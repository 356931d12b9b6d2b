"""Features by the sparse manifold transform, against the obvious loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ccfcpp.clustering.transform import features as transform
from ccfcpp.clustering.transform.features import PATCH, THRESHOLD, Transform

ATOMS, DIMENSIONS = 20, 5


def some_images(count: int, channels: int, height: int, width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = count, channels, height, width
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def some_transform(channels: int, seed: int) -> Transform:
    generator = torch.Generator().manual_seed(seed)
    values = channels * PATCH**2
    whitening = torch.randn(values, values, generator=generator)
    dictionary = F.normalize(torch.randn(ATOMS, values, generator=generator), dim=1)
    embedding = torch.randn(ATOMS, DIMENSIONS, generator=generator)
    return Transform(whitening + whitening.T, dictionary, embedding)


def code(known: Transform, image: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """Which atoms one patch resembles."""
    assert known.whitening is not None
    assert known.dictionary is not None
    patch = (image[:, row : row + PATCH, column : column + PATCH].double() / 255).flatten()
    direction = known.whitening.double().T @ (patch - patch.mean())
    cosines = known.dictionary.double() @ direction / direction.norm()
    # A cosine at the threshold may be rounded to either side.
    assert float((cosines - THRESHOLD).abs().min()) > 1e-6
    found: torch.Tensor = (cosines >= THRESHOLD).double()
    return found


def described(known: Transform, image: torch.Tensor) -> torch.Tensor:
    assert known.embedding is not None
    rows, columns = image.shape[1] - PATCH + 1, image.shape[2] - PATCH + 1
    down, across = min(6, rows), min(6, columns)
    parts = []
    for r in range(down):
        for c in range(across):
            place = torch.zeros(DIMENSIONS, dtype=torch.float64)
            for row in range(r * rows // down, math.ceil((r + 1) * rows / down)):
                for column in range(c * columns // across, math.ceil((c + 1) * columns / across)):
                    place += code(known, image, row, column) @ known.embedding.double()
            parts.append(place / max(float(place.norm()), 1e-12))
    return torch.cat(parts)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1, 3]), st.integers(8, 15), st.integers(8, 15), st.integers(0, 10**6))
def test_features_are_those_of_a_loop(channels: int, height: int, width: int, seed: int) -> None:
    images, known = some_images(4, channels, height, width, seed), some_transform(channels, seed)
    expected = torch.stack([described(known, image) for image in images])
    expected = F.normalize(expected - expected.mean(dim=0), dim=1)
    found = transform.features(known, images)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_parts_of_the_images_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    images, known = some_images(9, 3, 12, 12, 0), some_transform(3, 0)
    whole = transform.features(known, images)
    monkeypatch.setattr(transform, "_VALUES", 2 * 49 * ATOMS)
    torch.testing.assert_close(transform.features(known, images), whole)


@pytest.mark.parametrize("shape", [(64, 64), (40, 32), (96, 33)])
def test_larger_images_are_reduced(shape: tuple[int, int]) -> None:
    images, known = some_images(3, 3, *shape, 0), some_transform(3, 0)
    assert transform.reduced(images).shape == (3, 3, 32, 32)
    assert transform.places(images) == (27, 27)
    assert transform.features(known, images).shape == (3, 36 * DIMENSIONS)


def test_an_even_image_has_finite_features() -> None:
    images = torch.full((3, 1, 12, 12), 7, dtype=torch.uint8)
    images[0] = some_images(1, 1, 12, 12, 1)
    assert transform.features(some_transform(1, 0), images).isfinite().all()
