"""Features of the first neighbours, against the obvious loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.clustering.scan import neighbours as features


def some_images(count: int, channels: int, side: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8
    )


def histogram(grey: torch.Tensor, row: int, column: int) -> list[float]:
    """Of the window whose first pixel is (4 row - 2, 4 column - 2)."""
    side = len(grey)

    def at(y: int, x: int) -> float:
        return float(grey[min(max(y, 0), side - 1), min(max(x, 0), side - 1)])

    bins = [0.0] * 8
    for y in range(4 * row - 2, 4 * row + 6):
        for x in range(4 * column - 2, 4 * column + 6):
            if not (0 <= y < side and 0 <= x < side):
                continue
            across, down = at(y, x + 1) - at(y, x - 1), at(y + 1, x) - at(y - 1, x)
            place = (math.atan2(down, across) / (2 * math.pi) * 8) % 8
            low = int(place) % 8
            size = math.hypot(across, down) / 64
            bins[low] += size * (1 - (place - int(place)))
            bins[(low + 1) % 8] += size * (place - int(place))
    return bins


@settings(max_examples=10)
@given(st.sampled_from([8, 12, 13]), st.sampled_from([1, 3]), st.integers(0, 1000))
def test_histograms_are_those_of_a_loop(side: int, channels: int, seed: int) -> None:
    image = some_images(1, channels, side, seed).double() / 255
    found = features.histograms(image)[0]
    grey = image[0].mean(0).sqrt()
    rows = found.shape[1]
    assert found.shape == (8, rows, rows)
    expected = torch.tensor(
        [[histogram(grey, r, c) for c in range(rows)] for r in range(rows)], dtype=torch.float64
    ).permute(2, 0, 1)
    length = expected.norm(dim=0)
    expected = expected / (length + 0.05 * length.max() + 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=10)
@given(st.sampled_from([2, 5, 8]), st.integers(0, 1000))
def test_colours_are_those_of_a_loop(side: int, seed: int) -> None:
    images, half = some_images(3, 3, side, seed), side // 2
    counted = torch.zeros(3, 2, 2, 4, 4, 4)
    for number, image in enumerate(images):
        for y in range(side):
            for x in range(side):
                red, green, blue = (int(level) // 64 for level in image[:, y, x])
                counted[number, int(y >= half), int(x >= half), red, green, blue] += 1
    expected = counted.flatten(1).sqrt()
    expected = expected - expected.mean(dim=0)
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(features.colours(images), expected)


def test_colours_stand_beside_shapes_where_there_are_any() -> None:
    images = some_images(4, 3, 8)
    found = features.shapes_and_colours(images)
    expected = torch.cat([features.gradients(images), 0.7 * features.colours(images)], dim=1)
    torch.testing.assert_close(found, expected)
    grey = images[:, :1]
    torch.testing.assert_close(features.shapes_and_colours(grey), features.gradients(grey))


@pytest.mark.parametrize("name", sorted(features.FEATURES))
def test_each_image_has_finite_features_and_parts_do_not_matter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some_images(7, 3, 8)
    images[0] = 0
    found = features.FEATURES[name](images)
    assert found.shape[0] == 7
    assert found.ndim == 2
    assert bool(found.isfinite().all())
    monkeypatch.setattr(features, "_BATCH", 2)
    torch.testing.assert_close(features.FEATURES[name](images), found)


def test_centred_pixels_and_gradients_do_not_see_what_all_images_share() -> None:
    images = some_images(5, 1, 8) // 2
    brighter = images + 60
    torch.testing.assert_close(features.centred_pixels(brighter), features.centred_pixels(images))
    assert features.gradients(images[:1].expand(4, -1, -1, -1)).abs().max() < 1e-3


def test_gradients_heed_the_shape_more_than_the_light() -> None:
    """A bar in another light is nearer to itself than to a bar that lies across."""
    upright = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
    upright[..., 6:9] = 200
    images = torch.cat([upright, upright // 4, upright.mT, upright.mT // 4])
    found = features.gradients(images)
    similar = found @ found.T
    assert float(similar[0, 1]) > 0.9 > float(similar[0, 2:].max())
    assert float(similar[2, 3]) > 0.9
