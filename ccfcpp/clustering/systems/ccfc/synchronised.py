"""Training of CCFC and CCFC++ in synchronised steps over the batches of all clients.

In local steps each client descends the loss over its own images, and the server averages models
after a round. Here it adds up the clients' gradients in every step. Statistics over several images
are pooled, too: those of batch normalisation, the cluster means in Eq. (2) and the covariance in
Eq. (10). So a step does not depend on how images are partitioned. Only the server has an optimizer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import cluster_counts, required_centroids
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.config import LossConfig
from ccfcpp.clustering.systems.ccfc.messages import LABELS, ClusterSizes
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.pooled_losses import (
    LARGEST_OF_CONTRAST,
    LARGEST_OF_SIAMESE,
    contrast_program,
    predictor_program,
    siamese_program,
)
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel
from ccfcpp.clustering.systems.ccfc.schedule import contrast_learning_rate, training_settings
from ccfcpp.clustering.systems.fed_scan.objective import entropy
from ccfcpp.clustering.systems.fed_scan.representations import Latents
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.images import to_float
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    Metrics,
    ServerWork,
    SummedWork,
    Task,
)
from ccfcpp.engine.payload import check_counts, sum_updates
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart, Descent
from ccfcpp.engine.synchronised.optimizers import Adam
from ccfcpp.engine.update_format import Spec, UpdateFormat
from ccfcpp.models.pooled import Program

_LABELS = "pseudo-labels"
"""Key in a client's local state: the pseudo-labels of its images."""

_ROUND = "round"
"""Key in a client's local state: the round of its pseudo-labels."""

_PREDICTOR_RATE = 1e-3
"""Learning rate of the predictor alone, which then learns in a hundred steps."""


