"""Augmentation and normalisation of images in batches, before they enter a network."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import ViewParameters, draw_views, render_views
from ccfcpp.data.autoaugment import draw_policies, render_policies
from ccfcpp.data.images import to_float
from ccfcpp.data.training_augmentation import PaddedCrops, draw_crops, render_crops
from ccfcpp.engine.client import Client
from supervised.config import ClassifyConfig, SamplesConfig


@dataclass(frozen=True)
class Changes:
    """Random crops and rotations of a client's images in one epoch; None if a kind is off."""

    crops: PaddedCrops | None
    rotations: ViewParameters | None


class Normalisation:
    """Normalisation of images: subtract each channel's mean, divide by its deviation, if set."""

    def __init__(self, settings: SamplesConfig, device: torch.device) -> None:
        # On the device from the start: a captured step copies nothing there.
        self._mean, self._deviation = (
            None
            if values is None
            else torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1).to(device)
            for values in (settings.mean, settings.std)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise float images of shape (batch, channels, height, width)."""
        if self._mean is not None:
            images = images - self._mean
        return images if self._deviation is None else images / self._deviation


class Augmenter:
    """Augmentation of training images: crop and mirror, AutoAugment's policy, then rotation."""

    def __init__(self, config: ClassifyConfig, device: torch.device) -> None:
        self.settings = config.augmentation
        self.device = device
        self.normalise = Normalisation(config.data, device)

    def draw(self, client: Client, source: Randomness, epoch: int) -> tuple[Tensor, Changes]:
        """Draw the augmentation of each image of a client for an epoch.

        AutoAugment's policies, whose operations differ between images, are applied here.

        Returns:
            The images, uint8 of shape (samples, channels, height, width), and the parameters of
            the changes that ``render`` applies to a batch.
        """
        settings, count, images = self.settings, len(client), client.images
        crops = rotations = None
        if settings.crop_padding or settings.flip:
            mirrored = 0.5 if settings.flip else 0.0
            drawn = source.generator(f"crops {epoch}")
            crops = draw_crops(count, settings.crop_padding, mirrored, drawn).to(self.device)
        if settings.autoaugment:
            policies = draw_policies(count, source.generator(f"policies {epoch}")).to(self.device)
            images = images if crops is None else render_crops(images, crops)
            images, crops = render_policies(images, policies), None
        if settings.rotation:
            height, width = images.shape[2:]
            rotation = ViewsConfig(
                area=(1, 1), ratio=(1, 1), rotation=settings.rotation, blur_probability=0
            )
            drawn = source.generator(f"rotations {epoch}")
            rotations = draw_views(count, rotation, (height, width), drawn).to(self.device)
        return images, Changes(crops, rotations)

    def render(self, images: Tensor, changes: Changes, index: Tensor) -> Tensor:
        """Augment and normalise a batch of uint8 images; return floats of its shape.

        ``index`` has the positions of its images in ``changes``, int64 of shape (batch,).
        """
        if changes.crops is not None:
            images = render_crops(images, changes.crops[index])
        shown = to_float(images)
        if changes.rotations is not None:
            shown = render_views(shown, changes.rotations[index])
        return self.normalise(shown)
