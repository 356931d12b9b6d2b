import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, gaussian_blur, render_views

IDENTITY = ViewsConfig(area=(1, 1), ratio=(1, 1), rotation=0, blur_probability=0)


def images(count: int, height: int, width: int) -> torch.Tensor:
    return torch.rand(count, 2, height, width, generator=Randomness(0).generator("images"))


def views_of(settings: ViewsConfig, batch: torch.Tensor, seed: int = 0) -> torch.Tensor:
    height, width = batch.shape[-2:]
    drawn = draw_views(len(batch), settings, (height, width), Randomness(seed).generator("views"))
    return render_views(batch, drawn)


def test_without_any_change_a_view_is_the_image() -> None:
    batch = images(3, 7, 5)
    whole = IDENTITY.model_copy(update={"ratio": (5 / 7, 5 / 7)})
    torch.testing.assert_close(views_of(whole, batch), batch)


def test_a_mirrored_view() -> None:
    batch = images(3, 6, 6)
    mirrored = views_of(IDENTITY.model_copy(update={"flip_probability": 1.0}), batch)
    torch.testing.assert_close(mirrored, batch.flip(-1))


@pytest.mark.parametrize("shape", [(8, 8), (6, 10)])
def test_a_rotation_keeps_pixel_distances(shape: tuple[int, int]) -> None:
    """Distances from the centre, in pixels, are the same in view and image on any aspect ratio."""
    height, width = shape
    whole = (width / height, width / height)
    settings = IDENTITY.model_copy(update={"rotation": 90.0, "ratio": whole})
    drawn = draw_views(400, settings, shape, Randomness(1).generator("views"))
    corner = torch.tensor([0.5, 0.25])
    source = drawn.transforms[:, :, :2] @ corner + drawn.transforms[:, :, 2]
    length = (source * torch.tensor([width / 2, height / 2])).norm(dim=1)
    expected = math.hypot(0.5 * width / 2, 0.25 * height / 2)
    torch.testing.assert_close(length, torch.full((400,), expected))


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 50))
def test_crops_keep_to_their_ranges_and_inside_the_image(
    height: int, width: int, seed: int
) -> None:
    settings = ViewsConfig(rotation=0, area=(0.3, 0.9), ratio=(0.8, 1.2))
    drawn = draw_views(64, settings, (height, width), Randomness(seed).generator("views"))
    across, down = drawn.transforms[:, 0, 0], drawn.transforms[:, 1, 1]
    left, top = drawn.transforms[:, 0, 2], drawn.transforms[:, 1, 2]
    assert (across * down <= 0.9 + 1e-5).all()
    assert (left.abs() + across <= 1 + 1e-5).all()
    assert (top.abs() + down <= 1 + 1e-5).all()
    if height == width:  # Every crop fits within a few attempts.
        ratio = across / down
        assert ((ratio > 0.8 - 1e-4) & (ratio < 1.2 + 1e-4)).all()
        assert (across * down >= 0.3 - 1e-5).all()


def test_areas_are_spread_evenly_over_their_range() -> None:
    settings = ViewsConfig(rotation=0, area=(0.2, 0.6), ratio=(1, 1))
    drawn = draw_views(20_000, settings, (9, 9), Randomness(0).generator("views"))
    areas = drawn.transforms[:, 0, 0] * drawn.transforms[:, 1, 1]
    counts, _ = np.histogram(areas, bins=8, range=(0.2, 0.6))
    assert counts.min() > 2500 - 250  # five standard deviations
    assert counts.max() < 2500 + 250


@pytest.mark.parametrize("sigma", [0.4, 1.0, 1.7])
def test_blur_is_scipys_away_from_the_borders(sigma: float) -> None:
    batch = torch.zeros(1, 1, 31, 31)
    batch[0, 0, 13:18, 12:19] = images(1, 5, 7)[0, 0]
    ours = gaussian_blur(batch, torch.tensor([sigma]))[0, 0].numpy()
    theirs = gaussian_filter(batch[0, 0].numpy(), sigma, truncate=8)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_each_image_is_blurred_by_its_own_sigma() -> None:
    batch = images(3, 9, 9)
    together = gaussian_blur(batch, torch.tensor([0.0, 0.5, 1.5]))
    torch.testing.assert_close(together[0], batch[0])
    alone = gaussian_blur(batch[2:], torch.tensor([1.5]))
    torch.testing.assert_close(together[2:], alone)


def test_a_blur_keeps_a_constant_image() -> None:
    flat = torch.full((1, 3, 5, 6), 0.7)
    torch.testing.assert_close(gaussian_blur(flat, torch.tensor([1.2])), flat)


def test_half_of_the_images_are_blurred() -> None:
    drawn = draw_views(10_000, ViewsConfig(), (28, 28), Randomness(0).generator("views"))
    blurred = drawn.sigmas > 0
    assert float(blurred.float().mean()) == pytest.approx(0.5, abs=0.025)
    assert drawn.sigmas[blurred].min() >= 0.1
    assert drawn.sigmas.max() <= 2.0
