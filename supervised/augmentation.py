"""From stored images to what networks see: augmentation and normalisation, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import ViewParameters, draw_views, render_views
from ccfcpp.data.autoaugment import Policies, draw_policies, render_policies
from ccfcpp.data.images import to_float
from ccfcpp.data.training_augmentation import Crops, draw_crops, render_crops
from ccfcpp.engine.client import Client
from supervised.config import ClassifyConfig, SamplesConfig


@dataclass(frozen=True)
class Changes:
    """What was drawn for each image of a cohort, for one epoch; None for what is switched off."""

    crops: Crops | None
    policies: Policies | None
    rotations: ViewParameters | None


class Augmenter:
    """The published augmentations, in the published order: crop and mirror, policy, rotation."""

    def __init__(self, config: ClassifyConfig) -> None:
        self.settings = config.augmentation
        self.data = config.data

    def draw(self, clients: Sequence[Client], randomness: Randomness, epoch: int) -> Changes:
        """Draw for each image of a cohort, one client's after the other's."""
        settings = self.settings
        sources = [(client, randomness.of_client(client.id)) for client in clients]
        device = clients[0].images.device

        def generators(purpose: str) -> list[tuple[Client, torch.Generator]]:
            return [(c, source.generator(f"{purpose} {epoch}")) for c, source in sources]

        crops = policies = rotations = None
        if settings.crop_padding or settings.flip:
            mirrored = 0.5 if settings.flip else 0.0
            crops = Crops.join(
                [
                    draw_crops(len(client), settings.crop_padding, mirrored, generator)
                    for client, generator in generators("crops")
                ]
            ).to(device)
        if settings.autoaugment:
            policies = Policies.join(
                [draw_policies(len(client), g) for client, g in generators("policies")]
            ).to(device)
        if settings.rotation:
            height, width = clients[0].images.shape[2:]
            rotation = ViewsConfig(
                area=(1, 1), ratio=(1, 1), rotation=settings.rotation, blur_probability=0
            )
            rotations = ViewParameters.join(
                [
                    draw_views(len(client), rotation, (height, width), generator)
                    for client, generator in generators("rotations")
                ]
            ).to(device)
        return Changes(crops, policies, rotations)

    def render(self, images: Tensor, changes: Changes, index: Tensor) -> Tensor:
        """What the networks see.

        Returns:
            Float tensor of the same shape.
        """
        if changes.crops is not None:
            images = render_crops(images, changes.crops[index])
        if changes.policies is not None:
            images = render_policies(images, changes.policies[index])
        shown = to_float(images)
        if changes.rotations is not None:
            shown = render_views(shown, changes.rotations[index])
        return normalise(shown, self.data)


def normalise(images: Tensor, settings: SamplesConfig) -> Tensor:
    """Subtract the mean and divide by the deviation of each channel, where they are given."""
    if settings.mean is not None:
        images = images - images.new_tensor(settings.mean).view(-1, 1, 1)
    if settings.std is not None:
        images = images / images.new_tensor(settings.std).view(-1, 1, 1)
    return images
