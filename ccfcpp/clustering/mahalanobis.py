"""The Mahalanobis distance of samples from the clusters of a run, to find outliers.

Source: Lee, Lee, Lee and Shin, *A Simple Unified Framework for Detecting Out-of-Distribution
Samples and Adversarial Attacks* (NeurIPS 2018, arXiv 1807.03888), Eqs. (1) and (2): one covariance
for all clusters, about their means. It is a pooled sum over all clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.engine.payload import generic, pack, unpack
from ccfcpp.engine.update_format import SEPARATOR

FinalModel = TypeVar("FinalModel")

MOST_DIMENSIONS = 1024
"""Largest number of dimensions with which a covariance is pooled: 8 MB of float64."""
_TYPICAL = "typical"


@dataclass(frozen=True)
class SampleDistribution:
    """Distribution of a run's samples: a Gaussian for each cluster, with one covariance.

    Attributes:
        means: Means of the clusters, float64 of shape (k, d).
        counts: Samples of each cluster, float64 of shape (k,); an empty cluster has no mean.
        whitener: float32 of shape (d, d). A sample's offset from its cluster's mean times this has
            length 1 in the root mean square over the run's samples.
    """

    means: Tensor
    counts: Tensor
    whitener: Tensor

    @staticmethod
    def of(
        means: Tensor, counts: Tensor, scatter: Tensor, scattered: float
    ) -> "SampleDistribution | None":
        """Estimate the distribution from sums; None if samples equal their clusters' means.

        The covariance is shrunk towards a sphere as if d more samples had been seen that lie on it,
        so that few samples in many dimensions give no directions without any variance.

        Args:
            means: Means of the clusters, float64 of shape (k, d).
            counts: Samples of each cluster, float64 of shape (k,).
            scatter: Σ (z − μ)(z − μ)ᵀ over samples z, about the mean μ of the cluster of each, of
                shape (d, d).
            scattered: Number of these samples.
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
        """Compute each point's Mahalanobis distance to its cluster's mean, over the run's RMS.

        Args:
            points: Tensor of shape (samples, d).
            clusters: int64 of shape (samples,).

        Returns:
            float64 of shape (samples,).
        """
        offsets = points.double() - self.means.to(points.device)[clusters]
        whitened = offsets @ self.whitener.to(offsets).T
        return whitened.square().sum(dim=1).sqrt()

    def probabilities(self, points: Tensor) -> Tensor:
        """Return the posterior of each cluster, for systems without probabilities.

        It is that of a Gaussian mixture with one covariance and equal weights, at the temperature
        √d: log p = −m² √d / 2 + c, with m of ``distances``. At temperature 1 it would be
        −m² d / 2 + c, which takes the dimensions for independent and is nearly always sure.

        Args:
            points: Tensor of shape (samples, d).

        Returns:
            float64 of shape (samples, k), whose rows sum to 1.
        """
        whitener = self.whitener.to(points.device).double()
        means, counts = self.means.to(points.device), self.counts.to(points.device)
        middle = counts @ means / counts.sum()  # Far from the origin digits would be lost.
        apart = torch.cdist((points - middle) @ whitener.T, (means - middle) @ whitener.T)
        apart = apart.masked_fill(counts == 0, torch.inf)
        return torch.softmax(-apart.square() * points.shape[1] ** 0.5 / 2, dim=1)


@dataclass(frozen=True)
class FinalMessage(Generic[FinalModel]):
    """The final message to clients: a model, and the distribution of its samples."""

    model: FinalModel
    typical: SampleDistribution | None

    @staticmethod
    def of(final_model: type[FinalModel]) -> "type[FinalMessage[FinalModel]]":
        """Return this type for a system's type of delivery."""
        return generic(FinalMessage, final_model)


_OF_CLIENTS = "descent/parts/"
"""Prefix of names of single clients' parts, which only a checkpoint needs."""


def model_tensors(
    model: Mapping[str, Tensor], typical: SampleDistribution | None
) -> dict[str, Tensor]:
    """Return the tensors of a model's file, without the server's memory of single clients."""
    known = {} if typical is None else pack(typical)
    own = {name: each for name, each in model.items() if not name.startswith(_OF_CLIENTS)}
    return own | {f"{_TYPICAL}{SEPARATOR}{name}": each for name, each in known.items()}


def split_model(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], SampleDistribution | None]:
    """Split the tensors of a file into the model's and the distribution of samples, if any.

    Raises:
        PayloadError: The distribution's tensors have other names or shapes.
    """
    prefix = _TYPICAL + SEPARATOR
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    rest = {name: t for name, t in tensors.items() if not name.startswith(prefix)}
    return rest, unpack(SampleDistribution, own) if own else None
