"""Random crops and horizontal flips for training a classifier, a whole batch at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.data.augmentation import Drawn


@dataclass(frozen=True)
class PaddedCrops(Drawn):
    """Random crops of a batch of zero-padded images, one for each image, some mirrored.

    Attributes:
        rows: int64 of shape (samples,): the image's row at the top of the crop, from -padding to
            padding; torchvision counts from the padded image's top, from 0 to 2·padding.
        columns: int64 of shape (samples,): the same for columns.
        mirrored: bool of shape (samples,): whether the crop is mirrored left to right.
    """

    rows: Tensor
    columns: Tensor
    mirrored: Tensor


def draw_crops(
    count: int, padding: int, mirror_probability: float, generator: torch.Generator
) -> PaddedCrops:
    """Draw random crops for ``count`` images of any size, on the CPU.

    The usual augmentation of CIFAR-10 (He et al. 2016, "Deep Residual Learning for Image
    Recognition", section 4.2): zero padding by 4 pixels, a crop of the image's own size, and a
    mirror image with probability 0.5 (0 if that changes the class, as with digits); the same as
    torchvision's RandomCrop(size, padding) and RandomHorizontalFlip.
    """
    rows, columns = torch.randint(-padding, padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < mirror_probability
    return PaddedCrops(rows, columns, mirrored)


def render_crops(images: Tensor, crops: PaddedCrops) -> Tensor:
    """Cut one crop out of each image, without interpolation; pixels outside an image are 0.

    Args:
        images: uint8 tensor of shape (batch, channels, height, width), like the result.
        crops: Result of ``draw_crops`` for ``batch`` images, on the same device.
    """
    height, width = images.shape[-2:]
    across = torch.arange(width, device=images.device).expand(len(images), width)
    across = torch.where(crops.mirrored.unsqueeze(1), across.flip(1), across)
    down = torch.arange(height, device=images.device)
    # One pixel of 0 all around represents the padding, however wide it is.
    rows = (down + crops.rows.unsqueeze(1) + 1).clamp(0, height + 1)
    columns = (across + crops.columns.unsqueeze(1) + 1).clamp(0, width + 1)
    places = rows.unsqueeze(2) * (width + 2) + columns.unsqueeze(1)
    places = places.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
    return F.pad(images, (1, 1, 1, 1)).flatten(2).gather(2, places).view(images.shape)
