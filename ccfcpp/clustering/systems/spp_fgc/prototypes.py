"""Prototypes of a client's records, and the similarity of prototypes of different clients."""

import warnings

import torch
from torch import Tensor

from ccfcpp.clustering.systems.spp_fgc.structure import squared_distances
from ccfcpp.plugin import Randomness, assign_points


def fit_prototypes(
    points: Tensor, count: int, noise: float, randomness: Randomness, least: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a mixture of Gaussians to a client's records, and add Laplace noise to its means.

    Args:
        points: The records, float64 of shape (n, d), at least two.
        count: Number of Gaussians, at most n.
        noise: Scale of the noise, in standard deviations of a coordinate about the prototypes.
        randomness: Source of random numbers, set to the client.
        least: Fewest records of a Gaussian; those of smaller ones get the nearest other one.

    Returns:
        The Gaussian of each record, int64 of shape (n,); means, float64 (at most count, d); and
        tr C and tr C², float64 of shape (2,), of the records' covariance C about their means.
    """
    owners, means = fit_mixture(points, count, least, randomness.integer("mixture"))
    rest = points - means[owners]
    # Of the two products, which have the same traces, the smaller one.
    product = (rest.T @ rest if len(rest) > rest.shape[1] else rest @ rest.T) / len(rest)
    spread = torch.stack([product.trace(), product.square().sum()])
    # The difference of two exponential variables has Laplace's distribution.
    drawn = torch.empty(2, *means.shape, dtype=torch.float64)
    drawn.exponential_(generator=randomness.generator("noise of prototypes"))
    scale = noise * (spread[0] / points.shape[1]).sqrt()
    return owners, means + scale * (drawn[0] - drawn[1]), spread


def fit_mixture(points: Tensor, count: int, least: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the Gaussian of each record, and the means, of a mixture with spherical covariances.

    A Gaussian of fewer than ``least`` records is left out; if all are, the mean of all remains.
    """
    # Imported here, since scikit-learn takes most of a second to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(count, covariance_type="spherical", random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        owners = torch.from_numpy(mixture.fit_predict(points.numpy())).long()
    means = torch.from_numpy(mixture.means_)
    enough = owners.bincount(minlength=count) >= least
    means = means[enough] if bool(enough.any()) else points.mean(dim=0, keepdim=True)
    places = enough.cumsum(0) - 1
    return torch.where(enough[owners], places[owners], assign_points(points, means)), means


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
