"""Mahalanobis distance of samples to the clusters of a run, to detect outliers.

Source: Lee, Lee, Lee and Shin, *A Simple Unified Framework for Detecting Out-of-Distribution
Samples and Adversarial Attacks* (NeurIPS 2018, arXiv 1807.03888), Eqs. (1) and (2): all clusters
share one covariance, which is estimated from sums over all clients' samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.engine.payload import pack, parametrize, unpack
from ccfcpp.engine.update_format import SEPARATOR

FinalModel = TypeVar("FinalModel")

MOST_DIMENSIONS = 1024
"""Largest number of dimensions for which a covariance is estimated: 8 MB of float64."""
_TYPICAL = "typical"


@dataclass(frozen=True)
class SampleDistribution:
    """Distribution of a run's samples: one Gaussian per cluster, all with the same covariance.

    Attributes:
        means: Mean of each cluster, float64 of shape (k, d).
        counts: Number of samples in each cluster, float64 of shape (k,). The mean of an empty
            cluster has no meaning.
        whitener: Matrix W of shape (d, d), float32: ‖W (z − μ)‖ is the Mahalanobis distance of a
            sample z to its cluster's mean μ, scaled to a root mean square (RMS) of 1 over the run.
    """

    means: Tensor
    counts: Tensor
    whitener: Tensor

    @staticmethod
    def of(
        means: Tensor, counts: Tensor, scatter: Tensor, scattered: float
    ) -> "SampleDistribution | None":
        """Estimate the distribution from sums; None if all samples equal their clusters' means.

        The covariance is shrunk towards a multiple of the identity, with the weight of d samples,
        so that it is invertible even if there are few samples in many dimensions.

        Args:
            means: Mean of each cluster, float64 of shape (k, d).
            counts: Number of samples in each cluster, float64 of shape (k,).
            scatter: Σ (z − μ)(z − μ)ᵀ over samples z, with μ the mean of the sample's cluster;
                float64 of shape (d, d).
            scattered: Number of samples in ``scatter``.
        """
        d = len(scatter)
        values, directions = torch.linalg.eigh((scatter + scatter.T) / (2 * max(1.0, scattered)))
        values = values.clamp(min=0)
        if not bool(values.mean() > 0):
            return None
        shrunk = (scattered * values + d * values.mean()) / (scattered + d)
        usual = (values / shrunk).sum()
        whitener = directions.T / (shrunk * usual).sqrt().unsqueeze(1)
        return SampleDistribution(means, counts, whitener.float())

    def distances(self, points: Tensor, clusters: Tensor) -> Tensor:
        """Compute each point's Mahalanobis distance to its cluster's mean; the run's RMS is 1.

        Args:
            points: Points in the space of the means, of shape (samples, d).
            clusters: Cluster of each point, int64 of shape (samples,).

        Returns:
            float64 of shape (samples,).
        """
        offsets = points.double() - self.means.to(points.device)[clusters]
        whitened = offsets @ self.whitener.to(offsets).T
        return whitened.square().sum(dim=1).sqrt()

    def probabilities(self, points: Tensor) -> Tensor:
        """Return the posterior probability of each cluster, for systems that give none.

        It is that of a Gaussian mixture with one covariance and equal weights, at the temperature
        √d: log p = −m² √d / 2 + constant, with m the distance as in ``distances``. At temperature 1
        it would be −m² d / 2 + constant, and nearly all probabilities would be 0 or 1.

        Args:
            points: Points in the space of the means, of shape (samples, d).

        Returns:
            float64 of shape (samples, k), whose rows sum to 1.
        """
        whitener = self.whitener.to(points.device).double()
        means, counts = self.means.to(points.device), self.counts.to(points.device)
        centre = counts @ means / counts.sum()  # Centring limits rounding errors.
        distances = torch.cdist((points - centre) @ whitener.T, (means - centre) @ whitener.T)
        distances = distances.masked_fill(counts == 0, torch.inf)
        return torch.softmax(-distances.square() * points.shape[1] ** 0.5 / 2, dim=1)


@dataclass(frozen=True)
class FinalMessage(Generic[FinalModel]):
    """Message to clients after the run: the final model, and the distribution of its samples."""

    model: FinalModel
    typical: SampleDistribution | None

    @staticmethod
    def of(final_model: type[FinalModel]) -> "type[FinalMessage[FinalModel]]":
        """Return this class with ``final_model`` as the type of its field ``model``."""
        return parametrize(FinalMessage, final_model)


_OF_CLIENTS = "descent/parts/"
"""Prefix of the names of tensors that hold single clients' sums, which only checkpoints need."""


def model_tensors(
    model: Mapping[str, Tensor], typical: SampleDistribution | None
) -> dict[str, Tensor]:
    """Return the tensors to save in a model's file: model and distribution of samples, by name.

    Sums of single clients, which a training state may hold, are left out.
    """
    known = {} if typical is None else pack(typical)
    own = {name: each for name, each in model.items() if not name.startswith(_OF_CLIENTS)}
    return own | {f"{_TYPICAL}{SEPARATOR}{name}": each for name, each in known.items()}


def split_model(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], SampleDistribution | None]:
    """Split the tensors of a model's file into the model and the sample distribution, if any.

    Raises:
        PayloadError: The distribution's tensors have other names or shapes.
    """
    prefix = _TYPICAL + SEPARATOR
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    rest = {name: t for name, t in tensors.items() if not name.startswith(prefix)}
    return rest, unpack(SampleDistribution, own) if own else None
