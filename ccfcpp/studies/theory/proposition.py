"""FedDecorr's Proposition 1: the variance of a correlation matrix's singular values.

Source: Shi et al., Eqs. (7) and (48) (ICLR version), Eq. (8) (TPAMI version). For the correlation
matrix K of representations with d dimensions and singular values s: Σ (s − mean s)² = ‖K‖²_F − d.
"""

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.models.decorrelation import feddecorr
from ccfcpp.studies.theory.claim_checks import Statement, equal, worst
from ccfcpp.studies.theory.networks import normal

_SHAPES = ((64, 16), (64, 48), (16, 32))
"""Samples and dimensions of the random representations."""


def squared_deviations(matrix: Tensor) -> float:
    """Return Σ_i (λ_i − mean λ)² of a matrix's singular values λ_i: FedDecorr's Eq. (7), left."""
    values = torch.linalg.svdvals(matrix)
    return float((values - values.mean()).square().sum())


def correlations(z: Tensor) -> Tensor:
    """Return the correlation matrix, of shape (d, d), of representations z of shape (samples, d).

    Rows and columns of a constant dimension are 0.
    """
    centred = z - z.mean(dim=0)
    norms = centred.norm(dim=0)
    scored = centred / torch.where(norms == 0, 1.0, norms)
    return scored.T @ scored


def proposition_statements(randomness: Randomness) -> list[Statement]:
    """Check FedDecorr's Proposition 1 on random representations, for both scales of its loss."""
    generator = randomness.generator("proposition 1")
    drawn = []
    for samples, dimensions in _SHAPES:
        mixing = normal(generator, dimensions, dimensions)
        drawn.append(normal(generator, samples, dimensions) @ mixing)
    of_each = zip(*map(_check_identities, drawn), strict=True)
    return [*map(worst, of_each), *_check_limits(drawn[0])]


def _check_identities(z: Tensor) -> list[Statement]:
    """Check the identities that hold for any representations z of shape (samples, dimensions)."""
    samples, d = z.shape
    K = correlations(z)  # noqa: N806 - the paper's name
    deviations = squared_deviations(K)
    scored = (z - z.mean(dim=0)) / z.std(dim=0)
    by_n = squared_deviations(scored.T @ scored / samples)
    # The library's own losses, so that these are checked.
    norm, of_code = float(feddecorr(z)) * d**2, float(feddecorr(z, "code"))
    shrunk = ((samples - 1) / samples) ** 2
    scale = (samples - 1) ** 2 / (samples * d * (d - 1))
    algorithm_1 = "Algorithm 1's K has 1/N and std with 1/(N-1): "
    code = "the public code's loss = (N-1)^2 / (N d (d-1)) sum of (s - mean s)^2"
    return [
        equal("sum of (s - mean s)^2 = |K|^2 - d", float(K.square().sum()) - d, deviations),
        equal(algorithm_1 + "|K|^2 - d", norm - d, by_n),
        equal(algorithm_1 + "|K|^2 - d (1 - 1/N)^2", norm - shrunk * d, by_n),
        equal(code, scale * deviations, of_code),
    ]


def _check_limits(z: Tensor) -> list[Statement]:
    """Check edge cases: a constant dimension; uncorrelated dimensions of unequal variance."""
    dead = z.clone()
    dead[:, 0] = 1.0
    K = correlations(dead)  # noqa: N806
    # K is the identity, the covariance is not.
    uneven = torch.linalg.qr(z - z.mean(dim=0)).Q * len(z) ** 0.5
    uneven[:, ::2] *= 1e-3
    flat = float(correlations(uneven).square().sum()) - z.shape[1]
    constant = "a constant dimension, which has no correlation: |K|^2 - d"
    spread = "the same effect as a flat spectrum of the covariance: its spread where |K|^2 = d"
    return [
        equal(constant, float(K.square().sum()) - z.shape[1], squared_deviations(K)),
        equal(spread, max(0.0, flat), squared_deviations(uneven.T @ uneven / len(z))),
    ]
