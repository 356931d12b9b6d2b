"""Gaussian mixtures, fitted by expectation maximisation (EM) over all clients.

Source: Dempster, Laird and Rubin, *Maximum Likelihood from Incomplete Data via the EM Algorithm*
(1977). The responsibility r of a component for a point x is its posterior probability. For each
component, clients send Σ r, Σ r x and Σ r (x − μ)(x − μ)ᵀ with the mean μ of the server's message,
and the log-likelihood; from the totals the server computes weights, means and covariances. Each
step equals that of scikit-learn's ``GaussianMixture`` on all vectors together.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    ClusterSums,
    InitState,
    SumsWork,
    check_products,
    fewest_for_products,
    required_centroids,
    zero_small_clusters,
)
from ccfcpp.clustering.kmeans.chunks import SumBlocks
from ccfcpp.clustering.kmeans.initialisation import SumCells
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.clustering.systems.pooled.config import MixtureConfig
from ccfcpp.clustering.systems.shallow.pixels import InitBySums, PixelRule
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Metrics,
)
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import Sum, UpdateFormat, format_of

_EMPTY = 10 * torch.finfo(torch.float64).eps
"""Number that is added to the sum of responsibilities of a component, as in scikit-learn."""
_SMALLEST = 1e-300
"""Least variance, where all of a component's points are one."""


@dataclass(frozen=True)
class Mixture(InitState):
    """State of the server: a mixture of k Gaussian components, whose means are ``centroids``.

    Attributes:
        weights: Mixture weights, float64 (k,); None before the first step, in which each point
            belongs to the nearest mean.
        covariances: float64 (k, d, d), or only variances (k, d).
        bound: Mean log-likelihood in the last step; None before the second one.
        grown: Increase of the mean log-likelihood in the last step; None if unknown.
    """

    weights: Tensor | None = None
    covariances: Tensor | None = None
    bound: float | None = None
    grown: float | None = None

    @property
    def public(self) -> "Mixture":
        """The part of the state that clients receive: weights, means and covariances."""
        known = self.centroids
        return Mixture(known, weights=self.weights, covariances=self.covariances)


@dataclass(frozen=True)
class MixtureSums(ClusterSums):
    """A client's sums over its points x, in float64; ``counts`` are sums of responsibilities r.

    Attributes:
        scatters: With the means μ of the message: Σ r (x − μ)(x − μ)ᵀ of shape (k, d, d), or
            Σ r (x − μ)² of shape (k, d).
        likelihood: Σ log p(x) of shape (1,); 0 in the first step.
    """

    scatters: Tensor
    likelihood: Tensor


EM = Exchange(
    "expectation",
    Mixture,
    MixtureSums,
    {**PARTS, "scatters": Sum(), "likelihood": Sum()},
    images="the log-likelihood of one vector has no bound",
)


def log_probabilities(points: Tensor, mixture: Mixture) -> Tensor:
    """Return log (wⱼ N(x; μⱼ, Σⱼ)) for points x (samples, d) and components j: (samples, k)."""
    means, weights, covariances = mixture.centroids, mixture.weights, mixture.covariances
    assert means is not None
    assert weights is not None
    assert covariances is not None
    points = points.double()
    if covariances.ndim == 2:
        scaled = (points.unsqueeze(1) - means) / covariances.sqrt()
        squares, halves = scaled.square().sum(dim=2), 0.5 * covariances.log().sum(dim=1)
    else:
        factors: Tensor = torch.linalg.cholesky(covariances)
        centred = (points.unsqueeze(0) - means.unsqueeze(1)).mT
        squares = torch.linalg.solve_triangular(factors, centred, upper=False).square().sum(1).T
        halves = factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    constant = 0.5 * points.shape[1] * math.log(2 * math.pi)
    return weights.log() - constant - halves - 0.5 * squares


