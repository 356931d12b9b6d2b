"""What the clients of Fed-SCAN do, those of one process together.

All clients have the same model in a step, and send sums: the images of all clients of a process go
through one network as one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.clustering.scan.messages import TRANSITIONS, Model, Trained, Transitions
from ccfcpp.clustering.scan.neighbours import FEATURES, drawn_neighbours, nearest_neighbours
from ccfcpp.clustering.scan.objective import program
from ccfcpp.clustering.scan.representations import LatentSpace
from ccfcpp.clustering.scan.views import AnyViews
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.engine.synchronised.contract import Batch, Known
from ccfcpp.engine.synchronised.descent import Turn
from ccfcpp.engine.synchronised.optimizers import falling

_PERIOD = "period"
"""The name under which a client remembers for which period of the run it has neighbours."""

_NEIGHBOURS = "neighbours"
"""The name under which it remembers the neighbours of its images."""


class Pairs:
    """Pairs of images: whose turn it is in a step, each with one of its neighbours."""

    def __init__(self, config: ScanConfig, views: AnyViews, space: LatentSpace) -> None:
        self.config = config
        self.views = views
        self.space = space
        self._features = FEATURES[config.first_neighbours]

    def batch(
        self, task: Task, known: Known, turns: Sequence[Turn], randomness: Randomness
    ) -> Batch | None:
        """The pairs of a step. Where it is time, clients find neighbours first."""
        if self.config.pairs == "neighbours":
            for each in turns:
                self.find_neighbours(known, each.client)
        with section("batches"):
            pairs = self._views(known.version, turns, randomness)
        network = self.space.load(known)
        # A small client may have no image whose turn it is.
        if len(pairs) == 0:
            return None
        return Batch(partial(program, network, self._balance(known.version)), (pairs,))

    def _balance(self, step: int) -> float:
        """λ of a step: from the first weight to the last along a half cosine."""
        first, last = self.config.balance, self.config.last_balance
        if last is None:
            return first
        return last + (first - last) * falling(step / self.config.steps)

    def find_neighbours(self, known: Model, client: Client) -> None:
        """Let a client remember the neighbours of its images, once in each period.

        At first they are by features of the images, then among latents.
        """
        period = known.version // self.config.mine_every
        if _PERIOD in client.memory and int(client.memory[_PERIOD]) == period:
            return
        points = self._points(known, client) if period else self._features(client.images)
        with section("neighbours"):
            found = nearest_neighbours(points, self.config.neighbours)
        client.memory = {_NEIGHBOURS: found, _PERIOD: torch.tensor(period)}

    def _points(self, known: Model, client: Client) -> Tensor:
        """Latents, and beside them the first features where these have a weight."""
        latents = self.space.latents(known, client)
        if not self.config.first_weight:
            return latents
        features = F.normalize(self._features(client.images), dim=1)
        return torch.cat([F.normalize(latents, dim=1), self.config.first_weight * features], dim=1)

    def _views(self, step: int, turns: Sequence[Turn], randomness: Randomness) -> Tensor:
        """Views of the images whose turn it is and of their neighbours, as ``program`` has them."""
        pairs = [self._pairs(step, each, randomness) for each in turns]
        images = torch.cat([shown for shown, _ in pairs], dim=1).flatten(0, 1)
        draws = torch.cat([drawn for _, drawn in pairs], dim=2).flatten(1)
        views, each = self.views.render(images, draws), self.config.pairs_each
        shape = 2, len(views) // (2 * each), each, *views.shape[1:]
        return views.view(shape).transpose(0, 1).flatten(1, 2)

    def _pairs(self, step: int, turn: Turn, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Images of shape (2, pairs, …) and draws of shape (draws, 2, pairs), by images."""
        client, source = turn.client, randomness.of_client(turn.client.id)
        chosen = turn.chosen.repeat_interleave(self.config.pairs_each)
        others = chosen
        if self.config.pairs == "neighbours":
            others = drawn_neighbours(client.memory[_NEIGHBOURS], chosen, source, step)
        draws = self.views.draw(2 * len(chosen), source.generator(f"views {step}"))
        return client.images[torch.stack([chosen, others])], draws.view(len(draws), 2, -1)


@dataclass(frozen=True)
class SumTransitions(SummedWork[Trained, Transitions]):
    """How over-clusters go with those of an image's neighbours, and of all images of its client.

    Neighbours are found anew for that. Who holds an image says the more about its class, the more
    clients differ; where they do not, all over-clusters go equally with all.
    """

    pairs: Pairs
    exchange = TRANSITIONS

    def local_sum(
        self, task: Task, message: Trained, clients: Sequence[Client], randomness: Randomness
    ) -> Transitions:
        """Sums over images x of p(x) qᵀ.

        q is the mean of p over the neighbours of x, and with a weight over all images of the
        client.
        """
        return Transitions(torch.stack([self._of(message, c) for c in clients]).sum(dim=0))

    def _of(self, message: Trained, client: Client) -> Tensor:
        self.pairs.find_neighbours(message, client)
        p = self.pairs.space.predictions(message, client).double()
        neighbours = client.memory[_NEIGHBOURS].to(p.device)
        others = self.pairs.config.holder_weight * p.mean(dim=0).expand_as(p)
        for column in neighbours.T:
            others = others + p[column.long()] / neighbours.shape[1]
        return p.mT @ others