class SynchronisedTraining:
    """Training in synchronised steps: makes the exchanges of both phases, and their client side."""

    def __init__(
        self,
        problem: Problem,
        make_model: Callable[[], ContrastiveModel],
        rule: CentroidRule,
        global_model: GlobalModel,
    ) -> None:
        self.problem = problem
        self.training = training_settings(problem.config)
        self.loss = problem.config.section(LossConfig)
        self.rule = rule
        self.global_model = global_model
        self.model = Latents(make_model, problem.device)
        rate = self.training.learning_rate
        self.pretraining = self._descent(
            "pre-training step", self._rehearse_siamese, LARGEST_OF_SIAMESE, rate
        )
        labelled = partial(self._descent, largest=LARGEST_OF_CONTRAST, uses_memory=True)
        self.contrast = labelled("contrast step", self._rehearse_contrast, rate=rate)
        self.predictor = labelled(
            "predictor step", self._rehearse_predictor, rate=_PREDICTOR_RATE, part="predictor."
        )

    def _descent(
        self,
        name: str,
        rehearsal: Callable[[], Program],
        largest: Mapping[str, float],
        rate: float,
        uses_memory: bool = False,
        part: str = "",
    ) -> Descent:
        return Descent(
            name,
            self.model.network,
            rehearsal,
            Adam(rate),
            self.training.synchronised_batch,
            self.problem.samples,
            largest,
            precision=torch.bfloat16 if self.training.gradients == "bfloat16" else None,
            uses_memory=uses_memory,
            part=part,
        )

    @property
    def steps(self) -> range:
        """Indices of the steps of a round, enough for ``local_epochs`` passes over all images."""
        images = self.training.local_epochs * self.problem.samples
        return range(max(1, round(images / self.training.synchronised_batch)))

    def pretraining_works(self) -> Sequence[AnyServerWork]:
        """Return the exchanges of a pre-training round: its steps."""
        return self.pretraining.server_works(self.steps, lambda _: 1.0)

    def contrast_works(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchanges of a cluster-contrastive round: pseudo-labels, then steps."""
        rate = contrast_learning_rate(self.training, number)
        share = rate / self.training.learning_rate
        works: list[AnyServerWork] = [CollectSizes(self.rule.clusters)]
        if number == self.training.pretrain_rounds:
            alone = range(self.training.predictor_steps)
            works += self.predictor.server_works(alone, lambda _: 1.0, ends=True)
        return works + self.contrast.server_works(self.steps, lambda _: share)

    def client_works(self, context: ClientContext) -> list[AnyClientWork]:
        """Return the client side of all exchanges of both phases."""
        views = SiameseBatches(self.model, self.loss, self.problem.config.section(ViewsConfig))
        labelled = LabelledBatches(self.model, self.loss, self.rule.clusters)
        given = context.bounding, context.least, context.alone
        works: list[AnyClientWork] = [
            Labelling(self.global_model, self.rule, context),
            *self.pretraining.client_works(views, *given),
            *self.contrast.client_works(labelled, *given),
        ]
        if self.training.predictor_steps:
            works += self.predictor.client_works(replace(labelled, alone=True), *given)
        return works

    def _rehearse_siamese(self) -> Program:
        return siamese_program(self.model.network, self.loss, self._few_images(2))

    def _rehearse_contrast(self) -> Program:
        images, clusters = self._few_images(), self.rule.clusters
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        return contrast_program(self.model.network, clusters, self.loss, images, labels)

    def _rehearse_predictor(self) -> Program:
        latents = torch.zeros(4, self.model.network.latent, device=self.problem.device)
        labels = torch.zeros(4, dtype=torch.int64, device=self.problem.device)
        model, clusters = self.model.network, self.rule.clusters
        return predictor_program(model, clusters, self.loss, latents, labels)

    def _few_images(self, *views: int) -> torch.Tensor:
        # A rehearsal on four images shows all exchanges of a step.
        shape = (4, *views, *self.problem.image_shape)
        return torch.zeros(shape, device=self.problem.device)


@dataclass(frozen=True)
class SiameseBatches:
    """Maker of pre-training batches: two random views of each image."""

    model: Latents[ContrastiveModel]
    loss: LossConfig
    views: ViewsConfig

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Draw two views of each image of the batch ``turns``; return None if it is empty."""
        model = self.model.load(known)
        with section("views"):
            pairs = [self._draw_pair(known.version, each, randomness) for each in turns]
            shown = torch.stack([torch.cat(side) for side in zip(*pairs, strict=True)])
        if shown.shape[1] == 0:
            return None
        return Batch(partial(siamese_program, model, self.loss), (shown.transpose(0, 1),), ())

    def _draw_pair(
        self, step: int, turn: BatchPart, randomness: Randomness
    ) -> tuple[Tensor, Tensor]:
        client = turn.client
        shown = to_float(client.images[torch.cat([turn.chosen, turn.chosen])])
        if len(shown) == 0:
            return shown, shown
        generator = randomness.of_client(client.id).generator(f"views {step}")
        shape = (client.images.shape[2], client.images.shape[3])
        drawn = draw_views(len(shown), self.views, shape, generator).to(shown.device)
        first, second = render_views(shown, drawn).chunk(2)
        return first, second


@dataclass(frozen=True)
class LabelledBatches:
    """Maker of batches of images with their pseudo-labels, for cluster-contrastive training.

    Attributes:
        alone: Whether only the predictor is trained, on latents in evaluation mode.
    """

    model: Latents[ContrastiveModel]
    loss: LossConfig
    clusters: int
    alone: bool = False

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Return a step's images and labels, of clients labelled in this round; None if empty."""
        model = self.model.load(known)
        images, labels = [], []
        for turn in turns:
            memory = turn.client.memory
            if int(memory.get(_ROUND, torch.tensor(-1))) == task.round:
                images.append(to_float(turn.client.images[turn.chosen]))
                labels.append(memory[_LABELS][turn.chosen])
        if sum(map(len, labels)) == 0:
            return None
        shown, given = torch.cat(images), torch.cat(labels)
        if not self.alone:
            program = partial(contrast_program, model, self.clusters, self.loss)
            return Batch(program, (shown, given), ())
        with torch.no_grad():
            latents = model.encode(shown)
        program = partial(predictor_program, model, self.clusters, self.loss)
        return Batch(program, (latents, given), ())


@dataclass(frozen=True)
class Labelling(SummedWork[EncoderState, ClusterSizes]):
    """Client side of pseudo-labels, CCFC++'s Eq. (1): clients store them, and send counts."""

    model: GlobalModel
    rule: CentroidRule
    context: ClientContext
    exchange = LABELS

    def local_sum(
        self, task: Task, message: EncoderState, clients: Sequence[Client], randomness: Randomness
    ) -> ClusterSizes:
        """Store each image's nearest centroid as label; count labels, small counts set to 0."""
        centroids = required_centroids(message.centroids)
        counts, context = [], self.context
        for client in clients:
            seen = self.model.representations(message, client)
            labels = self.rule.assign(seen.latents, centroids)
            client.memory = {_LABELS: labels, _ROUND: torch.tensor(task.round)}
            clusters = self.rule.clusters
            counts.append(cluster_counts(labels, clusters, LABELS, context.bounding, context.least))
        return ClusterSizes(torch.stack(counts).sum(dim=0))


@dataclass(frozen=True)
class CollectSizes(ServerWork[EncoderState, EncoderState, ClusterSizes]):
    """Server side of pseudo-labels: adds up the numbers of images per cluster."""

    clusters: int
    exchange = LABELS

    def broadcast(self, state: EncoderState) -> EncoderState:
        """Return the message to clients: the global model and the global centroids."""
        return state.public

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a count for each cluster."""
        return {"counts": Spec(torch.float64, (self.clusters,))}

    def check(self, message: EncoderState, update: ClusterSizes, senders: Sequence[Member]) -> None:
        """Refuse counts that do not fit the senders' numbers of images."""
        check_counts(update.counts, senders)

    def project_noisy(self, message: EncoderState, update: ClusterSizes) -> ClusterSizes:
        """Raise counts that noise made negative to 1e-9."""
        return ClusterSizes(update.counts.clamp(min=1e-9))

    def aggregate(
        self, state: EncoderState, updates: Iterable[ClusterSizes], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Leave the state as it is, and report the entropy of the cluster sizes."""
        counts = sum_updates(updates).counts
        return state, {"entropy": float(entropy(counts / counts.sum().clamp(min=1)))}
