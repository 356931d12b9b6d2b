"""Training steps on crops of images, over all clients together.

Source: Tong, Chen, Ma and LeCun, *EMP-SSL: Towards Self-Supervised Learning in One Training Epoch*
(arXiv 2304.03977). With N crops of all images together, latents z of length 1, and z̄ the direction
of the mean latent over the crops of an image, the loss is

    L = −R(Z) − λ mean ⟨z, z̄⟩ .

The first term, −R(Z), keeps latents apart. It couples all images through sums alone, which clients
add up: here over all crops together, where the paper has a term for each. The second is a mean over
images, of which each client has some. Many small crops of an image teach in one pass what two views
of it teach in many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.fed_emp.coding_rate import (
    coding_rate,
    is_plausible,
    nearest_plausible,
    outer,
    square,
)
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_emp.network import CropEncoder, crop_side
from ccfcpp.clustering.systems.fed_scan.representations import Latents
from ccfcpp.core.config import IntensityViewsConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float
from ccfcpp.data.intensity import draw_intensity, render_intensity
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart
from ccfcpp.models.pooled import Objective, Pool, Program

_OF_PLACE = 3
"""Draws of a crop: where it lies, and whether it is mirrored."""


@dataclass(frozen=True)
class Crops:
    """Small crops of images at their own resolution, mirrored and changed in colour.

    Attributes:
        intensity: The largest changes of colour.
        flip_probability: Probability that a crop is mirrored.
    """

    intensity: IntensityViewsConfig
    flip_probability: float

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the uniform numbers in [0, 1) that determine crops, of shape (draws, count)."""
        place = torch.rand(_OF_PLACE, count, generator=generator)
        return torch.cat([place, draw_intensity(count, generator)])

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Cut the crops of each image, as many as there are draws for it.

        Args:
            images: uint8 of shape (images, channels, height, width).
            draws: Result of ``draw``, of shape (draws, images · crops), grouped by image.

        Returns:
            float tensor of shape (images · crops, channels, side, side).
        """
        height, width = images.shape[2:]
        side = crop_side(height, width)
        draws = draws.to(images.device)
        steps = torch.arange(side, device=images.device)
        rows = (draws[0] * (height - side + 1)).long().unsqueeze(1) + steps
        columns = (draws[1] * (width - side + 1)).long().unsqueeze(1) + steps
        mirrored = (draws[2] < self.flip_probability).unsqueeze(1)
        columns = torch.where(mirrored, columns.flip(1), columns)
        each = draws.shape[1] // len(images)
        own = (torch.arange(draws.shape[1], device=images.device) // each).view(-1, 1, 1)
        found = images.permute(0, 2, 3, 1)[own, rows[:, :, None], columns[:, None, :]]
        crops = to_float(found.permute(0, 3, 1, 2).contiguous())
        return render_intensity(crops, draws[_OF_PLACE:], self.intensity)


def crops_program(encoder: CropEncoder, weight: float, crops: Tensor) -> Program:
    """Compute the loss on crops, with one sum over all clients.

    Args:
        encoder: The encoder.
        weight: λ, the weight of the second loss term.
        crops: Tensor of shape (images, crops, channels, side, side).

    Returns:
        The objective. Its metrics are ``loss``, minus the mean ⟨z, z̄⟩, and ``apart``, minus
        the coding rate R(Z).
    """
    each = crops.shape[1]
    z, sums = yield Pool(
        "moments",
        encoder(crops.flatten(0, 1)),
        outer,
        common=True,
        valid=is_plausible,
        nearest=nearest_plausible,
    )
    matrix = square(sums)
    count = matrix[0, 0].detach()
    apart = -coding_rate((matrix / count)[1:, 1:])
    agreement = (z * _directions(z, each)).sum() / count
    figures = {"loss": -agreement, "apart": apart.detach() * (len(z) / count)}
    return Objective(-weight * agreement, apart, figures)


def _directions(z: Tensor, each: int) -> Tensor:
    """Return for each crop the direction of the mean latent over the crops of its image."""
    mean = F.normalize(z.view(-1, each, z.shape[1]).mean(dim=1), dim=1)
    return mean.repeat_interleave(each, dim=0)


@dataclass(frozen=True)
class CropBatches:
    """Batches of crops of the images that are in a step's batch."""

    config: CropsConfig
    crops: Crops
    space: Latents[CropEncoder]

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return the crops of a step's images, or None without images."""
        encoder, each = self.space.load(known), self.config.each
        images = torch.cat([turn.client.images[turn.chosen] for turn in turns])
        if len(images) == 0:
            return None
        with section("batches"):
            draws = [self._draws(known.version, turn, randomness) for turn in turns]
            shown = self.crops.render(images, torch.cat(draws, dim=1))
        crops = shown.view(len(images), each, *shown.shape[1:])
        return Batch(partial(crops_program, encoder, self.config.weight), (crops,), ())

    def _draws(self, step: int, turn: BatchPart, randomness: Randomness) -> Tensor:
        generator = randomness.of_client(turn.client.id).generator(f"crops {step}")
        return self.crops.draw(len(turn.chosen) * self.config.each, generator)
