"""Neighbours, the features by which they are alike, and turns, against the obvious loops."""

import math
from collections import Counter
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan import neighbours
from ccfcpp.clustering.systems.fed_scan import neighbours as features
from ccfcpp.clustering.systems.fed_scan.clients import Pairs
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.neighbours import draw_neighbours, nearest_neighbours
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.synchronised.descent import select_images


@given(st.integers(2, 12), st.integers(1, 14), st.integers(0, 10**6))
def test_they_are_the_most_similar_others(samples: int, count: int, seed: int) -> None:
    points = torch.randn(samples, 5, generator=torch.Generator().manual_seed(seed))
    found = nearest_neighbours(points, count)
    assert found.shape == (samples, min(count, samples - 1))
    assert found.dtype == torch.int32
    for own, row in zip(range(samples), found.tolist(), strict=True):
        others = [other for other in range(samples) if other != own]
        cosines = {o: float(cosine_similarity(points[own], points[o], dim=0)) for o in others}
        assert own not in row
        assert len(set(row)) == len(row)
        best = sorted(cosines.values(), reverse=True)[: len(row)]
        assert [cosines[other] for other in row] == pytest.approx(best, abs=1e-6)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    whole = nearest_neighbours(points, 7)
    monkeypatch.setattr(neighbours, "_SIMILARITIES", 120)
    assert torch.equal(nearest_neighbours(points, 7), whole)


def test_one_that_is_alone_is_its_own_neighbour() -> None:
    assert nearest_neighbours(torch.ones(1, 3), 10).tolist() == [[0]]


@pytest.mark.parametrize("spread", [0.2, 1.0], ids=["kinds apart", "one cloud"])
def test_an_index_finds_almost_all_of_them(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(20, 16, generator=generator)
    points = kinds.repeat(150, 1) + spread * torch.randn(3000, 16, generator=generator)
    exact = nearest_neighbours(points, 5)
    monkeypatch.setattr(neighbours, "_EXACT_UP_TO", 1000)
    found = nearest_neighbours(points, 5)
    assert (found.dtype, found.shape) == (exact.dtype, exact.shape)
    assert not bool((found == torch.arange(3000).unsqueeze(1)).any())
    shared = (found.unsqueeze(2) == exact.unsqueeze(1)).any(dim=2).double().mean()
    assert float(shared) > 0.97


def test_an_index_of_points_that_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_EXACT_UP_TO", 10)
    found = nearest_neighbours(torch.ones(300, 4), 3)
    assert found.shape == (300, 3)
    assert 0 <= int(found.min()) <= int(found.max()) < 300


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-7])
def test_first_neighbours_of_vectors_do_not_depend_on_their_scale(scale: float) -> None:
    kinds = torch.tensor([[1.0, 0.2], [0.2, 1.0]]).repeat_interleave(20, dim=0)
    noise = torch.randn(40, 2, generator=Randomness(0).generator("noise"))
    client = Client(0, "client 0", scale * (kinds + 0.03 * noise))
    pairs = Pairs(ScanConfig(neighbours=5), cast(Any, None), cast(Any, None))
    pairs.find_neighbours(EncoderState({}, 0), client)
    found = client.memory["neighbours"].long() // 20
    assert torch.equal(found, torch.arange(2).repeat_interleave(20).unsqueeze(1).expand(40, 5))


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
    torch.testing.assert_close(features.colour_histograms(images), expected)


def test_colours_stand_beside_shapes_where_there_are_any() -> None:
    images = some_images(4, 3, 8)
    found = features.shapes_and_colours(images)
    expected = torch.cat(
        [features.oriented_gradients(images), 0.7 * features.colour_histograms(images)], dim=1
    )
    torch.testing.assert_close(found, expected)
    grey = images[:, :1]
    torch.testing.assert_close(features.shapes_and_colours(grey), features.oriented_gradients(grey))


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
    assert features.oriented_gradients(images[:1].expand(4, -1, -1, -1)).abs().max() < 1e-3


def test_gradients_heed_the_shape_more_than_the_light() -> None:
    """A bar in another light is nearer to itself than to a bar that lies across."""
    upright = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
    upright[..., 6:9] = 200
    images = torch.cat([upright, upright // 4, upright.mT, upright.mT // 4])
    found = features.oriented_gradients(images)
    similar = found @ found.T
    assert float(similar[0, 1]) > 0.9 > float(similar[0, 2:].max())
    assert float(similar[2, 3]) > 0.9


@given(st.integers(1, 30), st.floats(0.01, 40), st.integers(1, 40))
def test_all_images_have_their_turn_equally_often(samples: int, share: float, steps: int) -> None:
    source = Randomness(3).of_client(1)
    shown = [select_images(samples, share, step, source).tolist() for step in range(steps)]
    counts = Counter(image for images in shown for image in images)
    in_all = [counts[image] for image in range(samples)]
    assert max(in_all) - min(in_all) <= 1
    assert abs(sum(in_all) - steps * share) < 1
    assert all(abs(len(images) - share) < 1 for images in shown)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(2, 40))
def test_all_clients_together_show_the_batch(sizes: list[int], batch: int) -> None:
    shown = sum(
        len(select_images(size, batch * size / sum(sizes), step, Randomness(0).of_client(number)))
        for step in range(10)
        for number, size in enumerate(sizes)
    )
    assert abs(shown - 10 * batch) < len(sizes)


@given(st.integers(1, 30), st.floats(0.01, 40), st.floats(0, 9), st.integers(0, 40))
def test_who_fills_the_batch_goes_on_to_the_images_that_come_next(
    samples: int, share: float, more: float, step: int
) -> None:
    source = Randomness(3).of_client(1)
    rest = [
        select_images(samples, share, later, source).tolist() for later in range(step, step + 400)
    ]
    coming = [image for images in rest for image in images]
    found = select_images(samples, share, step, source, more=more).tolist()
    assert abs(len(found) - share - more) < 1
    known = min(len(found), len(coming))
    assert found[:known] == coming[:known]
    assert found[: len(rest[0])] == rest[0]


def test_small_clients_do_not_all_show_an_image_in_the_same_step() -> None:
    shown = [
        sum(len(select_images(70, 1.4, step, Randomness(0).of_client(n))) for n in range(200))
        for step in range(8)
    ]
    assert max(shown) < 1.15 * min(shown)


def test_a_turn_does_not_depend_on_the_round() -> None:
    source = Randomness(0).of_client(2)
    for step in range(5):
        first, second = (select_images(20, 7.3, step, source.at_round(number)) for number in (1, 4))
        assert torch.equal(first, second)


def test_neighbours_are_drawn_from_those_of_the_image() -> None:
    neighbours = torch.tensor([[1, 2], [0, 2], [0, 1]], dtype=torch.int32)
    chosen = torch.tensor([2, 0, 1] * 30)
    drawn = draw_neighbours(neighbours, chosen, Randomness(0), 0)
    assert all(int(d) in neighbours[c].tolist() for c, d in zip(chosen, drawn, strict=True))
    assert len(set(zip(chosen.tolist(), drawn.tolist(), strict=True))) == 6
