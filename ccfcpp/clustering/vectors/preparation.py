"""Filling in, scaling and principal components of vectors, fitted by sums over all clients.

A vector x becomes (f(x) − m) A. f fills in missing values, and with ``unit`` divides by the length;
m is the mean over all clients' vectors; A is diagonal to scale columns, or projects on principal
components. Two exchanges of sums give m and A, as exactly as if all vectors lay in one place: the
sum of x first, and the sum of squares or of outer products about the mean that follows from it, so
that a large mean costs no digits. Values that are missing need the columns' means before that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.blocks import SumBlocks, blocks
from ccfcpp.clustering.lessons import Lesson, Stage, learnt
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import Exchange, Images
from ccfcpp.engine.parts import Count, Part, Sum
from ccfcpp.engine.payload import check_counts

_ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Below this share of what it is made of, a number may be rounding alone."""
_LEAST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Preparation:
    """What is known of the preparation; it grows from exchange to exchange.

    Attributes:
        fill: What missing values become, float64 (d,).
        mean: m, float64 (d,).
        factor: A: float64 (d,) for the diagonal, or (d, components).
    """

    fill: Tensor | None = None
    mean: Tensor | None = None
    factor: Tensor | None = None


def filled(config: VectorsConfig, known: Preparation, values: Tensor) -> Tensor:
    """F of some vectors: float64 of their shape (samples, d)."""
    values = values.double()
    if known.fill is not None:
        values = torch.where(values.isnan(), known.fill, values)
    return F.normalize(values, dim=1, eps=_LEAST) if config.scale == "unit" else values


def prepared(config: VectorsConfig, known: Preparation, values: Tensor) -> Tensor:
    """Prepare vectors.

    Args:
        config: What is to be done.
        known: From all exchanges.
        values: float32 or float64 of shape (samples, d).

    Returns:
        Of the dtype of ``values`` and shape (samples, d), or (samples, components).
    """
    return torch.cat([_prepared(config, known, block).to(values) for block in blocks(values)])


def _prepared(config: VectorsConfig, known: Preparation, block: Tensor) -> Tensor:
    block = filled(config, known, block)
    if known.mean is not None:
        block = block - known.mean
    if known.factor is None:
        return block
    return block * known.factor if known.factor.ndim == 1 else block @ known.factor


@dataclass(frozen=True)
class Sums:
    """What a client sends of its vectors.

    Attributes:
        sums: float64: of values (d,), of squares (d,), or of outer products (d, d).
        counts: float64: vectors (1,), or values that are there in each column (d,).
    """

    sums: Tensor
    counts: Tensor


_PARTS: dict[str, Part] = {"sums": Sum(), "counts": Count()}
_APART = Images()
FILLING = Exchange("means of columns", Preparation, Sums, _PARTS, images=_APART, once=True)
MEANS = Exchange("mean", Preparation, Sums, _PARTS, images=_APART, once=True)
SPREADS = Exchange("variances", Preparation, Sums, _PARTS, images=_APART, once=True)


