"""Training of CCFC and CCFC++ in synchronised steps: each is one over the batches of all clients.

In local steps each client descends the loss over its own images, and models are averaged after a
round. Here gradients are added up in every step, and whatever couples images is pooled: batch
normalisation, the means of clusters in Eq. (2), and the covariance in Eq. (10). A step is then the
same for every partition. The server keeps Adam's moments; clients keep none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.ccfc.centroids import CentroidRule
from ccfcpp.clustering.ccfc.config import LossConfig
from ccfcpp.clustering.ccfc.messages import LABELS, CCFCState, ClusterSizes
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.ccfc.pooled_losses import (
    LARGEST_OF_CONTRAST,
    LARGEST_OF_SIAMESE,
    contrast_program,
    siamese_program,
)
from ccfcpp.clustering.ccfc.representations import GlobalModel
from ccfcpp.clustering.ccfc.schedule import contrast_learning_rate, training_of
from ccfcpp.clustering.ccfc.synchronised_clients import (
    LabelledBatches,
    Labelling,
    SiameseBatches,
    TrainedModel,
)
from ccfcpp.clustering.scan.objective import entropy
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import (
    ClientWork,
    Exchange,
    Figures,
    PerImage,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.payload import added_up, check_same_shapes, check_samples, pack
from ccfcpp.engine.synchronised.clients import TripWork, trip_works
from ccfcpp.engine.synchronised.messages import Contribution, Known, trips
from ccfcpp.engine.synchronised.optimizers import Adam
from ccfcpp.engine.synchronised.plan import Lags, Plan, rehearsed
from ccfcpp.engine.synchronised.server import Steps, Trip
from ccfcpp.engine.synchronised.tape import Tape
from ccfcpp.models.pooled import Program, moved_parameters
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.image_steps import Batches, per_image, process_of, travelling, turn_of


class Phase:
    """One of the two phases, as server and clients know it.

    Args:
        name: What its steps are called.
        model: What is trained.
        program: A step on a few images, which shows what trips a step takes.
        rate: The configured learning rate.
        bounded: How images enter sums, where each one's part is bounded.
        uses_memory: Whether clients need what they remember.
    """

    def __init__(
        self,
        name: str,
        model: TrainedModel,
        program: Callable[[], Program],
        rate: float,
        bounded: PerImage | None,
        uses_memory: bool = False,
    ) -> None:
        self.name = name
        self.network = model.network
        self.parameters = moved_parameters(model.network)
        self.bounded = bounded
        self.program = program
        self.rate = rate
        self.uses_memory = uses_memory

    @cached_property
    def plan(self) -> Plan:
        """The trips of a step."""
        return rehearsed(lambda: Tape(self.program(), self.parameters), Lags())[0]

    @cached_property
    def exchanges(self) -> list[Exchange[Known, Contribution]]:
        """What the trips are called."""
        return trips(self.name, len(self.plan.trips), self.uses_memory, self.bounded)

    def trips(self, count: int, rate: float) -> list[Trip[CCFCState]]:
        """The server's work in some steps with a learning rate."""
        names = list(self.parameters)
        steps = Steps(
            self.exchanges,
            Adam(self.rate),
            names,
            lambda _: rate / self.rate,
            travelling(self.bounded),
        )
        return steps.step(self.plan) * count

    def trip_works(self, batches: Batches, privacy: PrivacyConfig) -> list[TripWork]:
        """The clients' work of each trip."""
        plans = self.plan, self.plan
        process = process_of(
            batches,
            self.network,
            self.parameters,
            lambda: plans,
            privacy,
            self.bounded,
            travelling(self.bounded),
        )
        return trip_works(process, self.exchanges)


