"""Contrastive clustering: training by a loss over two augmented views of each image.

Such a system consists of a network and a loss (a ``Program`` of ``ccfcpp.models.pooled``). All
clients make each training step together, with the loss over a batch of all their images. After the
training steps of a round, steps of Lloyd's k-means move the centroids in latent space. Clients send
only sums.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, required_centroids
from ccfcpp.clustering.kmeans.lloyd import EncoderState, MoveCentroids, SumMembers
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.systems.fed_scan.representations import Latents
from ccfcpp.clustering.systems.fed_scan.views import Views
from ccfcpp.core.config import (
    AffineViewsConfig,
    IntensityViewsConfig,
    Positive,
    PositiveNumber,
    Section,
)
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyServerWork, ClientSide, Exchange, Images, Task
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart, Descent
from ccfcpp.engine.synchronised.optimizers import Adam, cosine_decay
from ccfcpp.models.pooled import Program
from ccfcpp.models.state import random_state


class ContrastiveConfig(Section):
    """Settings of a contrastive system's training; a subclass adds those of the system's loss."""

    rounds: Positive = 12
    steps: Positive = 10
    """Training steps in a round."""
    batch: Annotated[int, Field(ge=2, le=10**6)] = 256
    """Number of images in a step, over all clients."""
    learning_rate: PositiveNumber = 2e-3
    """Adam's learning rate in the first step; it decays to 0 along a cosine."""
    lloyd_steps: Positive = 2
    """Steps of Lloyd's k-means in a round."""


LLOYD = Exchange(
    "k-means step",
    EncoderState,
    ClusterSums,
    PARTS,
    images=Images(largest={"counts": 1.0}),
)


class ContrastiveClustering(ClusteringAlgorithm[EncoderState]):
    """Base class of systems with a network and a loss over two augmented views of each image."""

    state_type = EncoderState
    settings: ClassVar[type[ContrastiveConfig]] = ContrastiveConfig

    def __init__(self, problem: Problem) -> None:
        section = problem.config.section
        self.problem, self.config = problem, section(self.settings)
        self.rounds = self.config.rounds
        self.views = Views(section(AffineViewsConfig), section(IntensityViewsConfig))
        self.space = Latents(self.network, problem.device)
        few = torch.zeros(2, 2, *problem.image_shape, device=problem.device)
        self.descent = Descent(
            "step",
            self.space.network,
            lambda: self.program(self.space.network, few),
            Adam(self.config.learning_rate),
            self.config.batch,
            problem.samples,
            {},
        )

    @abstractmethod
    def network(self) -> nn.Module:
        """Build the network, from images (batch, channels, height, width) to (batch, d) latents."""

    @abstractmethod
    def program(self, network: nn.Module, pairs: Tensor) -> Program:
        """Return a process's generator that computes the loss over all clients' images.

        ``pairs`` are two views of each of its own images, (images, 2, channels, height, width).
        """

    def initial_state(self, randomness: Randomness) -> EncoderState:
        """Return random network weights, and centroids drawn from a normal distribution."""
        device = self.problem.device
        model = random_state(self.network, randomness.generator("model"), device)
        few = torch.zeros(2, *self.problem.image_shape, device=device)
        shape = self.problem.clusters, self.space.network(few).shape[1]
        drawn = torch.randn(shape, generator=randomness.generator("centroids"))
        return EncoderState(model, 0, drawn.to(device), self.descent.begin(model))

    def exchanges(self, number: int, state: EncoderState) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round: training steps, then steps of Lloyd's k-means."""
        steps, all_steps = self.config.steps, self.config.steps * self.rounds
        works: list[AnyServerWork] = []
        works += self.descent.server_works(
            range(number * steps, (number + 1) * steps), lambda step: cosine_decay(step / all_steps)
        )
        return works + [MoveCentroids(LLOYD)] * self.config.lloyd_steps

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: training steps, and sums for k-means."""
        lloyd = SumMembers(LLOYD, context, self._members)
        steps = self.descent.client_works(self, context.bounding, context.least, context.alone)
        return ClientSide.of(*steps, lloyd)

    def _members(self, message: EncoderState, client: Client) -> tuple[Tensor, Tensor, int]:
        return self.represent(message, client), self.assign(message, client), self.problem.clusters

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return a batch: two views of each image in ``turns``, and the loss; None if empty."""
        views = []
        for turn in turns:
            source = randomness.of_client(turn.client.id).generator(f"views {known.version}")
            images = turn.client.images[turn.chosen].repeat_interleave(2, dim=0)
            views.append(self.views.render(images, self.views.draw(len(images), source)))
        images = torch.cat(views)
        pairs = images.view(-1, 2, *images.shape[1:])
        network = self.space.load(known)
        return Batch(partial(self.program, network), (pairs,)) if len(pairs) else None

    def represent(self, state: EncoderState, client: Client) -> Tensor:
        """Return the latents of a client's images, floats of shape (samples, d)."""
        return self.space.latents(state, client)

    def assign(self, state: EncoderState, client: Client) -> Tensor:
        """Return the index of each image's nearest centroid, int64 of shape (samples,)."""
        return nearest(self.represent(state, client), required_centroids(state.centroids))

    def final_model(self, state: EncoderState) -> EncoderState:
        """Return the model and the centroids, which clients need to assign images."""
        return state.public
