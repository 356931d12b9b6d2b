"""Categories, imputation, scaling and principal components of vectors, fitted by sums over clients.

Columns of categories first become columns of 0 and 1 (``categories``). A vector x then becomes
(f(x) − m) A. f replaces missing values by the column's mean, and with the
setting ``unit`` divides a vector by its norm; m is the mean over all clients' vectors; A is
diagonal to scale columns, or projects on principal components. The means of columns, m and A each
take one exchange of sums, and are the same as if all vectors were in one place. For A, clients sum
squares or outer products of x − m, not of x, so that a large mean causes no rounding errors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import (
    FARTHEST,
    ClusterSums,
    fewest_for_products,
    zero_small_clusters,
)
from ccfcpp.clustering.kmeans.chunks import SumBlocks, blocks
from ccfcpp.clustering.preprocessing.categories import (
    TRIES,
    VOCABULARY,
    VocabularyClientWork,
    VocabularyServerWork,
    one_hot,
)
from ccfcpp.clustering.preprocessing.parameters import PreprocessingParams
from ccfcpp.clustering.preprocessing.phases import Phase
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.errors import FederationError, KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    Exchange,
    Images,
    Metrics,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.payload import check_counts, sum_updates
from ccfcpp.engine.update_format import Count, Part, Spec, Sum, UpdateFormat

_ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Relative size below which a difference or an eigenvalue may be only a rounding error."""
_LEAST = torch.finfo(torch.float64).tiny
_FARTHEST_SCALED = 1e150
"""Largest allowed coordinate before scaling, as for a client's own vectors."""


def expand(config: VectorsConfig, known: PreprocessingParams, values: Tensor) -> Tensor:
    """Replace the last columns, codes of categories, by columns of 0 and 1; (samples, d), float64.

    Without categories values stay as they are.
    """
    values = values.double()
    if not config.categories:
        return values
    numbers = values.shape[1] - len(config.categories)
    slots = one_hot(values[:, numbers:], known) * (config.category_weight or 1.0)
    return torch.cat([values[:, :numbers], slots], dim=1)


def impute(config: VectorsConfig, known: PreprocessingParams, values: Tensor) -> Tensor:
    """Impute missing values, and normalise rows if configured; float64 of shape (samples, d)."""
    values = expand(config, known, values)
    if known.fill is not None:
        values = torch.where(values.isnan(), known.fill, values)
    return F.normalize(values, dim=1, eps=_LEAST) if config.scale == "unit" else values


def preprocess(config: VectorsConfig, known: PreprocessingParams, values: Tensor) -> Tensor:
    """Impute, centre and scale or project vectors by fitted parameters.

    Args:
        config: Settings of the preprocessing.
        known: The fitted parameters.
        values: Vectors, float32 or float64 of shape (samples, d).

    Returns:
        Tensor of ``values``' dtype, of shape (samples, d) or (samples, components).
    """
    return torch.cat(
        [
            _preprocess_block(config, known, block).to(values)
            for block in blocks(values, config.widened(values.shape[1]))
        ]
    )


def _preprocess_block(config: VectorsConfig, known: PreprocessingParams, block: Tensor) -> Tensor:
    block = impute(config, known, block)
    if known.mean is not None:
        block = block - known.mean
    if known.factor is None:
        return block
    return block * known.factor if known.factor.ndim == 1 else block @ known.factor


class Sums(ClusterSums):
    """A client's sums over its vectors, float64.

    ``sums`` are of values (d,), of squares (d,), or of outer products (d, d); ``counts`` are the
    number of vectors (1,), or of values that are not missing in each column (d,).
    """

    @property
    def mean(self) -> Tensor:
        """Mean of each column, of shape (d,); 0 if all of its values are missing."""
        return self.sums / self.counts.clamp(min=1)


PARTS: dict[str, Part] = {"sums": Sum(), "counts": Count()}
"""Kinds of the fields of ``Sums`` (count or sum), for the declaration of an exchange."""
COLUMN_MEANS, MEANS, SPREADS = (
    Exchange(name, PreprocessingParams, Sums, PARTS, images=Images(), once=True)
    for name in ("means of columns", "mean", "variances")
)