@dataclass(frozen=True)
class Fitting(Lesson):
    """One exchange of sums.

    Attributes:
        d: Length of the vectors.
        exchange: What both sides know.
        gives: The field of the preparation that it gives.
        rows: What a client adds up of each vector, (samples, d); or of which it adds up the outer
            products.
        counts: What it counts: of shape (samples, 1) or (samples, d).
        makes: Makes the next preparation of the total.
        outer: Whether outer products are added up.
    """

    d: int
    exchange: Exchange[Preparation, Sums]
    gives: str
    rows: Callable[[Preparation, Tensor], Tensor]
    counts: Callable[[Tensor], Tensor]
    makes: Callable[[Preparation, Sums], Preparation]
    outer: bool = False

    def work(self, crew: Crew) -> "AddUp":
        """The clients' half."""
        return AddUp(crew, self)

    def zeros(self) -> Sums:
        """Sums over no vector."""
        counted = self.counts(torch.zeros(1, self.d)).shape[1]
        shape = (self.d, self.d) if self.outer else (self.d,)
        return Sums(
            torch.zeros(shape, dtype=torch.float64), torch.zeros(counted, dtype=torch.float64)
        )

    def check(self, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse counts that the clients' vectors cannot have."""
        for count in (update.counts.min(), update.counts.max()):
            check_counts(count, senders)

    def learn(self, known: Preparation, total: Sums, randomness: Randomness) -> Preparation:
        """What the total says."""
        return self.makes(known, total)


def vector_stage(config: VectorsConfig, d: int) -> Stage:
    """The preparation of vectors of length d."""

    def holder(known: Preparation, client: Client) -> Client:
        values = prepared(config, known, client.images)
        return Client(client.id, client.name, values, client.labels)

    return Stage(Preparation, fittings(config, d), holder)


def fittings(config: VectorsConfig, d: int) -> list[Fitting]:
    """The exchanges that a preparation of vectors of length d needs, in order.

    Raises:
        UsageError: There are fewer columns than components.
    """
    if config.components is not None and config.components > d:
        raise UsageError(
            f"vectors.components = {config.components} is more than the {d} columns: give at most "
            f"{d}"
        )
    found = []
    if config.missing == "mean":
        found.append(
            Fitting(d, FILLING, "fill", lambda _, rows: rows.nan_to_num(nan=0.0), _there, _fill)
        )
    if config.scale != "standard" and config.components is None:
        return found

    def values(known: Preparation, block: Tensor) -> Tensor:
        return filled(config, known, block)

    def centred(known: Preparation, block: Tensor) -> Tensor:
        return filled(config, known, block) - learnt(known.mean)

    def squares(known: Preparation, block: Tensor) -> Tensor:
        return centred(known, block).square()

    def project(known: Preparation, total: Sums) -> Preparation:
        return replace(known, factor=_components(config, learnt(known.mean), total))

    found.append(Fitting(d, MEANS, "mean", values, _ones, _mean))
    if config.components is None:
        return [*found, Fitting(d, SPREADS, "factor", squares, _ones, _scale)]
    return [*found, Fitting(d, SPREADS, "factor", centred, _ones, project, outer=True)]


def _there(block: Tensor) -> Tensor:
    return (~block.isnan()).double()


def _ones(block: Tensor) -> Tensor:
    return block.new_ones(len(block), 1, dtype=torch.float64)


def _fill(known: Preparation, total: Sums) -> Preparation:
    """A column without a value at any client becomes 0."""
    return replace(known, fill=total.sums / total.counts.clamp(min=1))


def _mean(known: Preparation, total: Sums) -> Preparation:
    return replace(known, mean=total.sums / total.counts.clamp(min=1))


def _scale(known: Preparation, total: Sums) -> Preparation:
    variances = total.sums.clamp(min=0) / total.counts.clamp(min=1)
    return replace(known, factor=_one_over_deviation(learnt(known.mean), variances))


def _one_over_deviation(mean: Tensor, variances: Tensor) -> Tensor:
    """1 / σ; 0 for a constant column, whose variance is rounding alone."""
    rounding = (_ROUNDING * mean).square()
    return torch.where(variances > rounding, variances, torch.inf).rsqrt()


def _components(config: VectorsConfig, mean: Tensor, total: Sums) -> Tensor:
    """The matrix A of shape (d, components), of the outer products about the mean.

    The sign of a component is that with which its largest entry is positive, as scikit-learn has
    it. A whitened component without variance is 0.
    """
    count = total.counts.clamp(min=1)
    covariance = (total.sums + total.sums.T) / (2 * count)
    factor = torch.ones_like(mean)
    if config.scale == "standard":
        factor = _one_over_deviation(mean, covariance.diagonal())
        covariance = factor.unsqueeze(1) * covariance * factor
    variances, vectors = torch.linalg.eigh(covariance)
    variances, vectors = variances.flip(0)[: config.components], vectors.flip(1)
    matrix = vectors[:, : config.components]
    largest = matrix.gather(0, matrix.abs().argmax(dim=0, keepdim=True))
    matrix = matrix * torch.where(largest < 0, -1.0, 1.0)
    if config.whiten:
        # scikit-learn's variances are those of a sample.
        unbiased = variances * count / (count - 1).clamp(min=1)
        there = variances > _ROUNDING * len(mean) * variances[0]
        matrix = matrix * torch.where(there, unbiased, torch.inf).rsqrt()
    components: Tensor = factor.unsqueeze(1) * matrix
    return components


@dataclass(frozen=True)
class AddUp(SumBlocks[Preparation, Sums]):
    """The clients' half."""

    fitting: Fitting

    @property
    def exchange(self) -> Exchange[Preparation, Sums]:  # type: ignore[override]
        """What both sides know."""
        return self.fitting.exchange

    def width(self, message: Preparation, row: int) -> int:
        """With bounds the outer product of each vector is made by itself."""
        return row**2 if self.fitting.outer and self.crew.bounding is not None else row

    def block(self, message: Preparation, images: Tensor) -> Sums:
        """Add up what the exchange asks for."""
        rows, counts = self.fitting.rows(message, images.double()), self.fitting.counts(images)
        bounding, outer = self.crew.bounding, self.fitting.outer
        if bounding is not None:
            rows = rows.unsqueeze(2) * rows.unsqueeze(1) if outer else rows
            bounded = bounding.rows(self.exchange, "sums", rows.flatten(1))
            sums = bounded.sum(dim=0).view(rows.shape[1:])
            counts = bounding.rows(self.exchange, "counts", counts)
        else:
            sums = rows.T @ rows if outer else rows.sum(dim=0)
        return Sums(sums, counts.sum(dim=0))

    def told(self, total: Sums, samples: int) -> Sums:
        """Nothing of a column with too few values, or where there are too few vectors."""
        enough = total.counts >= self.crew.least
        return Sums(total.sums * enough, total.counts * enough)
