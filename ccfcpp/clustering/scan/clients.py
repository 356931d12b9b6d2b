"""What the clients of Fed-SCAN do, those of one process together.

All clients have the same model in a step, and send sums: the images of all clients of a process go
through one network as one batch. What a process holds from one exchange of a step to the next, such
as the graph of its forward pass, is gone with the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.scan.batches import drawn_neighbours, turn
from ccfcpp.clustering.scan.config import AffineViewsConfig, ScanConfig
from ccfcpp.clustering.scan.messages import (
    CENTRES,
    GRADIENT,
    LATENTS,
    PREDICTIONS,
    STATISTICS,
    LatentSums,
    MeanPrediction,
    ModelGradient,
    Predictions,
    Snapshot,
)
from ccfcpp.clustering.scan.neighbours import nearest_neighbours
from ccfcpp.clustering.scan.network import ScanNetwork
from ccfcpp.clustering.scan.objective import predictions, share_of_loss
from ccfcpp.clustering.scan.representations import LatentSpace
from ccfcpp.clustering.scan.statistics import (
    Moments,
    Pooled,
    StatisticsGradient,
    latents_gradient,
    moments,
    normalised,
    statistics_gradient,
)
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.affine import draw_affine, render_affine
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.models.state import ModelState

_NEIGHBOURS = "neighbours"
"""The name under which a client remembers the neighbours of its images."""


@dataclass
class Step:
    """What a process holds of the step that it is in.

    Attributes:
        network: The network, whose encoder's graph is behind the latents.
        latents: a of shape (2 · pairs, d): of images, then of their neighbours.
        pooled: Their statistics over all clients, from the second exchange on.
        slopes: The loss's gradient at the normalised latents, from the third exchange on.
        head: The gradient of the head, by parameter, from the third exchange on.
        loss: The process's share of the consistency loss.
    """

    network: ScanNetwork
    latents: Tensor
    pooled: Pooled | None = None
    slopes: Tensor | None = None
    head: ModelState = field(default_factory=dict)
    loss: float = 0.0


class Process:
    """What the works of one process share: the latent space, and the steps that are open.

    Args:
        config: Of Fed-SCAN.
        views: How far views are from their images.
        space: The network; between its uses in training it gives latents.
        samples: Images of all clients of the run.
        device: Where the network runs.
    """

    def __init__(
        self,
        config: ScanConfig,
        views: AffineViewsConfig,
        space: LatentSpace,
        samples: int,
        device: torch.device,
    ) -> None:
        self.config = config
        self.views = views
        self.space = space
        self.samples = samples
        self.device = device
        self._steps: dict[tuple[int, ...], Step] = {}

    def begin(self, clients: Sequence[Client], step: Step) -> None:
        """Open a step of some clients, alone or together."""
        self._steps[_ids(clients)] = step

    def step_of(self, clients: Sequence[Client]) -> Step:
        """The step that they are in: the loop asks only those for more who have begun."""
        return self._steps[_ids(clients)]

    def end(self, clients: Sequence[Client]) -> None:
        """Drop what is left of it."""
        del self._steps[_ids(clients)]


def _ids(clients: Sequence[Client]) -> tuple[int, ...]:
    return tuple(client.id for client in clients)


class ShowPairs(SummedWork[Snapshot, Moments]):
    """The first exchange: pairs of images go through the network."""

    exchange = LATENTS

    def __init__(self, process: Process) -> None:
        self.process = process

    def local_sum(
        self, task: Task, message: Snapshot, clients: Sequence[Client], randomness: Randomness
    ) -> Moments:
        """The sums of their latents. Where it is time, clients find their neighbours first."""
        for client in clients:
            self._find_neighbours(message, client)
        with section("batches"):
            pairs = [self._pairs(message.steps, c, randomness.of_client(c.id)) for c in clients]
            firsts, seconds = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        network = self.process.space.load(message)
        with section("forward"):
            # A small client may have no image whose turn it is.
            latents = (
                network(torch.cat([firsts, seconds]))
                if len(firsts)
                else firsts.new_zeros(0, self.process.config.latent)
            )
        self.process.begin(clients, Step(network, latents))
        return moments(latents)

    def _find_neighbours(self, message: Snapshot, client: Client) -> None:
        """Among pixels at first, then among latents every so many steps."""
        config = self.process.config
        known = _NEIGHBOURS in client.memory
        if known and (message.steps == 0 or message.steps % config.mine_every):
            return
        if known:
            points = self.process.space.latents(message, client)
        else:
            points = to_float(client.images).flatten(1)
        with section("neighbours"):
            found = nearest_neighbours(points, config.neighbours)
        client.memory = {_NEIGHBOURS: found}

    def _pairs(self, step: int, client: Client, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Views of the images whose turn it is, and of a neighbour of each."""
        share = self.process.config.batch * len(client) / self.process.samples
        chosen = turn(len(client), share, step, randomness).to(client.images.device)
        others = drawn_neighbours(client.memory[_NEIGHBOURS], chosen, randomness, step)
        generator = randomness.generator(f"views {step}")
        maps = draw_affine(2 * len(chosen), self.process.views, generator)
        shown = to_float(client.images[torch.cat([chosen, others])])
        views = render_affine(shown, maps.to(shown.device))
        return views[: len(chosen)], views[len(chosen) :]


