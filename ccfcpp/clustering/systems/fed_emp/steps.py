"""Training steps of Fed-EMP's encoder on crops of images, over all clients together.

Source: Tong, Chen, Ma and LeCun, *EMP-SSL: Towards Self-Supervised Learning in One Training Epoch*
(arXiv 2304.03977). With the latents z of all crops, scaled to length 1, the mean latents z̄ over
the crops of each image, also scaled to length 1, and a weight λ, the loss is

    L = −R(Z) − λ mean ⟨z, z̄⟩ .

The coding rate R(Z), Eq. (2), keeps latents apart. It is computed from sums over the crops of all
clients: their number N, and the sums of the latents u and of uuᵀ. The paper instead has one such
term for each of the crops that an image has. The second term is a mean over crops, to which each
client adds its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

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

PRECISION = 0.2
"""ε² of the coding rate, as in EMP-SSL."""
_PLACE_DRAWS = 3
"""Random numbers that determine a crop's row, its column, and whether it is mirrored."""


@dataclass(frozen=True)
class Crops:
    """Random crops of images, not rescaled, some mirrored, and changed in colour.

    Attributes:
        intensity: Ranges of the colour changes.
        flip_probability: Probability that a crop is mirrored.
    """

    intensity: IntensityViewsConfig
    flip_probability: float

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw uniform numbers in [0, 1) for ``count`` crops, (numbers per crop, count)."""
        place = torch.rand(_PLACE_DRAWS, count, generator=generator)
        return torch.cat([place, draw_intensity(count, generator)])

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Cut crops from images, the same number from each.

        Args:
            images: uint8 of shape (images, channels, height, width).
            draws: Result of ``draw`` for images · crops crops, grouped by image.

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
        cut = images.permute(0, 2, 3, 1)[own, rows[:, :, None], columns[:, None, :]]
        crops = to_float(cut.permute(0, 3, 1, 2).contiguous())
        return render_intensity(crops, draws[_PLACE_DRAWS:], self.intensity)


def sum_outer_products(u: Tensor) -> Tensor:
    """Return Σ (1, u)(1, u)ᵀ, that is N, Σ u and Σ uuᵀ, of latents (N, d): float64 ((1 + d)²,)."""
    wide = F.pad(u.double(), (1, 0), value=1.0)
    return (wide.T @ wide).flatten()


def as_matrix(sums: Tensor) -> Tensor:
    """Reshape the result of ``sum_outer_products`` to a matrix of shape (1 + d, 1 + d)."""
    side = round(len(sums) ** 0.5)
    return sums.view(side, side)


def coding_rate(second: Tensor) -> Tensor:
    """Return EMP-SSL's coding rate R(Z), a scalar, from the second moment Σ uuᵀ / N (d, d)."""
    d = len(second)
    one = torch.eye(d, dtype=second.dtype, device=second.device)
    return torch.logdet(one + d / PRECISION * second) / 2


def is_plausible(sums: Tensor) -> bool:
    """Return whether sums can be those of crops: Σ uuᵀ has trace N, and its diagonal is ≥ 0."""
    squares = as_matrix(sums).diagonal()
    count, total = float(squares[0]), float(squares[1:].sum())
    return bool((squares >= 0).all()) and abs(total - count) <= 0.001 * (1 + count)


def nearest_plausible(sums: Tensor) -> Tensor:
    """Project noisy sums (N, Σ u, Σ uuᵀ) onto possible ones: N ≥ 1, no eigenvalue below 0.

    Sums have the shape ((1 + d)²,), that of the result of ``sum_outer_products``.
    """
    matrix = as_matrix(sums)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    projected = (vectors * values.clamp(min=0)) @ vectors.T
    projected[0, 0] = projected[0, 0].clamp(min=1)
    flat: Tensor = projected.flatten()
    return flat


def crops_program(encoder: CropEncoder, weight: float, crops: Tensor) -> Program:
    """Return a generator that computes Fed-EMP's loss on crops, over all clients.

    Args:
        encoder: Encoder of the step.
        weight: Weight λ of the agreement between crops of an image.
        crops: Float tensor of shape (images, crops, channels, side, side).

    Returns:
        The objective. Its metrics are ``loss``, −mean ⟨z, z̄⟩, and ``apart``, −R(Z).
    """
    each = crops.shape[1]
    z, sums = yield Pool(
        "moments",
        encoder(crops.flatten(0, 1)),
        sum_outer_products,
        common=True,
        valid=is_plausible,
        nearest=nearest_plausible,
    )
    matrix = as_matrix(sums)
    count = matrix[0, 0].detach()
    apart = -coding_rate((matrix / count)[1:, 1:])
    agreement = (z * _mean_directions(z, each)).sum() / count
    metrics = {"loss": -agreement, "apart": apart.detach() * (len(z) / count)}
    return Objective(-weight * agreement, apart, metrics)


def _mean_directions(z: Tensor, each: int) -> Tensor:
    """Return z̄ for each crop: the mean over its image's ``each`` crops, scaled to length 1."""
    mean = F.normalize(z.view(-1, each, z.shape[1]).mean(dim=1), dim=1)
    return mean.repeat_interleave(each, dim=0)


@dataclass(frozen=True)
class CropBatches:
    """Maker of training batches: random crops of a step's images."""

    config: CropsConfig
    crops: Crops
    space: Latents[CropEncoder]

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return random crops of a step's images, ``turns``; None if there are no images."""
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
