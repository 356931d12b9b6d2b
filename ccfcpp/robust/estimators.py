"""Robust estimators of the mean, for points of which some are hostile.

Estimators take points of shape (n, d), and return one of shape (d,). Points are not weighted by the
sizes of clients, since a hostile client may report a false size.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ccfcpp.robust.config import RobustMean

Squares = Tensor
"""Squared distances between n points, float64 of shape (n, n)."""
Estimator = Callable[[Tensor], Tensor]
"""Maps points of shape (n, d), at least one, to one point of shape (d,)."""

_MOST_STEPS = 1000
_STILL = 1e-10
"""Weights have converged if none changes by more."""
_NEAREST = 1e-12
"""Least squared distance to the median in Weiszfeld steps; ``_ABSURD`` is the largest of a point
that is used. Both are multiples of the most central point's median squared distance to others."""
_ABSURD = 1e12


def trimmed_mean(points: Tensor, trimmed: int) -> Tensor:
    """Compute the mean of each coordinate without its smallest and largest values.

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
    """Return the median of each coordinate of points (n, d) (Yin et al. 2018, Definition 1)."""
    return trimmed_mean(points, (len(points) - 1) // 2)


def median_weights(squares: Squares) -> Tensor:
    """Compute the weights whose weighted mean of the points is their geometric median.

    The geometric median is the point with the smallest sum of distances to all points. Its weights
    follow from the distances between the points alone.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning* (IEEE TSP
    2022): smoothed Weiszfeld steps.

    Args:
        squares: Squared distances between the points, float64 of shape (n, n).

    Returns:
        float64 of shape (n,): with sum 1; 0 for points that are absurdly far away, else positive.
    """
    central, typical = most_central(squares)
    used = (squares[central] <= _ABSURD * typical).nonzero().flatten()
    weights = squares.new_zeros(len(squares))
    weights[used] = _weiszfeld(squares[used][:, used], _NEAREST * typical)
    return weights


def _weiszfeld(squares: Squares, nearest: float) -> Tensor:
    """Compute ``median_weights``, with squared distances of at least ``nearest``."""
    weights = squares.new_full((len(squares),), 1 / len(squares))
    if nearest == 0:
        return weights  # all points are equal
    for _ in range(_MOST_STEPS):
        # ‖xᵢ − Σⱼ wⱼ xⱼ‖² for weights that add up to 1
        to_mean = squares @ weights - weights @ squares @ weights / 2
        new = to_mean.clamp(min=nearest).rsqrt()
        new /= new.sum()
        converged = float((new - weights).abs().max()) < _STILL
        weights = new
        if converged:
            break
    return weights


def most_central(squares: Squares) -> tuple[int, float]:
    """Find the point with the least median squared distance to others; return (index, median).

    Hostile points, if fewer than half, cannot make that median larger than honest points do.
    ``squares``: squared distances between the points, of shape (n, n).
    """
    n = len(squares)
    if n == 1:
        return 0, 0.0
    others = squares[~torch.eye(n, dtype=torch.bool, device=squares.device)].view(n, n - 1)
    medians = others.median(dim=1).values
    central = int(medians.argmin())
    return central, float(medians[central])


def krum_order(squares: Squares, hostile: int) -> Tensor:
    """Return the indices of points by Krum's score, the best (lowest) first.

    The score is the sum of squared distances to the n − f − 2 nearest others (Blanchard, El Mhamdi,
    Guerraoui and Stainer, *Machine Learning with Adversaries*, NeurIPS 2017, Section 4), where f is
    the number of hostile points. If n is too small for it, one neighbour is taken.

    Args:
        squares: Squared distances between the points, of shape (n, n).
        hostile: Number of hostile points, f.
    """
    n = len(squares)
    neighbours = min(max(1, n - hostile - 2), n - 1)
    others = squares.clone().fill_diagonal_(math.inf).sort(dim=1).values
    return others[:, :neighbours].sum(dim=1).sort(stable=True).indices


def pairwise_squares(points: Tensor) -> Tensor:
    """Compute squared distances between all points (n, d), float64 of shape (n, n)."""
    # From differences: these are exact even for points that are far from 0 and near each other.
    return torch.stack([(points - one).double().square().sum(dim=1) for one in points])


def assumed_hostile(share: float, points: int) -> int:
    """Return how many points to assume hostile: a share of them, rounded up, but below half."""
    return min(math.ceil(share * points - 1e-9), (points - 1) // 2)


def estimate_weights(config: RobustMean, squares: Squares) -> Tensor:
    """Compute weights of n points by ``config.rule``, from their squared distances (n, n).

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
    """Return a function that estimates a robust mean of points (n, d) by the configured rule."""

    def estimate(points: Tensor) -> Tensor:
        if config.rule == "median":
            return median(points)
        if config.rule == "trimmed-mean":
            return trimmed_mean(points, assumed_hostile(config.hostile, len(points)))
        return weighted_mean(points, estimate_weights(config, pairwise_squares(points)))

    return estimate


def weighted_mean(points: Tensor, weights: Tensor) -> Tensor:
    """Return Σ wᵢ xᵢ, of shape (d,), for weights w of shape (n,) that add up to 1."""
    # Points of weight 0 are left out: they may be so large that 0 times them is not finite.
    used = (weights > 0).to(points.device)
    return weights.to(points)[used] @ points[used]