class Predict(SummedWork[Pooled, Predictions]):
    """The second exchange: normalised latents become predictions."""

    exchange = PREDICTIONS

    def __init__(self, process: Process) -> None:
        self.process = process

    def local_sum(
        self, task: Task, message: Pooled, clients: Sequence[Client], randomness: Randomness
    ) -> Predictions:
        """Their sum."""
        step = self.process.step_of(clients)
        step.pooled = message
        with torch.no_grad():
            z = normalised(step.latents, message.mean, message.variance)
            found = predictions(step.network.head(z))
        return Predictions(found.double().sum(dim=0))


class Differentiate(SummedWork[MeanPrediction, StatisticsGradient]):
    """The third exchange: the loss's gradient at predictions, head and normalised latents."""

    exchange = STATISTICS

    def __init__(self, process: Process) -> None:
        self.process = process

    def local_sum(
        self, task: Task, message: MeanPrediction, clients: Sequence[Client], randomness: Randomness
    ) -> StatisticsGradient:
        """The gradient at the pooled statistics."""
        step = self.process.step_of(clients)
        assert step.pooled is not None
        z = normalised(step.latents.detach(), step.pooled.mean, step.pooled.variance)
        z.requires_grad_()
        head = dict(step.network.head.named_parameters(prefix="head"))
        found = predictions(step.network.head(z))
        balance = self.process.config.balance
        share, loss = share_of_loss(found, message.mean, step.pooled.count, balance)
        step.slopes, *of_head = torch.autograd.grad(share, [z, *head.values()])
        step.head = dict(zip(head, of_head, strict=True))
        step.loss = float(loss)
        return statistics_gradient(step.slopes, step.latents, step.pooled)


class Backpropagate(SummedWork[StatisticsGradient, ModelGradient]):
    """The fourth exchange: the gradient goes back through the encoder."""

    exchange = GRADIENT

    def __init__(self, process: Process) -> None:
        self.process = process

    def local_sum(
        self,
        task: Task,
        message: StatisticsGradient,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> ModelGradient:
        """The gradient of the model."""
        step = self.process.step_of(clients)
        assert step.pooled is not None
        assert step.slopes is not None
        self.process.end(clients)
        encoder = dict(step.network.encoder.named_parameters(prefix="encoder"))
        if len(step.latents) == 0:
            nothing = {name: torch.zeros_like(entry) for name, entry in encoder.items()}
            return ModelGradient(nothing | step.head, step.loss)
        slopes = latents_gradient(step.slopes, step.latents, step.pooled, message)
        with section("backward"):
            found = torch.autograd.grad(step.latents, list(encoder.values()), slopes)
        return ModelGradient(dict(zip(encoder, found, strict=True)) | step.head, step.loss)


class SumLatents(SummedWork[Snapshot, LatentSums]):
    """At the end: where the clusters lie in the latent space.

    Args:
        space: The latent space.
    """

    exchange = CENTRES

    def __init__(self, space: LatentSpace) -> None:
        self.space = space

    def local_sum(
        self, task: Task, message: Snapshot, clients: Sequence[Client], randomness: Randomness
    ) -> LatentSums:
        """Sums of the latents of each cluster's images."""
        sums, counts = [], []
        for client in clients:
            clusters = self.space.clusters(message, client)
            k = self.space.network.head.out_features
            members = F.one_hot(clusters, k).double()
            sums.append(members.T @ self.space.latents(message, client).double())
            counts.append(members.sum(dim=0))
        return LatentSums(torch.stack(sums).sum(dim=0), torch.stack(counts).sum(dim=0))
