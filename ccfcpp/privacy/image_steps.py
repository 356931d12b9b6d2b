"""Synchronised steps as a run's privacy has them: over all images together, or each one bounded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Message, PerImage, Task, Update
from ccfcpp.engine.synchronised.clients import Process
from ccfcpp.engine.synchronised.messages import Known
from ccfcpp.engine.synchronised.plan import Plan
from ccfcpp.engine.synchronised.turns import Turn, turn
from ccfcpp.models.pooled import Program
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.dp_levels import image_bounds
from ccfcpp.privacy.dp_mechanism import Bounds, NoiseSource
from ccfcpp.privacy.image_sums import ImageProcess, Make, Shown, poisson_turn


class Batches(Protocol):
    """The images of clients whose turn it is, on both ways into a step."""

    def begin(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Program | None:
        """The program of a step over all of them; None where there is none."""

    def begin_images(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[Make, Shown] | None:
        """What makes the program of one image, and what is shown of each; None likewise."""


def per_image(
    config: PrivacyConfig, batch: int, samples: int, largest: Mapping[str, float]
) -> PerImage | None:
    """How images enter the sums of a step, where each one's part is bounded.

    Args:
        config: Whether it is.
        batch: Images of all clients in a step, on average.
        samples: Images of all clients.
        largest: What no image's part exceeds, by group.
    """
    if config.level != "image":
        return None
    there = max(1, samples)
    return PerImage(min(1.0, batch / there), min(batch, there), largest)


def over_all(
    exchange: Exchange[Message, Update], config: PrivacyConfig, largest: Mapping[str, float]
) -> tuple[Exchange[Message, Update], Bounds | None]:
    """An exchange to which each image of a client adds, and the bounds of what it adds.

    Args:
        exchange: Of sums.
        config: Whether there are bounds.
        largest: What no image's part exceeds, by group.
    """
    if config.level != "image":
        return exchange, None
    bounded = PerImage(largest=largest)
    return replace(exchange, per_image=bounded), image_bounds(config, bounded)


def travelling(
    bounded: PerImage | None, precision: torch.dtype | None = None
) -> torch.dtype | None:
    """The dtype in which gradients travel; None for their own.

    Clipped ones stay in float64: to round them would take an image's part beyond its bound.
    """
    return precision if bounded is None else torch.float64


def turn_of(config: PrivacyConfig) -> Turn:
    """Whose turn it is in a step: in a fixed order, or each image drawn by itself."""
    if config.level != "image":
        return turn
    source = NoiseSource(Randomness(0) if config.reproducible_noise else None)
    return lambda samples, share, step, randomness: poisson_turn(
        samples, share, source.of(randomness.at_round(step))
    )


def process_of(
    batches: Batches,
    network: nn.Module,
    parameters: Mapping[str, Tensor],
    plans: Callable[[], tuple[Plan, Plan]],
    config: PrivacyConfig,
    bounded: PerImage | None,
    precision: torch.dtype | None = None,
) -> Process:
    """The steps of a process.

    Args:
        batches: Whose turn it is.
        network: What is trained.
        parameters: What the gradient is wanted for, by name.
        plans: The plan of the first step, and that of all others.
        config: Bounds of an image's part.
        bounded: How images enter sums where each one's part is bounded.
        precision: As ``travelling`` gives it.
    """
    if bounded is None:
        return Process(batches.begin, parameters, plans, precision)
    bounds = image_bounds(config, bounded)
    return ImageProcess(
        network,
        batches.begin_images,
        parameters,
        plans,
        precision,
        bounds,
        config.reproducible_noise,
    )
