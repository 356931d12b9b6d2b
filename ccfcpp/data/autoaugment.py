"""AutoAugment's policy for CIFAR-10, drawn for each image, rendered a whole batch at a time."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_Step = tuple[str, float, int | None]

CIFAR10_POLICY: tuple[tuple[_Step, _Step], ...] = (
    (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
    (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
    (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
    (("Color", 0.9, 9), ("Equalize", 0.6, None)),
    (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, None), ("Invert", 0.1, None)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
)
"""Sub-policies of two steps each: an operation, its probability and its magnitude's index."""

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
"""Every operation, by the number that stands for it; the geometric ones are side by side."""

SIGNED = OPERATIONS[OPERATIONS.index("ShearX") : OPERATIONS.index("Sharpness") + 1]
"""The operations whose magnitude is negated half of the time."""

_GEOMETRIC = slice(OPERATIONS.index("ShearX"), OPERATIONS.index("Rotate") + 1)
_LEVELS = 10


@dataclass(frozen=True)
class Policies:
    """What was drawn for each image.

    Attributes:
        sub_policies: int64 of shape (samples,): an index into ``CIFAR10_POLICY``.
        applied: bool of shape (samples, 2): whether each of its two operations is applied.
        negated: bool of shape (samples, 2): whether each one's magnitude changes its sign, which
            counts for the operations in ``SIGNED`` alone.
    """

    sub_policies: Tensor
    applied: Tensor
    negated: Tensor

    def __len__(self) -> int:
        return len(self.sub_policies)

    @staticmethod
    def join(parts: Sequence["Policies"]) -> "Policies":
        """The policies of several draws, one after the other."""
        return Policies(
            torch.cat([part.sub_policies for part in parts]),
            torch.cat([part.applied for part in parts]),
            torch.cat([part.negated for part in parts]),
        )

    def __getitem__(self, index: Tensor | slice) -> "Policies":
        return Policies(self.sub_policies[index], self.applied[index], self.negated[index])

    def to(self, device: torch.device) -> "Policies":
        """The same policies on another device."""
        return Policies(
            self.sub_policies.to(device), self.applied.to(device), self.negated.to(device)
        )


def draw_policies(count: int, generator: torch.Generator) -> Policies:
    """Draw sub-policies of ``CIFAR10_POLICY`` for ``count`` images of any size.

    From Cubuk et al. 2018, "AutoAugment: Learning Augmentation Policies from Data", section 3 and
    the appendix's table for CIFAR-10: a sub-policy uniformly, each of its operations with the
    probability it names, each sign with probability 1/2.

    Args:
        count: Number of images.
        generator: Source of the draws, on the CPU.

    Returns:
        Policies of ``count`` images, on the CPU.
    """
    probabilities = torch.tensor([[step[1] for step in steps] for steps in CIFAR10_POLICY])
    sub_policies = torch.randint(len(CIFAR10_POLICY), (count,), generator=generator)
    applied = torch.rand(count, 2, generator=generator) < probabilities[sub_policies]
    negated = torch.rand(count, 2, generator=generator) < 0.5
    return Policies(sub_policies, applied, negated)


