"""What travels between the server and the clients of Fed-SCAN.

A step has four exchanges. In each, clients send sums, so that the server needs to know none of the
summands:

1. the model goes down; sums of the latents come up,
2. the pooled mean and variance go down; the sum of the predictions comes up,
3. the mean prediction goes down; the gradient at the pooled statistics comes up,
4. its sum goes down; the gradient of the model comes up.
"""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.clustering.scan.statistics import Moments, Pooled, StatisticsGradient
from ccfcpp.engine.exchange import Exchange
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class ScanState:
    """What the server knows.

    Attributes:
        model: The network's parameters.
        running_mean: Moving average of the pooled means of the latents, of shape (d,).
        running_variance: Moving average of their variances, of shape (d,).
        steps: How many steps were made.
        first: Adam's first moments, by parameter.
        second: Adam's second moments, by parameter.
        centroids: The mean latent of each cluster, of shape (k, d); None before the last round.
        pooled: In a step: statistics of the latents.
        predictions: In a step: the mean prediction p̄ of shape (k,).
        gradient: In a step: the gradient at the pooled statistics.
    """

    model: ModelState
    running_mean: Tensor
    running_variance: Tensor
    steps: int
    first: ModelState
    second: ModelState
    centroids: Tensor | None = None
    pooled: Pooled | None = None
    predictions: Tensor | None = None
    gradient: StatisticsGradient | None = None


@dataclass(frozen=True)
class Snapshot:
    """A model that clients can use.

    Attributes:
        model: The network's parameters.
        running_mean: Of the latents, of shape (d,).
        running_variance: Of the latents, of shape (d,).
        steps: How many steps it has come through, which is its version.
    """

    model: ModelState
    running_mean: Tensor
    running_variance: Tensor
    steps: int


@dataclass(frozen=True)
class Predictions:
    """A sum of predictions.

    Attributes:
        sums: Σp, float64 of shape (k,).
    """

    sums: Tensor


@dataclass(frozen=True)
class MeanPrediction:
    """The mean prediction over all clients.

    Attributes:
        mean: p̄ of shape (k,).
    """

    mean: Tensor


@dataclass(frozen=True)
class ModelGradient:
    """A client's part of the gradient of the loss.

    Attributes:
        gradient: By parameter.
        loss: The client's part of the consistency loss.
    """

    gradient: ModelState
    loss: float


@dataclass(frozen=True)
class LatentSums:
    """Sums of the latents of each cluster's images.

    Attributes:
        sums: float64 of shape (k, d).
        counts: float64 of shape (k,).
    """

    sums: Tensor
    counts: Tensor


LATENTS = Exchange("latents", Snapshot, Moments, uses_memory=True, summed=True)
PREDICTIONS = Exchange("predictions", Pooled, Predictions, summed=True, follows=True)
STATISTICS = Exchange("statistics", MeanPrediction, StatisticsGradient, summed=True, follows=True)
GRADIENT = Exchange("gradient", StatisticsGradient, ModelGradient, summed=True, follows=True)
CENTRES = Exchange("centres", Snapshot, LatentSums, summed=True)
