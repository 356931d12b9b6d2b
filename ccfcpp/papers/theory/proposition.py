"""FedDecorr's Proposition 1: the variance of a correlation matrix's singular values.

Source: Shi et al., Eqs. (7) and (48) (ICLR), (8) (TPAMI). It ties FedDecorr's loss to the spectrum.
"""

from functools import partial

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.models.decorrelation import feddecorr
from ccfcpp.papers.theory.statements import Statement, equal, worst

SUBJECT = "FedDecorr, Proposition 1"
_SHAPES = ((64, 16), (64, 48), (16, 32))
"""Samples and dimensions: more samples than dimensions, and fewer."""


def squared_deviations(matrix: Tensor) -> float:
    """Return Σ_i (λ_i − mean λ)² over a matrix's singular values, the left side of Eq. (7)."""
    values = torch.linalg.svdvals(matrix)
    return float((values - values.mean()).square().sum())


def squared_norm(matrix: Tensor) -> float:
    """Return ‖K‖²_F."""
    return float(matrix.square().sum())


def correlations(z: Tensor) -> Tensor:
    """Return the correlation matrix of representations (samples, dimensions).

    Correlations of a constant dimension are 0.
    """
    centred = z - z.mean(dim=0)
    norms = centred.norm(dim=0)
    scored = centred / torch.where(norms == 0, 1.0, norms)
    return scored.T @ scored


def proposition_statements(randomness: Randomness) -> list[Statement]:
    """State Proposition 1 of random representations, for both scales of the loss and at limits."""
    generator = randomness.generator("proposition 1")
    drawn = [_representations(*shape, generator) for shape in _SHAPES]
    everywhere = (_exact, _algorithm_1, partial(_algorithm_1, corrected=True), _public_code)
    return [
        *(worst([state(z) for z in drawn]) for state in everywhere),
        _constant_dimension(drawn[0]),
        _uneven_scales(drawn[0]),
    ]


def _representations(samples: int, dimensions: int, generator: torch.Generator) -> Tensor:
    mixing = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
    return torch.randn(samples, dimensions, generator=generator, dtype=torch.float64) @ mixing


def _exact(z: Tensor) -> Statement:
    K = correlations(z)  # noqa: N806 - the paper's name
    predicted = squared_norm(K) - z.shape[1]
    return equal(SUBJECT, "sum of (s - mean s)^2 = |K|^2 - d", predicted, squared_deviations(K))


def _algorithm_1(z: Tensor, corrected: bool = False) -> Statement:
    samples, dimensions = z.shape
    scored = (z - z.mean(dim=0)) / z.std(dim=0)
    matrix = scored.T @ scored / samples
    shrunk = ((samples - 1) / samples) ** 2 if corrected else 1.0
    text = "Algorithm 1's K has 1/N and std with 1/(N-1): " + (
        "|K|^2 - d (1 - 1/N)^2" if corrected else "|K|^2 - d"
    )
    # The loss itself, so that what is trained with is what is checked.
    norm = float(feddecorr(z)) * dimensions**2
    return equal(SUBJECT, text, norm - shrunk * dimensions, squared_deviations(matrix))


def _public_code(z: Tensor) -> Statement:
    samples, dimensions = z.shape
    scale = (samples - 1) ** 2 / (samples * dimensions * (dimensions - 1))
    predicted = scale * squared_deviations(correlations(z))
    text = "the public code's loss = (N-1)^2 / (N d (d-1)) sum of (s - mean s)^2"
    return equal(SUBJECT, text, predicted, float(feddecorr(z, "code")))


def _constant_dimension(z: Tensor) -> Statement:
    dead = z.clone()
    dead[:, 0] = 1.0
    K = correlations(dead)  # noqa: N806
    text = "a constant dimension, which has no correlation: |K|^2 - d"
    return equal(SUBJECT, text, squared_norm(K) - z.shape[1], squared_deviations(K))


def _uneven_scales(z: Tensor) -> Statement:
    """Uncorrelated dimensions, half of them nearly collapsed: K is the identity, Σ is not."""
    centred = z - z.mean(dim=0)
    uncorrelated = torch.linalg.qr(centred).Q * len(z) ** 0.5
    uneven = uncorrelated.clone()
    uneven[:, ::2] *= 1e-3
    text = "the same effect as a flat spectrum of the covariance: its spread where |K|^2 = d"
    flat = squared_norm(correlations(uneven)) - z.shape[1]
    return equal(SUBJECT, text, max(0.0, flat), squared_deviations(uneven.T @ uneven / len(z)))
