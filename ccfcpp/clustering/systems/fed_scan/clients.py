"""The clients' work in Fed-SCAN, done together for all clients of a process.

All clients have the same model in a step and send sums, so the images of all clients of a process
go through one network as one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.messages import TRANSITIONS, ModelVersion, Transitions
from ccfcpp.clustering.systems.fed_scan.neighbours import (
    FEATURES,
    drawn_neighbours,
    nearest_neighbours,
)
from ccfcpp.clustering.systems.fed_scan.objective import program
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.views import AnyViews
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.engine.payload import sum_updates
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart
from ccfcpp.engine.synchronised.optimizers import cosine_decay

_PERIOD = "period"
"""Key in a client's local state: the period of the run in which it searched neighbours."""

_NEIGHBOURS = "neighbours"
"""Key in a client's local state: the neighbours of its images."""

_FIRST = "first features"
"""Key in its scratch: the kind of first features, and these."""

_WIDTHS = (1, 2, 4, 8)
"""Factors of ``scan.neighbours``: the numbers of neighbours over which predictions are averaged."""


class Pairs:
    """Batches of pairs: each image of a step's batch with one of its neighbours."""

    def __init__(
        self, config: ScanConfig, views: AnyViews, space: LatentSpace, folds: int = 1
    ) -> None:
        self.config = config
        self.views = views
        self.space = space
        self.folds = folds

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return the pairs of a step, after a new search for neighbours if it is due."""
        if self.config.pairs == "neighbours":
            for each in turns:
                self.find_neighbours(known, each.client)
        with section("batches"):
            pairs = self._views(known.version, turns, randomness)
        network = self.space.load(known)
        # A small client may have no image in a step.
        if len(pairs) == 0:
            return None
        balance = self._balance(known.version)
        # One that changes is another in each step.
        course = balance if self.config.last_balance is None else None
        return Batch(partial(program, network, balance), (pairs,), course)

    def _balance(self, step: int) -> float:
        """Return λ of a step, which goes from the first to the last weight along a half cosine."""
        first, last = self.config.balance, self.config.last_balance
        if last is None:
            return first
        return last + (first - last) * cosine_decay(step / self.config.steps)

    def find_neighbours(self, known: ModelVersion, client: Client) -> None:
        """Store the neighbours of a client's images in its local state, once in each period.

        The first search compares features of the images, later ones compare latents.
        """
        period = known.version // self.config.mine_every
        if _PERIOD in client.memory and int(client.memory[_PERIOD]) == period:
            return
        points = self._points(known, client) if period else self._features(client)
        with section("neighbours"):
            found = nearest_neighbours(points, self.widths[-1])
        client.memory = {_NEIGHBOURS: found, _PERIOD: torch.tensor(period)}

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of nearest neighbours over which predictions are averaged.

        There are several if k is unknown: parts of a large class may not be near neighbours.
        """
        several = _WIDTHS if self.folds > 1 else (1,)
        return [self.config.neighbours * width for width in several]

    def near(self, p: Tensor, client: Client) -> Tensor:
        """Return the mean of p over the neighbours of each image, averaged over ``widths``."""
        nearest = client.memory[_NEIGHBOURS].to(p.device).T
        total = torch.zeros_like(p)
        for width in self.widths:
            mean = torch.zeros_like(p)
            for column in nearest[:width]:
                mean += p[column.long()] / min(width, len(nearest))
            total += mean
        return total / len(self.widths)

    def _points(self, known: ModelVersion, client: Client) -> Tensor:
        """Return latents, joined with the first features if these have a weight."""
        latents = self.space.latents(known, client)
        if not self.config.first_weight:
            return latents
        features = F.normalize(self._features(client), dim=1)
        return torch.cat([F.normalize(latents, dim=1), self.config.first_weight * features], dim=1)

    def _features(self, client: Client) -> Tensor:
        """Return the features for the first search; in half precision if used again."""
        kind = self.config.first_neighbours
        held = client.scratch.get(_FIRST)
        if held is None or held[0] != kind:
            with section("first features"):
                found = FEATURES[kind](client.images)
                if client.images.is_floating_point():  # Vectors may be too large for 16 bits.
                    found = F.normalize(found, dim=1)
                held = kind, found.half()
            if self.config.first_weight:
                client.scratch[_FIRST] = held
        features: Tensor = held[1].float()
        return features

    def _views(self, step: int, turns: Sequence[BatchPart], randomness: Randomness) -> Tensor:
        """Return views of a step's images and of their neighbours, as ``program`` takes them."""
        pairs = [self._pairs(step, each, randomness) for each in turns]
        images = torch.cat([shown for shown, _ in pairs], dim=1).flatten(0, 1)
        draws = torch.cat([drawn for _, drawn in pairs], dim=2).flatten(1)
        views, each = self.views.render(images, draws), self.config.pairs_each
        shape = 2, len(views) // (2 * each), each, *views.shape[1:]
        return views.view(shape).transpose(0, 1).flatten(1, 2)

    def _pairs(self, step: int, turn: BatchPart, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Return images (2, pairs, …), and draws of shape (draws, 2, pairs) for their views."""
        client, source = turn.client, randomness.of_client(turn.client.id)
        chosen = turn.chosen.repeat_interleave(self.config.pairs_each)
        others = chosen
        if self.config.pairs == "neighbours":
            nearest = client.memory[_NEIGHBOURS][:, : self.config.neighbours]
            others = drawn_neighbours(nearest, chosen, source, step)
        draws = self.views.draw(2 * len(chosen), source.generator(f"views {step}"))
        return client.images[torch.stack([chosen, others])], draws.view(len(draws), 2, -1)


@dataclass(frozen=True)
class SumTransitions(SummedWork[EncoderState, Transitions]):
    """Sums of the joint over-cluster probabilities of pairs of images of a client.

    Pairs are an image and its neighbours, which are searched again, and all two images of a client.
    Clients, and folds, with fewer than ``least`` images add nothing.
    """

    pairs: Pairs
    least: int = 0
    exchange = TRANSITIONS

    def local_sum(
        self, task: Task, message: EncoderState, clients: Sequence[Client], randomness: Randomness
    ) -> Transitions:
        """Sum p(x) qᵀ over images x.

        q is the mean of p over the neighbours of x, or over all other images of its client.
        """
        return sum_updates(
            self._of(message, each, randomness.of_client(each.id)) for each in clients
        )

    def _of(self, message: EncoderState, client: Client, randomness: Randomness) -> Transitions:
        self.pairs.find_neighbours(message, client)
        p = self.pairs.space.predictions(message, client).double()
        near = self.pairs.near(p, client)
        folds = self.pairs.folds
        fold = torch.randint(folds, (len(p),), generator=randomness.generator("folds")).to(p.device)
        by_fold = torch.stack([p[fold == i].mT @ near[fold == i] for i in range(folds)])
        by_fold *= (fold.bincount(minlength=folds) >= self.least).view(-1, 1, 1)
        total = p.sum(dim=0)
        # An image and itself are no pair: they would say that an over-cluster goes with itself.
        pairs = torch.outer(total, total) - p.mT @ p
        pairs *= len(p) >= self.least
        return Transitions(by_fold, pairs.clamp(min=0) / max(1, len(p) - 1))
