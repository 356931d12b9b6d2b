"""Fed-EMP: trains an encoder on crops of images, then runs exact k-means on its latents.

Both parts need only sums over all clients, so the result is the same as with all images in one
place. The first part is a phase (``ccfcpp.clustering.preprocessing.phases``), the second Fed-KM on
the latents.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import SumOfClients
from ccfcpp.clustering.preprocessing.phases import Phase, PhasedClustering
from ccfcpp.clustering.preprocessing.vectors import PARTS, Sums
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_emp.network import CropEncoder, crop_offsets, crop_side
from ccfcpp.clustering.systems.fed_emp.steps import CropBatches, Crops, crops_program
from ccfcpp.clustering.systems.fed_scan.representations import Latents
from ccfcpp.clustering.systems.pooled.means import ExactMeans
from ccfcpp.core.config import IntensityViewsConfig, PrecisionConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.intensity import draw_intensity, render_intensity
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    Exchange,
    Metrics,
    ServerWork,
)
from ccfcpp.engine.payload import check_counts, sum_updates
from ccfcpp.engine.synchronised.contract import DescentState
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.optimizers import Adam, Muon, cosine_decay
from ccfcpp.engine.update_format import Spec, UpdateFormat
from ccfcpp.models.pooled import Program, rounding_dtype
from ccfcpp.models.state import ModelState, random_state

_RESTARTS = 10
"""Default number of initialisations of k-means."""
_STEPS_PER_ROUND = 10
"""Steps of k-means in a round; several, since each round sends the encoder."""
_NO_BOUND = "an image has many crops in the sums; take another method"


@dataclass(frozen=True)
class CropEncoderState:
    """State of the server: the encoder and its training.

    Attributes:
        model: The encoder's parameters.
        version: Number of training steps so far.
        descent: The optimizer's state; None after the last step.
        mean: The mean latent of all images, float64 (d,); None before it is known. It is subtracted
            from latents, since it is large and does not distinguish clusters.
    """

    model: ModelState
    version: int
    descent: DescentState | None = None
    mean: Tensor | None = None

    @property
    def public(self) -> "CropEncoderState":
        """The part of the state that is sent to clients: without the optimizer's state."""
        return replace(self, descent=None)


MEAN = Exchange("mean latent", CropEncoderState, Sums, PARTS, once=True)


class CropLatents(Latents[CropEncoder]):
    """Encoder of whole images: the latent of an image is the mean over those of its crops.

    The crops lie on a grid and are changed in colour as in training, so that the mean depends less
    on colour. Each place of the grid has one change, the same for all images, clients and runs.

    Args:
        encoder: Builds the encoder of crops.
        device: Device of the computation.
        intensity: Ranges of the colour changes.
    """

    def __init__(
        self,
        encoder: Callable[[], CropEncoder],
        device: torch.device,
        intensity: IntensityViewsConfig,
    ) -> None:
        super().__init__(encoder, device)
        crops, generator = self.network.described_grid**2, torch.Generator().manual_seed(0)
        self.draws = draw_intensity(crops, generator).to(device)
        self.intensity = intensity

    def encode(self, network: CropEncoder, images: Tensor) -> Tensor:
        """Return the mean latent over each image's crops, scaled to length 1: (images, d)."""
        height, width = sizes = images.shape[2:]
        side = crop_side(height, width, network.described_side)
        corners = product(*(crop_offsets(size, side, network.described_grid) for size in sizes))
        total = images.new_zeros(())
        for draws, (top, left) in zip(torch.split(self.draws, 1, dim=1), corners, strict=True):
            crops = images[:, :, top : top + side, left : left + side]
            total = total + network(render_intensity(crops, draws, self.intensity))
        return F.normalize(total, dim=1)


