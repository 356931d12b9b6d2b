"""Robust estimators of the mean, for points of which some are hostile.

All take points of shape (n, d), and return one of shape (d,). No point has a weight, since what a
client says of its size may be false.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ccfcpp.robust.config import RobustMean

Squares = Tensor
"""Squared distances between n points, float64 of shape (n, n)."""
Estimator = Callable[[Tensor], Tensor]
"""From points of shape (n, d), one at least, to one of shape (d,)."""

_MOST_STEPS = 1000
_STILL = 1e-10
"""Weights that move no further have converged."""
_NEAREST = 1e-12
"""Squared distances to the median count as at least so large, and _ABSURD is how large they may be
at a point that counts at all: both by that of the most central point to half of the others."""
_ABSURD = 1e12


def trimmed_mean(points: Tensor, trimmed: int) -> Tensor:
    """Average each coordinate without its smallest and its largest values.

    Source: Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning* (ICML
    2018), Definition 2.

    Args:
        points: Floats of shape (n, d).
        trimmed: Number of values left out at each end, less than n/2.

    Raises:
        ValueError: No value would be left.
    """
    if not 0 <= 2 * trimmed < len(points):
        raise ValueError(f"{trimmed} of {len(points)} points at each end leave none")
    return points.sort(dim=0).values[trimmed : len(points) - trimmed].mean(dim=0)


def median(points: Tensor) -> Tensor:
    """Return the median of each coordinate (Yin et al. 2018, Definition 1)."""
    return trimmed_mean(points, (len(points) - 1) // 2)


def median_weights(squares: Squares) -> Tensor:
    """Return the weights with which points have their geometric median as mean.

    It is the point whose distances to all others have the smallest sum. As a mean of the points,
    it can be computed from the distances between them.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning* (IEEE TSP
    2022): smoothed Weiszfeld steps.

    Returns:
        float64 of shape (n,): positive, with sum 1.
    """
    central, typical = most_central(squares)
    used = (squares[central] <= _ABSURD * typical).nonzero().flatten()
    weights = squares.new_zeros(len(squares))
    weights[used] = _weiszfeld(squares[used][:, used], _NEAREST * typical)
    return weights


def _weiszfeld(squares: Squares, nearest: float) -> Tensor:
    """Compute the weights, with squared distances to the median of at least ``nearest``."""
    weights = squares.new_full((len(squares),), 1 / len(squares))
    if nearest == 0:
        return weights  # all points are equal
    for _ in range(_MOST_STEPS):
        # ‖xᵢ − Σⱼ wⱼ xⱼ‖² for weights that add up to 1
        to_mean = squares @ weights - weights @ squares @ weights / 2
        moved = to_mean.clamp(min=nearest).rsqrt()
        moved /= moved.sum()
        still = float((moved - weights).abs().max()) < _STILL
        weights = moved
        if still:
            break
    return weights


def most_central(squares: Squares) -> tuple[int, float]:
    """Return the point with the smallest median of squared distances to others, and that median.

    Hostile points, if fewer than half, cannot raise it above the honest points' value.
    """
    n = len(squares)
    if n == 1:
        return 0, 0.0
    others = squares[~torch.eye(n, dtype=torch.bool, device=squares.device)].view(n, n - 1)
    medians = others.median(dim=1).values
    central = int(medians.argmin())
    return central, float(medians[central])


def krum_order(squares: Squares, hostile: int) -> Tensor:
    """Order points by Krum's score, the best first.

    The score is the sum of squared distances to the n − f − 2 nearest others (Blanchard, El Mhamdi,
    Guerraoui and Stainer, *Machine Learning with Adversaries*, NeurIPS 2017, Section 4), with f the
    number of hostile ones. If n is too small for it, one neighbour is taken.
    """
    n = len(squares)
    neighbours = min(max(1, n - hostile - 2), n - 1)
    others = squares.clone().fill_diagonal_(math.inf).sort(dim=1).values
    return others[:, :neighbours].sum(dim=1).sort(stable=True).indices


def pairwise_squares(points: Tensor) -> Tensor:
    """Compute squared distances between all points, float64 of shape (n, n)."""
    # One point at a time: a difference is exact where points are far from 0 and near each other.
    return torch.stack([(points - one).double().square().sum(dim=1) for one in points])


def assumed_hostile(share: float, points: int) -> int:
    """Return the number of points that are assumed to be hostile: fewer than half."""
    return min(math.ceil(share * points - 1e-9), (points - 1) // 2)


def estimate_weights(config: RobustMean, squares: Squares) -> Tensor:
    """Return the weights of points by ``geometric-median``, ``krum`` or ``multi-krum``.

    Returns:
        float64 of shape (n,): not negative, with sum 1.
    """
    if config.rule == "geometric-median":
        return median_weights(squares)
    n = len(squares)
    hostile = assumed_hostile(config.hostile, n)
    kept = 1 if config.rule == "krum" else n - hostile
    weights = squares.new_zeros(n)
    weights[krum_order(squares, hostile)[:kept]] = 1 / kept
    return weights


def make_estimator(config: RobustMean) -> Estimator:
    """Return the estimator that a configuration asks for."""

    def estimate(points: Tensor) -> Tensor:
        if config.rule == "median":
            return median(points)
        if config.rule == "trimmed-mean":
            return trimmed_mean(points, assumed_hostile(config.hostile, len(points)))
        return weighted_mean(points, estimate_weights(config, pairwise_squares(points)))

    return estimate


def weighted_mean(points: Tensor, weights: Tensor) -> Tensor:
    """Return Σ wᵢ xᵢ for weights that add up to 1."""
    # A point without weight may be anything, even so large that its product is not finite.
    used = (weights > 0).to(points.device)
    return weights.to(points)[used] @ points[used]
