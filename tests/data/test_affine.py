"""Affine views: nothing for no range, the named map for each, and nothing beyond the ranges."""

import math

import pytest
import torch

from ccfcpp.core.config import AffineViewsConfig
from ccfcpp.data.affine import affine_maps, draw_affine, render_affine

NOTHING = {"rotation": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0}


def drawn(count: int = 500, **ranges: float) -> torch.Tensor:
    config = AffineViewsConfig(**(NOTHING | ranges))
    return affine_maps(draw_affine(count, torch.Generator().manual_seed(0)), config)


def test_without_ranges_a_view_is_its_image() -> None:
    images = torch.rand(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(render_affine(images, drawn(3)), images)


def test_a_mirror_swaps_left_and_right() -> None:
    images = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    views = render_affine(images, drawn(4, flip_probability=1.0))
    torch.testing.assert_close(views, images.flip(3), rtol=1e-4, atol=1e-5)


def test_rotations_keep_lengths_and_stay_in_their_range() -> None:
    maps = drawn(rotation=30.0)
    linear = maps[:, :, :2]
    torch.testing.assert_close(linear @ linear.mT, torch.eye(2).expand(500, 2, 2))
    angles = torch.atan2(linear[:, 1, 0], linear[:, 0, 0]) * 180 / math.pi
    assert 25 < float(angles.abs().max()) <= 30
    assert float(angles.min()) < -20 < 20 < float(angles.max())


@pytest.mark.parametrize("value", [0.1, 0.4])
def test_shifts_and_scales_stay_in_their_ranges(value: float) -> None:
    shifts = drawn(shift=value)[:, :, 2]
    assert 0.9 * value < float(shifts.abs().max()) <= value
    scales = drawn(scale=value)[:, [0, 1], [0, 1]].log()
    assert float(scales.abs().max()) <= 1.5 * value
    sizes = scales.mean(dim=1)
    assert 0.9 * value < float(sizes.abs().max()) <= value + 1e-6
