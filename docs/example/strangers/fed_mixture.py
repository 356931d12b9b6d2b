"""A mixture of Gaussian distributions with diagonal covariances, by expectation maximisation."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.plugin import (
    Count,
    InitState,
    PositiveNumber,
    Problem,
    Randomness,
    Sum,
    SumsConfig,
    SumsSystem,
    assign_points,
    required_centroids,
)


class MixConfig(SumsConfig):
    """The section `mix` of the configuration, which has `rounds`, too: `--set mix.ridge=0.01`."""

    ridge: PositiveNumber = 1e-6
    """Added to each variance."""


@dataclass(frozen=True)
class Mixture(InitState):
    """What the server knows: means, called `centroids`; None is what nobody knows yet."""

    ridge: float = 0.0
    shares: Tensor | None = None
    variances: Tensor | None = None


@dataclass(frozen=True)
class Moments:
    """What a client sends: sums over points, each with its share in each cluster."""

    counts: Tensor
    sums: Tensor
    squares: Tensor


def init(problem: Problem, randomness: Randomness) -> Mixture:
    """Begin without means: the library finds some first."""
    return Mixture(ridge=problem.config.section(MixConfig).ridge)


def responsibilities(state: Mixture, points: Tensor) -> Tensor:
    """Return the probability of each cluster, of shape (samples, k)."""
    means, variances = required_centroids(state.centroids), state.variances
    if state.shares is None or variances is None:
        return F.one_hot(assign_points(points, means), len(means)).double()
    squares = (points.double().unsqueeze(1) - means).square() / variances
    logs = state.shares.log() - 0.5 * (squares + (2 * math.pi * variances).log()).sum(dim=2)
    return logs.softmax(dim=1)


def local(state: Mixture, points: Tensor) -> Moments:
    """Add up points and their squared distances from the means."""
    means, shares = required_centroids(state.centroids), responsibilities(state, points)
    points = points.double()
    squares = torch.einsum("nk,nkd->kd", shares, (points.unsqueeze(1) - means).square())
    return Moments(shares.sum(dim=0), shares.T @ points, squares)


def update(state: Mixture, total: Moments) -> Mixture:
    """Make shares, means and variances of the sums; a mean without points stays."""
    before = required_centroids(state.centroids)
    counts = total.counts.clamp(min=1e-12).unsqueeze(1)
    means = torch.where(total.counts.unsqueeze(1) > 0, total.sums / counts, before)
    variances = (total.squares / counts - (means - before).square()).clamp(min=0)
    shares = counts.flatten() / counts.sum()
    return replace(state, centroids=means, shares=shares, variances=variances + state.ridge)


FED_MIXTURE = SumsSystem(
    init,
    local,
    update,
    probabilities=responsibilities,
    parts={"counts": Count(), "sums": Sum(count="counts"), "squares": Sum(count="counts")},
    largest={"counts": 1.0},
    sections={"mix": MixConfig},
    title="Fed-Mixture",
    sends="sums, squares and counts by cluster",
    summary="a mixture with diagonal covariances by expectation maximisation",
)
