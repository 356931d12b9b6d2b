"""Client side of Fed-SCAN: batches of pairs, and sums for merges.

In a step all clients have the same model and send sums, so the images of all clients of a process
go through the network as one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import SumOfClients
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.messages import ModelVersion, Transitions
from ccfcpp.clustering.systems.fed_scan.neighbours import (
    FEATURES,
    draw_neighbours,
    nearest_neighbours,
)
from ccfcpp.clustering.systems.fed_scan.objective import scan_program
from ccfcpp.clustering.systems.fed_scan.representations import LatentSpace
from ccfcpp.clustering.systems.fed_scan.views import AnyViews
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart
from ccfcpp.engine.synchronised.optimizers import cosine_decay

_PERIOD = "period"
"""Key in a client's local state: the period (``mine_every`` steps) of its last neighbour search."""

_NEIGHBOURS = "neighbours"
"""Key in a client's local state: the neighbours of its images."""

_FIRST = "first features"
"""Key in a client's cache: the name of the first features, and the features."""

_COUNT_FACTORS = (1, 2, 4, 8)
"""Multiples of ``scan.neighbours`` over which predictions are averaged if k is unknown."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Maker of batches of pairs: views of an image, and of one of its neighbours.

    ``folds`` is the number of random subsets of the images: 1, unless k is chosen from the data.
    """

    config: ScanConfig
    views: AnyViews
    space: LatentSpace
    folds: int = 1

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return a step's pairs, None if there are none; first search for neighbours if due."""
        if self.config.pairs == "neighbours":
            for each in turns:
                self.find_neighbours(known, each.client)
        with section("batches"):
            pairs = self._draw_views(known.version, turns, randomness)
        network = self.space.load(known)
        if len(pairs) == 0:
            return None
        balance = self._balance(known.version)
        # A captured graph cannot be used in another step if λ changes.
        course = balance if self.config.last_balance is None else None
        return Batch(partial(scan_program, network, balance), (pairs,), course)

    def _balance(self, step: int) -> float:
        """Return the weight λ of a step; with ``last_balance``, it changes along a half cosine."""
        first, last = self.config.balance, self.config.last_balance
        if last is None:
            return first
        return last + (first - last) * cosine_decay(step / self.config.steps)

    def find_neighbours(self, known: ModelVersion, client: Client) -> None:
        """Search the neighbours of a client's images, and store them in its local state.

        This is done once in ``mine_every`` steps. The first search compares features of the images,
        later ones compare latents.
        """
        period = known.version // self.config.mine_every
        if _PERIOD in client.memory and int(client.memory[_PERIOD]) == period:
            return
        points = self._points(known, client) if period else self._features(client)
        with section("neighbours"):
            neighbours = nearest_neighbours(points, self.neighbour_counts[-1])
        client.memory = {_NEIGHBOURS: neighbours, _PERIOD: torch.tensor(period)}

    @property
    def neighbour_counts(self) -> Sequence[int]:
        """Numbers of nearest neighbours over each of which predictions are averaged.

        There are several if k is unknown, since subclasses of a large class may be far apart.
        """
        factors = _COUNT_FACTORS if self.folds > 1 else (1,)
        return [self.config.neighbours * factor for factor in factors]

    def mean_over_neighbours(self, p: Tensor, client: Client) -> Tensor:
        """Return the mean of p (samples, m) over neighbours, averaged over ``neighbour_counts``."""
        nearest = client.memory[_NEIGHBOURS].to(p.device).T
        total = torch.zeros_like(p)
        for count in self.neighbour_counts:
            mean = torch.zeros_like(p)
            for column in nearest[:count]:
                mean += p[column.long()] / min(count, len(nearest))
            total += mean
        return total / len(self.neighbour_counts)

    def _points(self, known: ModelVersion, client: Client) -> Tensor:
        """Return the points of a later search: latents, and first features if they have weight."""
        latents = self.space.latents(known, client)
        if not self.config.first_weight:
            return latents
        features = F.normalize(self._features(client), dim=1)
        return torch.cat([F.normalize(latents, dim=1), self.config.first_weight * features], dim=1)

    def _features(self, client: Client) -> Tensor:
        """Return the features that the first search compares, in half precision."""
        kind = self.config.first_neighbours
        cached = client.scratch.get(_FIRST)
        if cached is None or cached[0] != kind:
            with section("first features"):
                computed = FEATURES[kind](client.images)
                if client.images.is_floating_point():  # Vectors may be too large for 16 bits.
                    computed = F.normalize(computed, dim=1)
                cached = kind, computed.half()
            if self.config.first_weight:
                client.scratch[_FIRST] = cached
        features: Tensor = cached[1].float()
        return features

    def _draw_views(self, step: int, turns: Sequence[BatchPart], randomness: Randomness) -> Tensor:
        """Draw views of a step's images and neighbours, of the shape ``scan_program`` takes."""
        pairs = [self._draw_pairs(step, each, randomness) for each in turns]
        images = torch.cat([shown for shown, _ in pairs], dim=1).flatten(0, 1)
        draws = torch.cat([drawn for _, drawn in pairs], dim=2).flatten(1)
        views, each = self.views.render(images, draws), self.config.pairs_each
        shape = 2, len(views) // (2 * each), each, *views.shape[1:]
        return views.view(shape).transpose(0, 1).flatten(1, 2)

    def _draw_pairs(
        self, step: int, turn: BatchPart, randomness: Randomness
    ) -> tuple[Tensor, Tensor]:
        """Draw a client's pairs: images (2, pairs, …), and random numbers (draws, 2, pairs)."""
        client, source = turn.client, randomness.of_client(turn.client.id)
        chosen = turn.chosen.repeat_interleave(self.config.pairs_each)
        others = chosen
        if self.config.pairs == "neighbours":
            nearest = client.memory[_NEIGHBOURS][:, : self.config.neighbours]
            others = draw_neighbours(nearest, chosen, source, step)
        draws = self.views.draw(2 * len(chosen), source.generator(f"views {step}"))
        return client.images[torch.stack([chosen, others])], draws.view(len(draws), 2, -1)