class SynchronisedTraining:
    """Both phases.

    Args:
        problem: What the algorithm is made for.
        make_model: Builds the network.
        rule: How representations are assigned.
        global_model: The frozen global model, which gives pseudo-labels.
    """

    def __init__(
        self,
        problem: Problem,
        make_model: Callable[[], ContrastiveModel],
        rule: CentroidRule,
        global_model: GlobalModel,
    ) -> None:
        self.problem = problem
        self.training = training_of(problem.config)
        self.loss = problem.config.section(LossConfig)
        self.rule = rule
        self.global_model = global_model
        self.model = TrainedModel(make_model, problem.device)
        self.privacy = problem.config.section(PrivacyConfig)
        self.pretraining = self._phase("pre-training step", self._siamese, LARGEST_OF_SIAMESE)
        self.contrast = self._phase(
            "contrast step", self._contrast, LARGEST_OF_CONTRAST, uses_memory=True
        )

    def _phase(
        self,
        name: str,
        program: Callable[[], Program],
        largest: Mapping[str, float],
        uses_memory: bool = False,
    ) -> Phase:
        batch, samples = self.training.synchronised_batch, self.problem.samples
        bounded = per_image(self.privacy, batch, samples, largest)
        rate = self.training.learning_rate
        return Phase(name, self.model, program, rate, bounded, uses_memory)

    @property
    def steps(self) -> int:
        """Steps of a round: as many as ``local_epochs`` passes over all images take."""
        images = self.training.local_epochs * self.problem.samples
        return max(1, round(images / self.training.synchronised_batch))

    def pretraining_works(self) -> Sequence[ServerWork[CCFCState, Any, Any]]:
        """The server's work in a round of pre-training."""
        return self.pretraining.trips(self.steps, self.training.learning_rate)

    def contrast_works(self, number: int) -> Sequence[ServerWork[CCFCState, Any, Any]]:
        """The server's work in a cluster-contrastive round: pseudo-labels, and steps."""
        rate = contrast_learning_rate(self.training, number)
        return [CollectSizes(self.problem.clusters), *self.contrast.trips(self.steps, rate)]

    def client_works(self) -> list[ClientWork[Any, Any]]:
        """The clients' work in both phases."""
        turn = turn_of(self.privacy)
        shared = self.model, self.training, self.loss, self.problem.samples, turn
        views = SiameseBatches(self.problem.config.section(ViewsConfig), *shared)
        labelled = LabelledBatches(self.problem.clusters, *shared)
        return [
            Labelling(self.global_model, self.rule, self.privacy),
            *self.pretraining.trip_works(views, self.privacy),
            *self.contrast.trip_works(labelled, self.privacy),
        ]

    def _siamese(self) -> Program:
        return siamese_program(self.model.network, self._few_images(), self.loss)

    def _contrast(self) -> Program:
        images = self._few_images()
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        clusters = self.problem.clusters
        return contrast_program(self.model.network, images, labels, clusters, self.loss)

    def _few_images(self) -> torch.Tensor:
        return torch.zeros(4, *self.problem.image_shape, device=self.problem.device)


@dataclass(frozen=True)
class CollectSizes(ServerWork[CCFCState, CCFCState, ClusterSizes]):
    """The server hears how many images have which pseudo-label.

    Attributes:
        clusters: Number of clusters k.
    """

    clusters: int
    exchange = LABELS

    def broadcast(self, state: CCFCState) -> CCFCState:
        """The global model and the global centroids."""
        return state.public

    def expected(self, message: CCFCState) -> ClusterSizes:
        """A number for each cluster."""
        return ClusterSizes(torch.zeros(self.clusters, dtype=torch.float64))

    def check(self, message: CCFCState, update: ClusterSizes, senders: Sequence[Member]) -> None:
        """Refuse sizes that are not those of the senders' images."""
        check_same_shapes(pack(self.expected(message)), pack(update), "pseudo-labels:")
        if bool((update.counts < 0).any()):
            raise RefusedUpdateError("a cluster has fewer than no images")
        check_samples(int(update.counts.sum()), senders)

    def mended(self, message: CCFCState, update: ClusterSizes) -> ClusterSizes:
        """With noise there may be negative ones: they become almost 0."""
        return ClusterSizes(update.counts.clamp(min=1e-9))

    def aggregate(
        self, state: CCFCState, updates: Iterable[ClusterSizes], randomness: Randomness
    ) -> tuple[CCFCState, Figures]:
        """The state stays as it is; the figure is the entropy of the clusters' shares."""
        counts = added_up(updates).counts
        return state, {"entropy": float(entropy(counts / counts.sum()))}
