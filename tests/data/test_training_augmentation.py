import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import generator_of
from ccfcpp.data.training_augmentation import PaddedCrops, draw_crops, render_crops


def images(count: int, channels: int, height: int, width: int) -> Tensor:
    # No zeros: what is 0 in a crop is padding.
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, generator=generator_of(0), dtype=torch.uint8)


def drawn_crops(count: int, padding: int = 4, mirror: float = 0.5, seed: int = 1) -> PaddedCrops:
    return draw_crops(count, padding, mirror, generator_of(seed))


def one_crop(image: Tensor, padding: int, row: int, column: int, mirrored: bool) -> Tensor:
    """What torchvision does: pad, cut, mirror; row and column count from the padded image's."""
    height, width = image.shape[-2:]
    padded = F.pad(image, (padding, padding, padding, padding))
    crop = padded[:, row : row + height, column : column + width]
    return crop.flip(-1) if mirrored else crop


def one_by_one(batch: Tensor, crops: PaddedCrops, padding: int) -> Tensor:
    places = zip(batch, crops.rows, crops.columns, crops.mirrored, strict=True)
    return torch.stack(
        [
            one_crop(image, padding, int(row) + padding, int(column) + padding, bool(mirrored))
            for image, row, column, mirrored in places
        ]
    )


@given(
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(0, 10_000),
)
def test_a_crop_is_padded_cut_and_mirrored(
    count: int, channels: int, height: int, width: int, padding: int, seed: int
) -> None:
    batch = images(max(count, 1), channels, height, width)[:count]
    crops = drawn_crops(count, padding, seed=seed)
    rendered = render_crops(batch, crops)
    assert rendered.dtype == torch.uint8
    assert rendered.shape == batch.shape
    if count:
        assert torch.equal(rendered, one_by_one(batch, crops, padding))


def test_every_place_of_a_crop() -> None:
    padding, reach = 2, 5
    places = torch.cartesian_prod(torch.arange(reach), torch.arange(reach), torch.arange(2))
    crops = PaddedCrops(places[:, 0] - padding, places[:, 1] - padding, places[:, 2].bool())
    batch = images(1, 3, 6, 4).expand(len(crops), -1, -1, -1)
    assert torch.equal(render_crops(batch, crops), one_by_one(batch, crops, padding))


def test_without_padding_and_mirrors_a_crop_is_the_image() -> None:
    batch = images(8, 3, 7, 5)
    assert torch.equal(render_crops(batch, drawn_crops(8, padding=0, mirror=0.0)), batch)
    assert torch.equal(render_crops(batch, drawn_crops(8, padding=0, mirror=1.0)), batch.flip(-1))


def test_every_place_is_as_likely_as_any_other() -> None:
    crops = drawn_crops(81_000)
    counts = torch.bincount((crops.rows + 4) * 9 + crops.columns + 4)
    assert counts.shape == (81,)
    assert counts.min() > 1000 - 158  # five standard deviations
    assert counts.max() < 1000 + 158


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_so_many_are_mirrored(probability: float) -> None:
    crops = drawn_crops(40_000, mirror=probability)
    share = float(crops.mirrored.float().mean())
    # Five standard deviations of the share at most.
    assert share == pytest.approx(probability, abs=0.0125 if 0 < probability < 1 else 0)