class CropPhase(Phase[CropEncoderState]):
    """Phase that trains the encoder on crops, then computes the mean latent of all images."""

    knowledge = CropEncoderState

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.config = problem.config.section(CropsConfig)
        self.intensity = problem.config.section(IntensityViewsConfig)
        self.rounds = self.config.rounds
        precision = rounding_dtype(
            problem.config.section(PrecisionConfig).precision, problem.device
        )
        self.make_encoder = partial(CropEncoder, self.config, problem.image_shape, precision)
        self.space = CropLatents(self.make_encoder, problem.device, self.intensity)
        self.descent = Descent(
            "crops",
            self.space.network,
            self._rehearsal,
            Muon(
                self.config.matrix_rate,
                Adam(self.config.learning_rate),
                (),
                precision=precision,
            ),
            self.config.batch,
            problem.samples,
            _NO_BOUND,
            precision=torch.bfloat16 if self.config.gradients == "bfloat16" else None,
            known_trips=2,
        )

    def _rehearsal(self) -> Program:
        channels, height, width = self.problem.image_shape
        side = crop_side(height, width)
        crops = torch.zeros(2, 2, channels, side, side, device=self.problem.device)
        return crops_program(self.space.network, self.config.weight, crops)

    def begin(self, randomness: Randomness) -> CropEncoderState:
        """Return the first state of the phase: an encoder with random weights."""
        model = random_state(self.make_encoder, randomness.generator("model"), self.problem.device)
        return CropEncoderState(model, 0, self.descent.begin(model))

    def exchanges(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round: the steps that train the encoder."""
        each, of = self.config.steps_per_round, self.config.steps
        steps = range(number * each, min((number + 1) * each, of))
        return self.descent.server_works(
            steps, lambda step: cosine_decay(step / of), ends=steps.stop == of
        )

    def last_exchanges(self) -> Sequence[AnyServerWork]:
        """Return the exchange that computes the mean latent."""
        return [FindMean(self.config.latent)]

    def client_works(self, context: ClientContext) -> Sequence[AnyClientWork]:
        """Return the client side of the steps on crops, and of the mean latent."""
        crops = Crops(self.intensity, self.config.flip_probability)
        batches = CropBatches(self.config, crops, self.space)
        latents = SumLatents(MEAN, context, self.config.latent, self.space)
        steps = self.descent.client_works(batches, context.bounding, context.least, context.alone)
        return [*steps, latents]

    def is_learnt(self, known: CropEncoderState) -> bool:
        """Return whether the phase has ended: whether the mean latent is known."""
        return known.mean is not None

    def samples(self, known: CropEncoderState, client: Client) -> Tensor:
        """Return the vectors to cluster: z − mean latent, scaled to length 1, (images, d)."""
        assert known.mean is not None
        z = self.space.latents(known, client)
        return F.normalize(z - known.mean.to(z), dim=1)

    def public(self, known: CropEncoderState) -> CropEncoderState:
        """Return what clients need to encode images: the encoder and the mean latent."""
        return known.public


@dataclass(frozen=True)
class FindMean(ServerWork[CropEncoderState, CropEncoderState, Sums]):
    """Server side of the mean latent of all images, of ``d`` dimensions."""

    d: int
    exchange = MEAN

    def broadcast(self, state: CropEncoderState) -> CropEncoderState:
        """Return the message to clients: the encoder."""
        return state.public

    def update_format(self, message: CropEncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum of latents, and the number of images."""
        return {"sums": Spec(torch.float64, (self.d,)), "counts": Spec(torch.float64, (1,))}

    def check(self, message: CropEncoderState, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse a number of images that is larger than the senders'."""
        check_counts(update.counts, senders)

    def aggregate(
        self, state: CropEncoderState, updates: Iterable[Sums], randomness: Randomness
    ) -> tuple[CropEncoderState, Metrics]:
        """Store the mean latent in the state."""
        return replace(state, mean=sum_updates(updates).mean), {}


@dataclass(frozen=True)
class SumLatents(SumOfClients[CropEncoderState, Sums]):
    """Client side of the mean latent; a client with too few images adds nothing."""

    d: int
    space: CropLatents

    def of_client(self, message: CropEncoderState, client: Client, randomness: Randomness) -> Sums:
        """Sum the latents of a client's images, and count the images."""
        z = client.images.new_zeros((0, self.d), dtype=torch.float64)
        if len(client) >= self.context.least:
            z = self.space.latents(message, client).double()
        return Sums(z.sum(dim=0), z.new_full((1,), len(z)))


class FedEmp(PhasedClustering):
    """Fed-EMP: an encoder trained on crops of images, then exact k-means on the latents."""

    phase: CropPhase
    system: ExactMeans

    def __init__(self, problem: Problem) -> None:
        phase = CropPhase(problem)
        inner = replace(problem, image_shape=(phase.config.latent,))
        super().__init__(phase, ExactMeans(inner, _RESTARTS, _STEPS_PER_ROUND))
        self.by_pixels = False