class VectorPhase(Phase[PreprocessingParams]):
    """Phase before clustering in which all clients fit the preprocessing of vectors.

    Args:
        config: Settings of the preprocessing.
        d: Number of columns of the vectors.

    Raises:
        UsageError: There are fewer columns than components.
    """

    knowledge = PreprocessingParams

    def __init__(self, config: VectorsConfig, d: int) -> None:
        if config.components is not None and config.components > config.widened(d):
            raise UsageError(
                KeyValue("vectors.components", config.components),
                f" is more than the {config.widened(d)} columns: give fewer",
            )
        # Of vectors whose categories have columns of their own.
        self.config, self.d = config, config.widened(d)
        needed = [COLUMN_MEANS] if config.missing == "mean" else []
        if config.scale == "standard" or config.components is not None:
            needed += [MEANS, SPREADS]
        self.needed = needed
        self.learns = bool(needed or config.categories)

    def is_learnt(self, known: PreprocessingParams) -> bool:
        """Return whether all preprocessing parameters are fitted."""
        return self.can_impute(known) and (SPREADS not in self.needed or known.factor is not None)

    def can_expand(self, known: PreprocessingParams) -> bool:
        """Return whether the categories' vocabulary is known, or not needed."""
        return not self.config.categories or known.vocabulary is not None

    def can_impute(self, known: PreprocessingParams) -> bool:
        """Return whether the values that replace missing ones are fitted, or not needed."""
        filled = COLUMN_MEANS not in self.needed or known.fill is not None
        return self.can_expand(known) and filled

    def sums_products(self, exchange: Exchange[PreprocessingParams, Sums]) -> bool:
        """Return whether clients sum outer products of vectors, for principal components."""
        return exchange is SPREADS and self.config.components is not None

    def last_exchanges(self) -> list[AnyServerWork]:
        """Return the server side of the exchanges that the settings need, in order."""
        pooled = [VocabularyServerWork(self.config)] * (TRIES if self.config.categories else 0)
        return [*pooled, *(PreprocessingServerWork(self, exchange) for exchange in self.needed)]

    def client_works(self, context: ClientContext) -> list[AnyClientWork]:
        """Return the client side of each exchange that the settings need."""
        works: list[AnyClientWork] = []
        if self.config.categories:
            works.append(VocabularyClientWork(VOCABULARY, context, self.config))
        return works + [PreprocessingClientWork(context, self, each) for each in self.needed]

    def samples(self, known: PreprocessingParams, client: Client) -> Tensor:
        """Return a client's vectors after preprocessing, of shape (samples, d or components)."""
        return preprocess(self.config, known, client.images)


