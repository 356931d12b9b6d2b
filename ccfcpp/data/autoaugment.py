"""AutoAugment's policy for CIFAR-10, drawn for each image from a given generator."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.data.augmentation import Drawn

SUB_POLICIES = 25
"""Sub-policies of the table for CIFAR-10, each of two operations."""


@dataclass(frozen=True)
class Policies(Drawn):
    """Random AutoAugment sub-policies of a batch, one for each image.

    Attributes:
        sub_policies: int64 of shape (samples,): index of the sub-policy in the paper's table.
        chances: float32 of shape (samples, 2), uniform in [0, 1): each of its two operations is
            applied if this is below the operation's probability.
        negated: bool of shape (samples, 2): whether each operation's signed magnitude, if any,
            changes its sign.
    """

    sub_policies: Tensor
    chances: Tensor
    negated: Tensor


def draw_policies(count: int, generator: torch.Generator) -> Policies:
    """Draw a random AutoAugment sub-policy for each of ``count`` images.

    From Cubuk et al. 2018, "AutoAugment: Learning Augmentation Policies from Data", section 3 and
    the appendix's table for CIFAR-10: a sub-policy is drawn uniformly, each of its operations is
    applied with the table's probability, each sign is negated with probability 1/2. The generator
    and the result are on the CPU.
    """
    sub_policies = torch.randint(SUB_POLICIES, (count,), generator=generator)
    chances = torch.rand(count, 2, generator=generator)
    negated = torch.rand(count, 2, generator=generator) < 0.5
    return Policies(sub_policies, chances, negated)


def render_policies(images: Tensor, policies: Policies) -> Tensor:
    """Apply each image's sub-policy to it, by torchvision's AutoAugment for CIFAR-10.

    Args:
        images: uint8 tensor of shape (batch, 3, height, width), like the result.
        policies: The policies of ``batch`` images, on the same device.

    Raises:
        ValueError: The images are not uint8 with three channels.
    """
    # Imported where it is needed: torchvision takes seconds, and most runs do without.
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            "images must be uint8 (batch, 3, height, width), "
            f"not {images.dtype} {tuple(images.shape)}"
        )
    transform = AutoAugment(AutoAugmentPolicy.CIFAR10)
    probabilities = torch.tensor([[step[1] for step in steps] for steps in transform.policies])
    chosen = policies.sub_policies
    applied = policies.chances < probabilities.to(images.device)[chosen]
    choices = torch.cat([chosen.unsqueeze(1), applied, policies.negated & applied], dim=1)
    distinct, groups = torch.unique(choices, dim=0, return_inverse=True)
    rendered = torch.empty_like(images)
    for group, (number, *switches) in enumerate(distinct.tolist()):
        here = (groups == group).nonzero().flatten()
        # Replaces torchvision's own draws: it applies an operation if the number drawn for it is at
        # most its probability, and negates the magnitude if the sign is 0.
        drawn = number, [2 - 2 * on for on in switches[:2]], [1 - minus for minus in switches[2:]]
        transform.get_params = lambda _, drawn=drawn: drawn
        rendered[here] = transform(images[here])
    return rendered
