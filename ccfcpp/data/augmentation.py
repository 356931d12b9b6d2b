"""Random views of a whole batch of images, each with its own parameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.config import ViewsConfig

_CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class Drawn:
    """Base class of a batch's random augmentation parameters: tensors with a row for each image."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, index: Tensor | slice) -> Self:
        return self._each(lambda tensor: tensor[index])

    def to(self, device: torch.device) -> Self:
        """Copy the tensors to another device."""
        return self._each(lambda tensor: tensor.to(device))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the parameters of several batches."""
        columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return replace(parts[0], **{name: torch.cat(each) for name, each in columns.items()})

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, **{name: change(tensor) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class ViewParameters(Drawn):
    """Random parameters of augmented views, one row for each view.

    Attributes:
        transforms: float32 of shape (samples, 2, 3): affine matrices that map a point of the view
            to its position in the source image, both in coordinates from -1 to 1.
        sigmas: float32 of shape (samples,): the blur's standard deviation in pixels; 0 is no blur.
    """

    transforms: Tensor
    sigmas: Tensor


def draw_views(
    count: int, settings: ViewsConfig, shape: tuple[int, int], generator: torch.Generator
) -> ViewParameters:
    """Draw the random parameters of ``count`` views of images with ``shape`` (height, width).

    The crop follows torchvision's RandomResizedCrop: area uniform, aspect ratio log-uniform, drawn
    again up to ten times until the crop lies within the image. Crop, flip and rotation are combined
    in one affine map, so that the image is sampled once, and the corners of a rotated crop show
    what the image has there instead of 0.
    """
    width, height = _draw_crops(count, settings, shape, generator)
    left, top = torch.rand(2, count, generator=generator) * 2 - 1
    angles = (torch.rand(count, generator=generator) * 2 - 1) * math.radians(settings.rotation)
    flips = torch.where(
        torch.rand(count, generator=generator) < settings.flip_probability, -1.0, 1.0
    )
    aspect = shape[1] / shape[0]
    cos, sin = angles.cos(), angles.sin()
    transforms = torch.stack(
        [
            torch.stack([width * cos * flips, -width * sin / aspect, left * (1 - width)], dim=1),
            torch.stack([height * sin * flips * aspect, height * cos, top * (1 - height)], dim=1),
        ],
        dim=1,
    )
    blurred = torch.rand(count, generator=generator) < settings.blur_probability
    low, high = settings.blur
    sigmas = low + torch.rand(count, generator=generator) * (high - low)
    return ViewParameters(transforms, sigmas * blurred)


def _draw_crops(
    count: int, settings: ViewsConfig, shape: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw the widths and heights of crops, as shares of the image's, each of shape (count,)."""
    draws = torch.rand(2, _CROP_ATTEMPTS, count, generator=generator)
    area = settings.area[0] + draws[0] * (settings.area[1] - settings.area[0])
    low, high = math.log(settings.ratio[0]), math.log(settings.ratio[1])
    relative_ratio = (low + draws[1] * (high - low)).exp() * shape[0] / shape[1]
    width, height = (area * relative_ratio).sqrt(), (area / relative_ratio).sqrt()
    fits = (width <= 1) & (height <= 1)
    # The first attempt that fits; if none does, the last one, cut to the image.
    first = torch.where(fits.any(dim=0), fits.int().argmax(dim=0), _CROP_ATTEMPTS - 1)
    chosen = first.unsqueeze(0)
    return width.gather(0, chosen)[0].clamp(max=1), height.gather(0, chosen)[0].clamp(max=1)


def render_views(images: Tensor, parameters: ViewParameters) -> Tensor:
    """Render one view of each image; pixels outside an image are 0.

    Args:
        images: Float tensor of shape (batch, channels, height, width), like the result.
        parameters: Parameters from ``draw_views`` for ``batch`` views, on the same device.
    """
    grid = F.affine_grid(parameters.transforms, list(images.shape), align_corners=False)
    views = F.grid_sample(images, grid, align_corners=False)
    return gaussian_blur(views, parameters.sigmas)


def gaussian_blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """Blur each image with a Gaussian of its own standard deviation.

    At the borders the weights are normalised over the pixels that exist.

    Args:
        images: Float tensor of shape (batch, channels, height, width).
        sigmas: Standard deviations in pixels, shape (batch,); 0 leaves an image as it is.
    """
    # A separable blur is a matrix product from the left and one from the right.
    rows, columns = (_blur_matrices(sigmas, size).unsqueeze(1) for size in images.shape[-2:])
    return rows @ images @ columns.mT


def _blur_matrices(sigmas: Tensor, size: int) -> Tensor:
    """Return a row-stochastic (size, size) Gaussian matrix for each standard deviation."""
    positions = torch.arange(size, device=sigmas.device, dtype=sigmas.dtype)
    squares = (positions.unsqueeze(0) - positions.unsqueeze(1)).square()
    # At sigma = 0 the floor makes every weight off the diagonal underflow to exactly 0.
    variances = sigmas.square().clamp(min=1e-3).view(-1, 1, 1)
    return torch.softmax(-squares / (2 * variances), dim=-1)