@dataclass(frozen=True)
class PreprocessingServerWork(ServerWork[PreprocessingParams, PreprocessingParams, Sums]):
    """Server side of an exchange that fits preprocessing parameters from the clients' sums."""

    phase: VectorPhase
    exchange: Exchange[PreprocessingParams, Sums]

    def is_due(self, state: PreprocessingParams) -> bool:
        """Return whether the parameters that this exchange needs are fitted."""
        if self.exchange is SPREADS:
            return state.mean is not None
        if self.exchange is COLUMN_MEANS:
            return self.phase.can_expand(state)
        return self.phase.can_impute(state)

    def broadcast(self, state: PreprocessingParams) -> PreprocessingParams:
        """Return the message to clients: the preprocessing parameters fitted so far."""
        return state

    def update_format(self, message: PreprocessingParams) -> UpdateFormat:
        """Return an update's shapes and dtypes: those of ``Sums`` in this exchange."""
        d = self.phase.d
        counted = d if self.exchange is COLUMN_MEANS else 1
        shape = (d, d) if self.phase.sums_products(self.exchange) else (d,)
        return {"sums": Spec(torch.float64, shape), "counts": Spec(torch.float64, (counted,))}

    def check(self, message: PreprocessingParams, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse counts that cannot be of the senders' vectors, and sums that could overflow."""
        for count in (update.counts.min(), update.counts.max()):
            check_counts(count, senders)
        # As ``check_range`` has it, vectors that are scaled may be far away.
        config, power = self.phase.config, 2 if self.exchange is SPREADS else 1
        far = FARTHEST if config.scale == "none" and not config.whiten else _FARTHEST_SCALED
        if bool((update.sums.abs() > (2 * far) ** power * update.counts.clamp(min=1)).any()):
            raise RefusedUpdateError(f"vectors lie beyond {far:g}")

    def aggregate(
        self, state: PreprocessingParams, updates: Iterable[Sums], randomness: Randomness
    ) -> tuple[PreprocessingParams, Metrics]:
        """Return the state with the parameter that this exchange fits from all clients' sums."""
        total = sum_updates(updates)
        if self.exchange is COLUMN_MEANS:
            return replace(state, fill=total.mean), {}
        if state.mean is None or self.exchange is MEANS:
            return replace(state, mean=self._centre(total.mean)), {}
        if self.phase.sums_products(self.exchange):
            if float(total.counts) == 0:
                raise FederationError(
                    f"no client has as many rows as there are columns, {self.phase.d}, and its "
                    "owner's rules want them for vectors.components: leave it out"
                )
            factor = _principal_components(self.phase.config, state.mean, total)
        else:
            variances = total.sums.clamp(min=0) / total.counts.clamp(min=1)
            factor = _one_over_deviation(self.phase.config, state.mean, variances)
        return replace(state, factor=factor), {}

    def _centre(self, mean: Tensor) -> Tensor:
        """Return the centre m of vectors: their mean, but 0 in columns that are not scaled."""
        config = self.phase.config
        if config.category_weight is None or config.components is not None:
            return mean
        return torch.cat([mean[: -config.slots], torch.zeros_like(mean[-config.slots :])])


def _one_over_deviation(config: VectorsConfig, mean: Tensor, variances: Tensor) -> Tensor:
    """Return 1 / standard deviation of each column, of shape (d,); 0 for constant columns.

    The columns of one category have one scale, so that their variances add up to 1; or 1 with
    ``vectors.category_weight``.
    """
    rounding = (_ROUNDING * mean).square()
    if config.slots:
        alike = variances[-config.slots :].view(-1, config.most_categories)
        alike = alike.sum(dim=1, keepdim=True).expand_as(alike)
        if config.category_weight is not None:
            alike = torch.ones_like(alike)
        variances = torch.cat([variances[: -config.slots], alike.flatten()])
    return torch.where(variances > rounding, variances, torch.inf).rsqrt()


def _principal_components(config: VectorsConfig, mean: Tensor, total: Sums) -> Tensor:
    """Compute principal components (d, components) from ``total``, Σ (x − mean)(x − mean)ᵀ.

    As in scikit-learn, the entry with the largest absolute value in each component is positive. A
    whitened component without variance is 0.
    """
    count = total.counts.clamp(min=1)
    covariance = (total.sums + total.sums.T) / (2 * count)
    factor = torch.ones_like(mean)
    if config.scale == "standard":
        factor = _one_over_deviation(config, mean, covariance.diagonal())
        covariance = factor.unsqueeze(1) * covariance * factor
    variances, vectors = torch.linalg.eigh(covariance)
    variances, vectors = variances.flip(0)[: config.components], vectors.flip(1)
    matrix = vectors[:, : config.components]
    largest = matrix.gather(0, matrix.abs().argmax(dim=0, keepdim=True))
    matrix = matrix * torch.where(largest < 0, -1.0, 1.0)
    if config.whiten:
        # scikit-learn divides by count - 1.
        unbiased = variances * count / (count - 1).clamp(min=1)
        positive = variances > _ROUNDING * len(mean) * variances[0]
        matrix = matrix * torch.where(positive, unbiased, torch.inf).rsqrt()
    components: Tensor = factor.unsqueeze(1) * matrix
    return components


@dataclass(frozen=True)
class PreprocessingClientWork(SumBlocks[PreprocessingParams, Sums]):
    """Client side of an exchange that fits preprocessing: each client sums over its vectors."""

    phase: VectorPhase
    exchange: Exchange[PreprocessingParams, Sums]

    def width(self, message: PreprocessingParams) -> int:
        """Return how many numbers are computed for a vector: d, or d² to clip outer products."""
        outer = self.phase.sums_products(self.exchange)
        return self.phase.d**2 if outer and self.context.bounding is not None else self.phase.d

    def block(self, message: PreprocessingParams, images: Tensor) -> Sums:
        """Return the sums over a block of a client's vectors."""
        rows, counts = self._rows(message, images), self._counts(message, images)
        bounding, outer = self.context.bounding, self.phase.sums_products(self.exchange)
        if bounding is not None:
            rows = rows.unsqueeze(2) * rows.unsqueeze(1) if outer else rows
            clipped = bounding.rows(self.exchange, "sums", rows.flatten(1))
            sums = clipped.sum(dim=0).view(rows.shape[1:])
            counts = bounding.rows(self.exchange, "counts", counts)
        else:
            sums = rows.T @ rows if outer else rows.sum(dim=0)
        return Sums(sums, counts.sum(dim=0))

    def drop_small_sums(self, total: Sums, samples: int) -> Sums:
        """Set sums over too few vectors to 0: over fewer than ``least``, or than products need."""
        least = self.context.least
        if self.phase.sums_products(self.exchange):
            least = fewest_for_products(least, self.phase.d)
        return zero_small_clusters(total, least)

    def _rows(self, known: PreprocessingParams, block: Tensor) -> Tensor:
        """Return the rows whose sum, or sum of outer products, is sent; (samples, d)."""
        if self.exchange is COLUMN_MEANS:
            return expand(self.phase.config, known, block).nan_to_num(nan=0.0)
        rows = impute(self.phase.config, known, block)
        if known.mean is None or self.exchange is MEANS:
            return rows
        centred = rows - known.mean
        return centred if self.phase.sums_products(self.exchange) else centred.square()

    def _counts(self, known: PreprocessingParams, block: Tensor) -> Tensor:
        """Return 1 for each vector, (samples, 1); or for each value, 0 if missing, (samples, d)."""
        if self.exchange is COLUMN_MEANS:
            return (~expand(self.phase.config, known, block).isnan()).double()
        return block.new_ones(len(block), 1, dtype=torch.float64)
