"""Views by intensity: nothing for no range, the named change for each, and an oracle of loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.config import IntensityViewsConfig
from ccfcpp.data.intensity import draw_intensity, render_intensity

SHARES = st.floats(0, 1)


def images(count: int = 200, channels: int = 1, side: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, channels, side, side, generator=generator).clamp(min=0.05)


def seen(shown: torch.Tensor, **ranges: float) -> torch.Tensor:
    draws = draw_intensity(len(shown), torch.Generator().manual_seed(0))
    return render_intensity(shown, draws, IntensityViewsConfig(**ranges))


@pytest.mark.parametrize("channels", [1, 3])
def test_without_ranges_a_view_is_its_image(channels: int) -> None:
    shown = images(channels=channels)
    assert torch.equal(seen(shown), shown)


def test_gamma_is_one_power_for_each_image_and_stays_in_its_range() -> None:
    shown = images()
    powers = (seen(shown, gamma=0.8).log() / shown.log()).flatten(1)
    torch.testing.assert_close(powers, powers[:, :1].expand_as(powers), rtol=1e-3, atol=1e-3)
    logarithms = powers[:, 0].log()
    assert 0.75 < float(logarithms.max()) <= 0.801
    assert -0.801 <= float(logarithms.min()) < -0.75


def test_black_stays_near_black_under_any_gamma() -> None:
    assert float(seen(torch.zeros(50, 1, 3, 3), gamma=1.0).max()) < 0.04


def test_brightness_is_one_factor_for_each_image() -> None:
    shown = images()
    factors = (seen(shown, brightness=0.5) / shown).flatten(1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    assert 0.45 < float(factors.log().abs().max()) <= 0.501


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_keeps_the_mean(channels: int) -> None:
    shown = images(channels=channels)
    found = seen(shown, contrast=0.5)
    torch.testing.assert_close(found.mean((1, 2, 3)), shown.mean((1, 2, 3)))
    ratio = found.flatten(1).std(1) / shown.flatten(1).std(1)
    assert 0.45 < float(ratio.log().abs().max()) <= 0.501


def test_colour_changes_leave_grey_images_alone() -> None:
    shown = images()
    colour = {"saturation": 1.0, "tint": 1.0, "grey_probability": 1.0}
    assert torch.equal(seen(shown, **colour), shown)


def test_saturation_keeps_the_grey_of_each_pixel() -> None:
    shown = images(channels=3)
    found = seen(shown, saturation=1.0)
    torch.testing.assert_close(found.mean(1), shown.mean(1))
    assert not torch.allclose(found, shown, atol=0.1)


def test_a_tint_is_a_factor_for_each_colour() -> None:
    shown = images(channels=3)
    factors = (seen(shown, tint=0.3) / shown).flatten(2)
    torch.testing.assert_close(factors, factors[..., :1].expand_as(factors))
    assert float((factors[:, 0, 0] - factors[:, 1, 0]).abs().max()) > 0.3


def test_some_images_lose_their_colours() -> None:
    found = seen(images(channels=3), grey_probability=0.3)
    grey = (found.std(dim=1) < 1e-6).all(dim=2).all(dim=1)
    assert 40 < int(grey.sum()) < 80


@given(st.tuples(SHARES, SHARES, SHARES, SHARES), st.floats(0, 2), st.integers(1, 9))
def test_erased_pixels_are_those_in_the_rectangle(
    drawn: tuple[float, float, float, float], largest: float, side: int
) -> None:
    draws = torch.zeros(12, 1, dtype=torch.float64)
    draws[8:, 0] = torch.tensor(drawn, dtype=torch.float64)
    shown = torch.ones(1, 1, side, side, dtype=torch.float64)
    found = render_intensity(shown, draws, IntensityViewsConfig(erase=largest))
    down, across, height, width = drawn
    for row in range(side):
        for column in range(side):
            rows = abs((row + 0.5) / side - down) < height * largest / 2
            columns = abs((column + 0.5) / side - across) < width * largest / 2
            hidden = largest > 0 and rows and columns
            assert float(found[0, 0, row, column]) == (0.0 if hidden else 1.0)


def test_draws_are_uniform() -> None:
    draws = draw_intensity(4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(1), torch.full((12,), 0.5), rtol=0, atol=0.03)
    torch.testing.assert_close(
        draws.std(1), torch.full((12,), math.sqrt(1 / 12)), rtol=0, atol=0.02
    )
