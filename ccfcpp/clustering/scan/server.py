"""What the server of Fed-SCAN does: it adds up sums, and moves the model by Adam."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim.adam import adam

from ccfcpp.clustering.scan.config import ScanConfig
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
    ScanState,
    Snapshot,
)
from ccfcpp.clustering.scan.objective import entropy
from ccfcpp.clustering.scan.statistics import Moments, Pooled, StatisticsGradient, pooled
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Figures, RefusedUpdateError, ServerWork
from ccfcpp.engine.payload import added_up, check_same_shapes, pack
from ccfcpp.models.state import ModelState

_MOMENTUM = 0.1
"""Share of a step in the running mean and variance, as in ``torch.nn.BatchNorm1d``."""

T = TypeVar("T")


def required(value: T | None) -> T:
    """What an exchange before this one of the same step has left."""
    assert value is not None  # the exchanges of a step are in order, and each has had an update
    return value


def snapshot(state: ScanState) -> Snapshot:
    """What clients need of a state to use the model."""
    return Snapshot(state.model, state.running_mean, state.running_variance, state.steps)


class PoolStatistics(ServerWork[ScanState, Snapshot, Moments]):
    """The first exchange: sums of latents become their mean and variance."""

    exchange = LATENTS

    def broadcast(self, state: ScanState) -> Snapshot:
        """The model."""
        return snapshot(state)

    def check(self, message: Snapshot, update: Moments, senders: Sequence[Member]) -> None:
        """Refuse sums of a wrong shape, and numbers that none can have."""
        wide = message.running_mean.double()
        check_same_shapes(pack(Moments(1, wide, wide)), pack(update), "sums of latents:")
        if update.count < 0 or bool((update.squares < 0).any()):
            raise RefusedUpdateError("a count or a sum of squares is negative")

    def aggregate(
        self, state: ScanState, updates: Iterable[Moments], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """The statistics of this step, and moving averages of them."""
        over = pooled(added_up(updates), state.running_mean.dtype)
        unbiased = over.variance * (over.count / max(1, over.count - 1))
        return replace(
            state,
            pooled=over,
            running_mean=state.running_mean.lerp(over.mean, _MOMENTUM),
            running_variance=state.running_variance.lerp(unbiased, _MOMENTUM),
        ), {}


class PoolPredictions(ServerWork[ScanState, Pooled, Predictions]):
    """The second exchange: sums of predictions become their mean."""

    exchange = PREDICTIONS

    def __init__(self, clusters: int) -> None:
        self.clusters = clusters

    def broadcast(self, state: ScanState) -> Pooled:
        """The pooled statistics."""
        return required(state.pooled)

    def check(self, message: Pooled, update: Predictions, senders: Sequence[Member]) -> None:
        """Refuse sums of a wrong shape."""
        expected = Predictions(torch.zeros(self.clusters, dtype=torch.float64))
        check_same_shapes(pack(expected), pack(update), "sums of predictions:")

    def aggregate(
        self, state: ScanState, updates: Iterable[Predictions], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """The mean prediction, and its entropy."""
        over = required(state.pooled)
        mean = (added_up(updates).sums / over.count).to(over.mean.dtype)
        return replace(state, predictions=mean), {"entropy": float(entropy(mean))}


class PoolGradients(ServerWork[ScanState, MeanPrediction, StatisticsGradient]):
    """The third exchange: gradients at the pooled statistics are added up."""

    exchange = STATISTICS

    def __init__(self, latent: int) -> None:
        self.latent = latent

    def broadcast(self, state: ScanState) -> MeanPrediction:
        """The mean prediction."""
        return MeanPrediction(required(state.predictions))

    def check(
        self, message: MeanPrediction, update: StatisticsGradient, senders: Sequence[Member]
    ) -> None:
        """Refuse gradients of a wrong shape."""
        wide = torch.zeros(self.latent, dtype=message.mean.dtype)
        check_same_shapes(
            pack(StatisticsGradient(wide, wide)), pack(update), "gradient at statistics:"
        )

    def aggregate(
        self, state: ScanState, updates: Iterable[StatisticsGradient], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """Their sum."""
        return replace(state, gradient=added_up(updates)), {}


class MoveModel(ServerWork[ScanState, StatisticsGradient, ModelGradient]):
    """The fourth exchange: the model moves by Adam on the summed gradient.

    Args:
        config: Of Fed-SCAN.
        model: A model with the names and shapes that a gradient must have.
    """

    exchange = GRADIENT

    def __init__(self, config: ScanConfig, model: ModelState) -> None:
        self.config = config
        self.model = model

    def broadcast(self, state: ScanState) -> StatisticsGradient:
        """The gradient at the pooled statistics."""
        return required(state.gradient)

    def check(
        self, message: StatisticsGradient, update: ModelGradient, senders: Sequence[Member]
    ) -> None:
        """Refuse a gradient of another network's shape."""
        check_same_shapes(self.model, update.gradient, "gradient of")

    def aggregate(
        self, state: ScanState, updates: Iterable[ModelGradient], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """A step, after which nothing is left of its exchanges."""
        total = added_up(updates)
        moved = adam_step(state, total.gradient, self.rate(state.steps))
        done = replace(moved, pooled=None, predictions=None, gradient=None)
        return done, {"loss": total.loss}

    def rate(self, step: int) -> float:
        """The learning rate of a step: a cosine from the configured one to 0."""
        return self.config.learning_rate * (1 + math.cos(math.pi * step / self.config.steps)) / 2


def adam_step(state: ScanState, gradient: dict[str, Tensor], rate: float) -> ScanState:
    """Adam (Kingma and Ba 2015) as PyTorch has it, on copies: a state never changes.

    Args:
        state: The state, whose moments and steps go on.
        gradient: By parameter.
        rate: The learning rate.
    """
    names = list(state.model)
    model, first, second = (
        [part[name].clone() for name in names] for part in (state.model, state.first, state.second)
    )
    steps = [torch.tensor(float(state.steps)) for _ in names]
    with torch.no_grad():
        adam(
            model,
            [gradient[name] for name in names],
            first,
            second,
            [],
            steps,
            foreach=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
    return replace(
        state,
        model=dict(zip(names, model, strict=True)),
        first=dict(zip(names, first, strict=True)),
        second=dict(zip(names, second, strict=True)),
        steps=state.steps + 1,
    )


@dataclass(frozen=True)
class FindCentres(ServerWork[ScanState, Snapshot, LatentSums]):
    """After the last step: the mean latent of each cluster.

    Attributes:
        clusters: Number of clusters k.
    """

    clusters: int
    exchange = CENTRES

    def broadcast(self, state: ScanState) -> Snapshot:
        """The model."""
        return snapshot(state)

    def check(self, message: Snapshot, update: LatentSums, senders: Sequence[Member]) -> None:
        """Refuse sums of a wrong shape."""
        sums = torch.zeros(self.clusters, len(message.running_mean), dtype=torch.float64)
        check_same_shapes(pack(LatentSums(sums, sums[:, 0])), pack(update), "sums of clusters:")

    def aggregate(
        self, state: ScanState, updates: Iterable[LatentSums], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """Where a cluster is empty, its centre is the origin."""
        total = added_up(updates)
        means = total.sums / total.counts.clamp(min=1).unsqueeze(1)
        return replace(state, centroids=means.to(state.running_mean.dtype)), {}