def render_policies(images: Tensor, policies: Policies) -> Tensor:
    """Apply each image's own sub-policy to it, the first operations and then the second.

    The same as torchvision's AutoAugment, image by image, with AutoAugmentPolicy.CIFAR10, nearest
    neighbours, and 0 outside the image.

    Args:
        images: uint8 tensor of shape (batch, 3, height, width).
        policies: What ``draw_policies`` drew, for ``batch`` images, on the same device.

    Returns:
        uint8 tensor of the images' shape.

    Raises:
        ValueError: The images are not uint8 with three channels.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            "images must be uint8 (batch, 3, height, width), "
            f"not {images.dtype} {tuple(images.shape)}"
        )
    tables = _policy_tables(images.shape[-2], images.shape[-1])
    operations, magnitudes, signed = (table.to(images.device) for table in tables)
    chosen = policies.sub_policies
    operations = operations[chosen] * policies.applied
    negative = signed[chosen] & policies.negated
    magnitudes = torch.where(negative, -magnitudes[chosen], magnitudes[chosen])
    for stage in range(operations.shape[1]):
        images = apply_operations(images, operations[:, stage], magnitudes[:, stage])
    return images


def apply_operations(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Apply one operation to each image, with a magnitude of its own.

    Args:
        images: uint8 tensor of shape (batch, 3, height, width).
        operations: int64 of shape (batch,), each an index into ``OPERATIONS``.
        magnitudes: float64 of shape (batch,), in the units of ``operation_magnitudes``, sign
            included.

    Returns:
        uint8 tensor of the images' shape.
    """
    # Sorted by operation, the images of one operation are a stretch of known length: the device
    # has to be waited for once, not once for each operation.
    order = operations.argsort(stable=True)
    counts = torch.bincount(operations, minlength=len(OPERATIONS)).tolist()
    lengths = [counts[0], sum(counts[_GEOMETRIC]), *counts[_GEOMETRIC.stop :]]
    unchanged, geometric, *photometric = torch.split(images.index_select(0, order), lengths)
    _, geometric_magnitudes, *strengths = torch.split(magnitudes[order], lengths)
    rendered = [unchanged]
    if len(geometric):
        which = torch.split(operations[order], lengths)[1]
        transforms = _transforms(which, geometric_magnitudes, *images.shape[-2:])
        rendered.append(_warp(geometric, transforms))
    names = OPERATIONS[_GEOMETRIC.stop :]
    for name, group, strength in zip(names, photometric, strengths, strict=True):
        if len(group):
            rendered.append(_PHOTOMETRIC[name](group, strength))
    return torch.cat(rendered).index_select(0, order.argsort())


def operation_magnitudes(height: int, width: int) -> dict[str, Tensor]:
    """The ten magnitudes of each operation, before the sign.

    torchvision's ranges, for images of ``height`` and ``width`` pixels.

    Returns:
        float64 tensors of shape (10,): the shear's tangent, pixels to translate, degrees to rotate,
        what to add to an enhancement's factor of 1, bits to keep, the threshold from which on
        to invert, and 0 where there is nothing to choose.
    """
    ranges = {
        "Identity": (0.0, 0.0),
        "ShearX": (0.0, 0.3),
        "ShearY": (0.0, 0.3),
        "TranslateX": (0.0, 150 / 331 * width),
        "TranslateY": (0.0, 150 / 331 * height),
        "Rotate": (0.0, 30.0),
        "Brightness": (0.0, 0.9),
        "Color": (0.0, 0.9),
        "Contrast": (0.0, 0.9),
        "Sharpness": (0.0, 0.9),
        "Posterize": (8.0, 4.0),
        "Solarize": (255.0, 0.0),
        "AutoContrast": (0.0, 0.0),
        "Equalize": (0.0, 0.0),
        "Invert": (0.0, 0.0),
    }
    # torchvision's are float32: a threshold or a shear of another precision shows other pixels.
    magnitudes = {
        name: torch.linspace(*ends, _LEVELS, dtype=torch.float32).double()
        for name, ends in ranges.items()
    }
    magnitudes["Posterize"] = magnitudes["Posterize"].round()
    return magnitudes


@functools.cache
def _policy_tables(height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Operation, magnitude and whether it has a sign, each of shape (sub-policies, 2)."""
    magnitudes = operation_magnitudes(height, width)
    return (
        torch.tensor([[OPERATIONS.index(s[0]) for s in steps] for steps in CIFAR10_POLICY]),
        torch.stack(
            [torch.stack([magnitudes[s[0]][s[2] or 0] for s in steps]) for steps in CIFAR10_POLICY]
        ),
        torch.tensor([[s[0] in SIGNED for s in steps] for steps in CIFAR10_POLICY]),
    )


def _transforms(operations: Tensor, magnitudes: Tensor, height: int, width: int) -> Tensor:
    """Where in the image, in pixels from its centre, each point of a warped image lies.

    Shears keep the upper left corner in place, rotations (counter-clockwise) the centre.

    Args:
        operations: int64 of shape (batch,), geometric ones.
        magnitudes: float64 of shape (batch,).
        height: Of the images.
        width: Of the images.

    Returns:
        float64 of shape (batch, 2, 3), for x and y.
    """

    def of(name: str) -> Tensor:
        return torch.where(operations == OPERATIONS.index(name), magnitudes, 0.0)

    angles, shear_x, shear_y = of("Rotate").deg2rad(), of("ShearX"), of("ShearY")
    cos, sin = angles.cos(), angles.sin()
    x = [cos, shear_x - sin, shear_x * height / 2 - of("TranslateX").trunc()]
    y = [shear_y + sin, cos, shear_y * width / 2 - of("TranslateY").trunc()]
    return torch.stack([torch.stack(x, dim=1), torch.stack(y, dim=1)], dim=1)


def _warp(images: Tensor, transforms: Tensor) -> Tensor:
    """Sample each image's nearest pixels where its transform, in pixels, says."""
    height, width = images.shape[-2:]
    x, y = (
        torch.arange(size, device=images.device, dtype=torch.float32) - (size - 1) / 2
        for size in (width, height)
    )
    half = torch.tensor([[width / 2], [height / 2]], device=images.device, dtype=torch.float32)
    # Sums of products, not a matrix product: its rounding might depend on the batch's size.
    across, down, offset = (transforms.float() / half).view(-1, 2, 3, 1, 1).unbind(dim=2)
    grid = x * across + y.unsqueeze(1) * down + offset
    views = F.grid_sample(
        images.float(), grid.permute(0, 2, 3, 1), mode="nearest", align_corners=False
    )
    return views.to(torch.uint8)


def _brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images[:1]), magnitudes)


