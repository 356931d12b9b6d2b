"""Fed-EMP: an encoder learns from crops in steps over all clients, then exact k-means clusters.

Both halves are sums over all clients, so that the result is that of all images in one place, for
every partition. The second half is Fed-KM on the latents.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.crops.centre import MeanLatent
from ccfcpp.clustering.crops.config import CropsConfig
from ccfcpp.clustering.crops.network import CropEncoder, crop_side
from ccfcpp.clustering.crops.steps import CropBatches, Crops, crops_program
from ccfcpp.clustering.exact.means import ExactMeans, hard
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.lessons import Stage, learnt
from ccfcpp.clustering.prepared import Passing, Prepared
from ccfcpp.clustering.scan.representations import Latents
from ccfcpp.core.config import IntensityViewsConfig, PrecisionConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.intensity import draw_intensity, render_intensity
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyServerWork, ClientSide, Figures
from ccfcpp.engine.synchronised.contract import DescentState
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.optimizers import Adam, Muon, falling
from ccfcpp.engine.synchronised.server import Trip
from ccfcpp.models.pooled import Program, rounding
from ccfcpp.models.state import ModelState, random_state

_STARTS = 10
"""Of k-means, where the configuration does not say how many are tried."""
_MEANS_OF_A_ROUND = 10
"""Steps of k-means in a round."""
_TOLD = "an image has many crops in the sums; take another method"


@dataclass(frozen=True)
class Encoder:
    """The encoder as the server knows it.

    Attributes:
        model: Its parameters.
        version: How many steps it has come through.
        descent: The optimizer's state; None after the last step.
        mean: The mean latent of all images, float64 (d,); None before it is known.
    """

    model: ModelState
    version: int
    descent: DescentState | None = None
    mean: Tensor | None = None


class CropLatents(Latents[CropEncoder]):
    """Latents of whole images, by their crops.

    Latents of single crops still tell colours. So crops are changed in colour as in a step: each
    place of the grid has a change of its own, which is the same for all images, clients and runs.

    Args:
        encoder: Makes the encoder.
        device: Where it computes.
        intensity: The largest changes.
    """

    def __init__(
        self,
        encoder: Callable[[], CropEncoder],
        device: torch.device,
        intensity: IntensityViewsConfig,
    ) -> None:
        super().__init__(encoder, device)
        crops, generator = self.network.grid**2, torch.Generator().manual_seed(0)
        self.draws = draw_intensity(crops, generator).to(device)
        self.intensity = intensity

    def described(self, network: CropEncoder, images: Tensor) -> Tensor:
        """Directions of the means over crops."""
        return network.described(images, self._changed)

    def _changed(self, place: int, crops: Tensor) -> Tensor:
        return render_intensity(crops, self.draws[:, place : place + 1], self.intensity)


class FedEmp(Prepared):
    """The algorithm of Fed-EMP.

    Args:
        problem: The setting.
    """

    inner: ExactMeans

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.config = problem.config.section(CropsConfig)
        precision = rounding(problem.config.section(PrecisionConfig).precision, problem.device)
        self.make_encoder = partial(CropEncoder, self.config, problem.image_shape, precision)
        inner = replace(problem, image_shape=(self.config.latent,))
        self.intensity = problem.config.section(IntensityViewsConfig)
        self.space = CropLatents(self.make_encoder, problem.device, self.intensity)
        mean = MeanLatent(Encoder, self.config.latent, self.space.latents)
        super().__init__(Stage(Encoder, [mean], self._described), ExactMeans(inner, hard, _STARTS))
        self.rounds = self.config.rounds + 1 - (-(self.inner.rounds - 1) // _MEANS_OF_A_ROUND)
        self.by_pixels = False
        rate = self.config.learning_rate
        self.descent = Descent(
            "crops",
            self.space.network,
            self._rehearsal,
            Muon(self.config.matrix_rate, Adam(rate), ()),
            self.config.batch,
            problem.samples,
            _TOLD,
            precision=torch.bfloat16 if self.config.gradients == "bfloat16" else None,
            known_trips=2,
        )

    def _rehearsal(self) -> Program:
        channels, height, width = self.problem.image_shape
        side = crop_side(height, width)
        crops = torch.zeros(2, 2, channels, side, side, device=self.problem.device)
        return crops_program(self.space.network, self.config, crops)

    def initial_state(self, randomness: Randomness) -> Any:
        """Random weights, and no centroids."""
        model = random_state(self.make_encoder, randomness.generator("model"), self.problem.device)
        encoder = Encoder(model, 0, self.descent.begin(model))
        return self._attached(self.inner.initial_state(randomness), encoder)

    def exchanges(self, number: int, state: Any) -> Sequence[AnyServerWork]:
        """Steps of the encoder; after these, k-means."""
        if number < self.config.rounds:
            return self._steps(number)
        if state.centroids is None:
            return self._first_of_means(self.inner.start())
        return self._moves(number)

    def plan(self, state: Any) -> list[Sequence[AnyServerWork]]:
        """All rounds of the encoder, and those of k-means."""
        first = self.config.rounds
        steps: list[Sequence[AnyServerWork]] = list(map(self._steps, range(first)))
        moves = [self._moves(number) for number in range(first + 1, self.rounds)]
        return [*steps, self._first_of_means(self.inner.usual_start()), *moves]

    def _first_of_means(self, start: Sequence[AnyServerWork]) -> list[AnyServerWork]:
        return [*self._learning(), *self._carrying(start)]

    def _moves(self, number: int) -> Sequence[AnyServerWork]:
        """Several steps of k-means, since the encoder goes down in each round."""
        done = (number - self.config.rounds - 1) * _MEANS_OF_A_ROUND
        count = min(_MEANS_OF_A_ROUND, self.inner.rounds - 1 - done)
        return self._carrying(count * list(self.inner.steps()))

    def _steps(self, number: int) -> "list[Training]":
        each, of = self.config.steps_per_round, self.config.steps
        steps = range(number * each, min((number + 1) * each, of))
        trips: list[Trip[Any]] = self.descent.trips(
            steps, lambda step: falling(step / of), ends=steps.stop == of
        )
        return [Training(trip) for trip in trips]

    def client_side(self, crew: Crew) -> ClientSide:
        """Steps on crops, and sums of latents."""
        side = super().client_side(crew)
        crops = Crops(self.intensity, self.config.flip_probability)
        batches = CropBatches(self.config, crops, self.space)
        steps = self.descent.works(batches, crew.bounding, crew.least)
        works = {**side.works, **{work.exchange.name: work for work in steps}}
        return ClientSide(works, side.cohort)

    def _described(self, encoder: Encoder, holder: Client) -> Client:
        """The holder of the latents' directions from their mean."""
        z = self.space.latents(encoder, holder)
        about = F.normalize(z - learnt(encoder.mean).to(z), dim=1)
        return Client(holder.id, holder.name, about, holder.labels)

    def assign_delivered(self, delivery: Any, holder: Client) -> Tensor:
        """The cluster of each image.

        Raises:
            FederationError: There are no centroids yet.
        """
        required_centroids(delivery.centroids)
        return super().assign_delivered(delivery, holder)

    def public(self, known: Encoder) -> Encoder:
        """Without the optimizer's state, which a lost last step leaves."""
        return replace(known, descent=None)

    def represent(self, state: Any, holder: Client) -> Tensor | None:
        """The latents; None before there are centroids."""
        return super().represent(state, holder) if self.knows_clusters(state) else None


class Training(Passing):
    """The server's half of a trip, on the encoder in the state."""

    def __init__(self, work: AnyServerWork) -> None:
        self.work = work
        self.exchange = work.exchange

    def broadcast(self, state: Any) -> Any:
        """What the trip sends of the encoder."""
        return self.work.broadcast(state.preparation)

    def aggregate(
        self, state: Any, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The state with the encoder as the trip leaves it."""
        encoder, figures = self.work.aggregate(state.preparation, updates, randomness)
        return replace(state, preparation=encoder), figures