@dataclass(frozen=True)
class SumTransitions(SumOfClients[EncoderState, Transitions]):
    """Client side of a merge: sums of the joint over-cluster probabilities of pairs of images.

    Pairs are an image and each of its neighbours, which are searched anew, and any two images of a
    client. An over-cluster with a mass (Σ p) of fewer than ``context.least`` images in a fold (a
    random subset) of a client adds no row, and none to the pairs if it has so in the whole client.
    """

    pairs: Pairs

    def of_client(
        self, message: EncoderState, client: Client, randomness: Randomness
    ) -> Transitions:
        """Sum p(x) qᵀ over a client's images x, for two kinds of q.

        p(x) holds the probabilities of the over-clusters. q is the mean of p over the neighbours of
        x, or over all other images of the client.
        """
        self.pairs.find_neighbours(message, client)
        p = self.pairs.space.predictions(message, client).double()
        near = self.pairs.mean_over_neighbours(p, client)
        folds = self.pairs.folds
        fold = torch.randint(folds, (len(p),), generator=randomness.generator("folds")).to(p.device)
        by_fold = torch.stack([p[fold == i].mT @ near[fold == i] for i in range(folds)])
        least = self.context.least if self.context.least > 1 else 0
        by_fold *= (F.one_hot(fold, folds).to(p).mT @ p >= least).unsqueeze(2)
        p = p * (p.sum(dim=0) >= least)
        total = p.sum(dim=0)
        # Without pairs of an image and itself, which would favour over-clusters as they are.
        pairs = torch.outer(total, total) - p.mT @ p
        return Transitions(by_fold, pairs.clamp(min=0) / max(1, len(p) - 1))
