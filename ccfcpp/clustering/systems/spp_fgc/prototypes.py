"""Prototypes of a client's records, and the similarity of prototypes of different clients."""

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.spp_fgc.structure import squared_distances
from ccfcpp.plugin import Randomness


def fit_prototypes(
    points: Tensor, count: int, noise: float, randomness: Randomness
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a mixture of Gaussians to a client's records, and add Laplace noise to its means.

    Args:
        points: The records, float64 of shape (n, d).
        count: Number of Gaussians.
        noise: Scale of the noise, in standard deviations of a coordinate about the prototypes.
        randomness: Source of random numbers, set to the client.

    Returns:
        The Gaussian of each record, int64 of shape (n,); means, float64 of shape (count, d); and
        tr C and tr C², float64 of shape (2,), of the records' covariance C about their means.
    """
    owners, means = fit_mixture(points, count, randomness.integer("mixture"))
    rest = points - means[owners]
    # Of the two products, which have the same traces, the smaller one.
    product = (rest.T @ rest if len(rest) > rest.shape[1] else rest @ rest.T) / len(rest)
    spread = torch.stack([product.trace(), product.square().sum()])
    # The difference of two exponential variables has Laplace's distribution.
    drawn = torch.empty(2, *means.shape, dtype=torch.float64)
    drawn.exponential_(generator=randomness.generator("noise of prototypes"))
    scale = noise * (spread[0] / points.shape[1]).sqrt()
    return owners, means + scale * (drawn[0] - drawn[1]), spread


def fit_mixture(points: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the Gaussian of each record, and the means, of a mixture with spherical covariances.

    No more than ``count`` records are means themselves, and the other means are 0.
    """
    if len(points) <= count:
        return torch.arange(len(points)), F.pad(points, (0, 0, 0, count - len(points)))
    # Imported here, since scikit-learn takes most of a second to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(count, covariance_type="spherical", random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        owners = mixture.fit_predict(points.numpy())
    return torch.from_numpy(owners).long(), torch.from_numpy(mixture.means_)


def links_between(means: Tensor, sizes: Tensor, spread: Tensor) -> Tensor:
    """Return exp(-KL) of the prototypes' Gaussians, spread over the records of the second one.

    All Gaussians have the same spherical covariance, in as many dimensions as the records fill,
    (tr C)²/tr C²: KL = (tr C / tr C²) ‖μ - ν‖² / 2. In all dimensions of the data KL would be so
    large, even between two samples of one cluster, that nothing is linked.

    Args:
        means: Shape (prototypes, dimensions).
        sizes: Number of records of each prototype, of shape (prototypes,).
        spread: tr C and tr C².
    """
    precision = spread[0] / spread[1].clamp(min=1e-300)
    return (-precision * squared_distances(means) / 2).exp() / sizes