def _color(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, _grayscale(images), magnitudes)


def _contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    means = _grayscale(images).float().mean(dim=(1, 2, 3), keepdim=True)
    return _blend(images, means, magnitudes)


def _sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    if min(images.shape[-2:]) < 3:
        return images
    # The mean of nine pixels, the middle one counted five times. The sums are exact integers and
    # 13 is odd, so that no mean lies half-way between two integers.
    blurred = images.float()
    rows = blurred[..., :-2, :] + blurred[..., 1:-1, :] + blurred[..., 2:, :]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * blurred[..., 1:-1, 1:-1]
    blurred[..., 1:-1, 1:-1] = (sums / 13).round()
    return _blend(images, blurred, magnitudes)


def _blend(images: Tensor, degenerate: Tensor, magnitudes: Tensor) -> Tensor:
    """Go from the degenerate images (at magnitude -1) through the images (at 0) and beyond."""
    factors = (1.0 + magnitudes).view(-1, 1, 1, 1)
    mixed = factors.float() * images + (1.0 - factors).float() * degenerate
    return mixed.clamp(0, 255).to(torch.uint8)


def _grayscale(images: Tensor) -> Tensor:
    """The luma of each pixel, rounded down: uint8 of shape (batch, 1, height, width)."""
    red, green, blue = images.float().unbind(dim=1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8).unsqueeze(1)


def _posterize(images: Tensor, magnitudes: Tensor) -> Tensor:
    masks = 256 - 2 ** (8 - magnitudes.long())
    return images & masks.to(torch.uint8).view(-1, 1, 1, 1)


def _solarize(images: Tensor, magnitudes: Tensor) -> Tensor:
    thresholds = magnitudes.ceil().to(torch.uint8).view(-1, 1, 1, 1)
    # x ^ 255 is 255 - x; a `where` over bytes takes several times as long.
    return images ^ (images >= thresholds).to(torch.uint8) * 255


def _auto_contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    lowest = images.amin(dim=(2, 3), keepdim=True).float()
    highest = images.amax(dim=(2, 3), keepdim=True).float()
    constant = lowest == highest
    scale = torch.where(constant, 1.0, 255 / (highest - lowest))
    shifted = images - torch.where(constant, 0.0, lowest)
    return (shifted * scale).clamp(0, 255).to(torch.uint8)


def _equalize(images: Tensor, magnitudes: Tensor) -> Tensor:
    planes = images.flatten(0, 1).flatten(1).long()
    ones = torch.ones((), dtype=torch.int64, device=images.device).expand_as(planes)
    histograms = torch.zeros(len(planes), 256, dtype=torch.int64, device=images.device)
    histograms.scatter_add_(1, planes, ones)
    # The pixels of the brightest value present do not count.
    brightest = histograms.gather(1, planes.amax(dim=1, keepdim=True))
    step = (planes.shape[1] - brightest) // 255
    below = histograms.cumsum(dim=1) - histograms
    equalized = (below + step // 2) // step.clamp(min=1)
    identity = torch.arange(256, device=images.device)
    lookup = torch.where(step > 0, equalized.clamp(max=255), identity).to(torch.uint8)
    return lookup.gather(1, planes).view(images.shape)


def _invert(images: Tensor, magnitudes: Tensor) -> Tensor:
    return 255 - images


_PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Invert": _invert,
}