def responsibilities(points: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return each point's responsibilities (posterior), (samples, k), and log p(x), (samples,).

    Before the first step, each point belongs to the nearest mean, and log p(x) is 0.
    """
    if mixture.weights is None:
        means = required_centroids(mixture.centroids)
        hard = F.one_hot(assign_points(points, means), len(means)).double()
        return hard, hard.new_zeros(len(points))
    logs = log_probabilities(points, mixture)
    total = torch.logsumexp(logs, dim=1)
    return (logs - total.unsqueeze(1)).exp(), total


@dataclass(frozen=True)
class Expectation(SumBlocks[Mixture, MixtureSums]):
    """Client side of an EM step (expectation): sums over points, weighted by responsibilities.

    ``covariance`` is ``full`` or ``diag``.
    """

    rule: PixelRule
    covariance: str
    exchange = EM

    def width(self, message: Mixture) -> int:
        """Return how many numbers a point needs in memory: its offset from each mean."""
        return required_centroids(message.centroids).numel()

    def block(self, message: Mixture, images: Tensor) -> MixtureSums:
        """Return the sums over a block of a client's images or vectors."""
        means, points = required_centroids(message.centroids), self.rule.points(images)
        r, logs = responsibilities(points, message)
        points = points.double()
        if self.covariance == "diag":
            centred = (points.unsqueeze(1) - means).square()
            scatters = torch.einsum("nk,nkd->kd", r, centred)
        else:
            scatters = torch.stack(
                [
                    (points - mean).T @ (own.unsqueeze(1) * (points - mean))
                    for mean, own in zip(means, r.T, strict=True)
                ]
            )
        return MixtureSums(r.T @ points, r.sum(dim=0), scatters, logs.sum().view(1))

    def drop_small_sums(self, total: MixtureSums, samples: int) -> MixtureSums:
        """Set sums over fewer than ``least`` points to 0; the likelihood, too.

        A component without enough points for its products is left out as a whole: without them its
        covariance would be too small.
        """
        least = self.context.least
        likelihood = total.likelihood * (samples >= least)
        if self.covariance == "full":
            least = fewest_for_products(least, total.sums.shape[1])
        return replace(zero_small_clusters(total, least), likelihood=likelihood)


def zero_sums(means: Tensor, covariance: str) -> MixtureSums:
    """Return sums that are all 0, for means (k, d) and the covariance ``full`` or ``diag``."""
    clusters, d = means.shape
    shape = (clusters, d, d) if covariance == "full" else (clusters, d)
    sums, counts, scatters, likelihood = (
        torch.zeros(size, dtype=torch.float64, device=means.device)
        for size in ((clusters, d), (clusters,), shape, (1,))
    )
    return MixtureSums(sums, counts, scatters, likelihood)


def maximise(mixture: Mixture, total: MixtureSums, regularisation: float) -> Mixture:
    """Return the next mixture from all clients' sums; a component without points keeps its mean."""
    before = required_centroids(mixture.centroids)
    counts = total.counts + _EMPTY
    each = counts.unsqueeze(1)
    means = torch.where(total.counts.unsqueeze(1) > 0, total.sums / each, before)
    moved = means - before
    if total.scatters.ndim == 2:
        variances = (total.scatters / each - moved.square()).clamp(min=0)
        covariances = variances + _ridge(variances, regularisation)
    else:
        outer = moved.unsqueeze(2) * moved.unsqueeze(1)
        covariances = _make_positive_definite(
            total.scatters / each.unsqueeze(2) - outer, regularisation
        )
    return replace(mixture, centroids=means, weights=counts / counts.sum(), covariances=covariances)


def _ridge(variances: Tensor, regularisation: float) -> float:
    """Return what to add to variances (k, d): ``regularisation``, or more to be above rounding.

    It is one number for all components, so that none gains by a column that is constant.
    """
    return max(regularisation, _EMPTY * variances.shape[1] * float(variances.max()), _SMALLEST)


def _make_positive_definite(covariances: Tensor, regularisation: float) -> Tensor:
    """Add ``regularisation`` to the diagonals of (k, d, d); raise eigenvalues that stay ≤ 0."""
    d = covariances.shape[-1]
    least = _ridge(covariances.diagonal(dim1=1, dim2=2), regularisation)
    ridge = least * torch.eye(d, dtype=covariances.dtype, device=covariances.device)
    definite = (covariances + covariances.mT) / 2 + ridge
    _, failed = torch.linalg.cholesky_ex(definite)
    for number in failed.nonzero().flatten().tolist():
        values, vectors = torch.linalg.eigh(definite[number])
        definite[number] = vectors @ torch.diag(values.clamp(min=least)) @ vectors.T
    return definite


@dataclass(frozen=True)
class Maximisation(SumsWork[Mixture, Mixture, MixtureSums]):
    """Server side of an EM step (maximisation): computes the next mixture from all sums."""

    config: MixtureConfig
    exchange = EM

    def is_due(self, state: Mixture) -> bool:
        """Return whether the step can run: whether the initialisation has computed means."""
        return state.centroids is not None

    def broadcast(self, state: Mixture) -> Mixture:
        """Return the message to clients: the current mixture."""
        return state.public

    def update_format(self, message: Mixture) -> UpdateFormat:
        """Return an update's shapes and dtypes: the sums for each component."""
        means = required_centroids(message.centroids)
        return format_of(pack(zero_sums(means, self.config.covariance)))

    def check(self, message: Mixture, update: MixtureSums, senders: Sequence[Member]) -> None:
        """Refuse sums, products and a likelihood that cannot be those of the senders' points."""
        super().check(message, update, senders)
        counts = update.counts.view(-1, *[1] * (update.scatters.ndim - 1))
        check_products(update.scatters, counts)
        check_products(update.likelihood, update.counts.sum())

    def aggregate(
        self, state: Mixture, updates: Iterable[MixtureSums], randomness: Randomness
    ) -> tuple[Mixture, Metrics]:
        """Return the next mixture, and report the mean log-likelihood of the current one."""
        total = sum_updates(updates)
        if not bool(total.counts.any()):
            raise FederationError(
                "no client has as many points in a component as they have dimensions, by its "
                "owner's rules: give mixture.covariance = diag, or fewer clusters"
            )
        after = maximise(state, total, self.config.regularisation)
        if state.weights is None:
            return after, {}
        bound = float(total.likelihood) / float(total.counts.sum().clamp(min=1))
        grown = None if state.bound is None else bound - state.bound
        return replace(after, bound=bound, grown=grown), {"log_likelihood": bound}


class GaussianMixtures(InitBySums[Mixture]):
    """Fed-EM: a Gaussian mixture, fitted by expectation maximisation over sums of all clients.

    The result is that of pooled data.
    """

    state_type = Mixture

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.by_angle = False
        self.config = problem.config.section(MixtureConfig)
        self.rounds = self.config.rounds

    def initial_state(self, randomness: Randomness) -> Mixture:
        """Return a mixture without means."""
        return Mixture()

    def start(self) -> Sequence[AnyServerWork]:
        """Return the exchanges of the initialisation (means, covariances) and of a first step."""
        return [*super().start(), *self.steps(0), *self.steps(0)]

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round: one EM step."""
        return [Maximisation(self.config)]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of the initialisation and of the steps."""
        expectation = Expectation(context, self.rule, self.config.covariance)
        return ClientSide.of(SumCells(context, self.rule.points), expectation)

    def has_converged(self, state: Mixture) -> bool:
        """Return whether the last step changed the mean log-likelihood by at most the tolerance."""
        grown = None if state.grown is None else abs(state.grown)
        return self.is_settled(grown, self.config.tolerance)

    def assign(self, state: Mixture, client: Client) -> Tensor:
        """Return the most probable component of each sample, int64 of shape (samples,)."""
        return self.probabilities(state, client).argmax(dim=1)

    def probabilities(self, known: Mixture, client: Client) -> Tensor:
        """Return the responsibilities for a client's samples, of shape (samples, k)."""
        means = required_centroids(known.centroids)
        parts = self.rule.blocks(client.images, means.numel())
        return torch.cat([responsibilities(part, known)[0] for part in parts])

    def final_model(self, state: Mixture) -> Mixture:
        """Return the mixture, which clients need to assign samples."""
        return state.public
