"""Columns of categories as columns of 0 and 1, by a vocabulary that clients pool.

A category is a code (``ccfcpp.data.categories``), and its bucket is a number below ``BUCKETS`` that
the code determines. For each column of categories a client sends how many of its rows lie in each
bucket, without those of categories that fewer than ``vectors.rare`` of its rows have. The
vocabulary is the categories with the most rows of all clients. Nobody learns the text of a category
that does not hold it; somebody who guesses a text can compute its bucket. Later sums, such as means
of columns, count all rows with a category of the vocabulary, at clients where it is rare, too.

Two categories in one bucket would become one. Clients therefore also send sums of a second number
of each category, which have a variance if the bucket has several; if one of the vocabulary has,
all is repeated with other buckets. A category's key consists of both numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import SumOfClients
from ccfcpp.clustering.preprocessing.parameters import PreprocessingParams
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import Exchange, Metrics, RefusedUpdateError, ServerWork
from ccfcpp.engine.payload import check_counts, sum_updates
from ccfcpp.engine.update_format import Count, Spec, Sum, UpdateFormat

BUCKETS = 1 << 15
TRIES = 4
"""Times that the vocabulary is pooled at most, each time with other buckets."""
_MOST_SHARED = 0.125
"""Largest share of a column's buckets that several categories may share after the last try."""
_CHECKS = 1 << 6
"""Number of values of a category's second number."""
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 divided by the golden ratio, as int64: multiplication by it mixes the bits of a number."""
T = TypeVar("T")


@dataclass(frozen=True)
class CategoryCounts:
    """Update of a client: sums over its rows by bucket, float64 of shape (columns, buckets).

    Attributes:
        counts: Number of rows.
        checks: Sum of the categories' second numbers.
        squares: Sum of the squares of these.
    """

    counts: Tensor
    checks: Tensor
    squares: Tensor


VOCABULARY = Exchange(
    "vocabulary",
    PreprocessingParams,
    CategoryCounts,
    {"counts": Count(), "checks": Sum(), "squares": Sum()},
    images="the vocabulary of vectors.categories has no noise: leave vectors.categories out",
    once=True,
)


def bucket_and_check(codes: Tensor, salt: int) -> tuple[Tensor, Tensor]:
    """Return the bucket and the second number of each category, int64 of the codes' shape.

    Args:
        codes: Codes of categories, float64; NaN is taken for 0.
        salt: Chooses among the ways to assign codes to buckets.
    """
    mixed = codes.nan_to_num().long() + (salt + 1) * 0x632BE5AB
    for _ in range(2):
        mixed = mixed * _ODD
        mixed = mixed ^ ((mixed >> 29) & ((1 << 35) - 1))
    return mixed & (BUCKETS - 1), (mixed >> 24) & (_CHECKS - 1)


def category_key(codes: Tensor, salt: int) -> Tensor:
    """Return the key of each category, its bucket and second number in one: int64, as ``codes``."""
    buckets, checks = bucket_and_check(codes, salt)
    return buckets + BUCKETS * checks


def one_hot(codes: Tensor, known: PreprocessingParams) -> Tensor:
    """Return columns of 0 and 1 for the categories of a vocabulary.

    A category that the vocabulary lacks has 0 in all of them, a missing one NaN.

    Args:
        codes: Codes, float64 of shape (samples, columns).
        known: Has the vocabulary, keys of shape (columns, most).

    Returns:
        float64 of shape (samples, columns · most).
    """
    assert known.vocabulary is not None
    keys = category_key(codes, known.salt)
    slots = (keys.unsqueeze(2) == known.vocabulary.to(codes.device)).double()
    return torch.where(codes.isnan().unsqueeze(2), torch.nan, slots).flatten(1)


def count_unknown(codes: Tensor, known: PreprocessingParams) -> Tensor:
    """Count the rows of each column with a category that the vocabulary lacks; (columns,).

    ``codes`` are float64 of shape (samples, columns); a missing one does not count.
    """
    slots = one_hot(codes, known).view(*codes.shape, -1)
    return (slots.sum(dim=2) == 0).sum(dim=0)


@dataclass(frozen=True)
class VocabularyServerWork(ServerWork[PreprocessingParams, PreprocessingParams, CategoryCounts]):
    """Server side of exchange ``vocabulary``: choose the categories that become columns."""

    config: VectorsConfig
    exchange = VOCABULARY

    def is_due(self, state: PreprocessingParams) -> bool:
        """Return whether the vocabulary is not yet known."""
        return state.vocabulary is None

    def broadcast(self, state: PreprocessingParams) -> PreprocessingParams:
        """Return the message to clients: how codes are assigned to buckets."""
        return state

    def update_format(self, message: PreprocessingParams) -> UpdateFormat:
        """Return an update's shapes and dtypes: those of ``CategoryCounts``."""
        shape = len(self.config.categories), BUCKETS
        return dict.fromkeys(("counts", "checks", "squares"), Spec(torch.float64, shape))

    def check(
        self, message: PreprocessingParams, update: CategoryCounts, senders: Sequence[Member]
    ) -> None:
        """Refuse counts that cannot be of the senders' rows, and numbers that are not theirs."""
        check_counts(update.counts.min(), senders)
        check_counts(update.counts.sum(dim=1).max(), senders)
        for power, sums in ((1, update.checks), (2, update.squares)):
            # A little more is allowed for rounding of secure sums.
            most = (_CHECKS - 1) ** power * update.counts + 0.5
            if bool((sums > most).any() or (sums < -0.5).any()):
                raise RefusedUpdateError("it sums numbers that no category has")

    def aggregate(
        self,
        state: PreprocessingParams,
        updates: Iterable[CategoryCounts],
        randomness: Randomness,
    ) -> tuple[PreprocessingParams, Metrics]:
        """Return the state with the vocabulary; without, if one of its buckets has several.

        After the last try buckets that have several are left out.

        Raises:
            FederationError: These are too many, so that hardly a value is frequent.
        """
        total = sum_updates(updates)
        counts = total.counts.round()
        # Of integers, so that a single category gives 0 but for rounding of sums in fixed point.
        shared = total.squares * counts - total.checks.square() > 0.5 * counts
        most = min(self.config.most_categories, BUCKETS)
        if bool(shared.gather(1, _most_frequent(counts, most)).any()):
            if state.salt + 1 < TRIES:
                return replace(state, salt=state.salt + 1), {}
            if bool((shared.sum(dim=1) > _MOST_SHARED * (counts > 0).sum(dim=1)).any()):
                raise FederationError(
                    "two categories of a column cannot be told apart: a column of "
                    "vectors.categories has thousands of values, so leave it out"
                )
        counts = torch.where(shared, 0, counts)
        order = _most_frequent(counts, most)
        counts, checks = counts.gather(1, order), total.checks.gather(1, order)
        keys = order + BUCKETS * (checks / counts.clamp(min=1)).round().long()
        kept = torch.where(counts > 0, keys, -1)
        for name, any_kept in zip(self.config.categories, (kept >= 0).any(dim=1), strict=True):
            if not any_kept:
                raise FederationError(
                    f"nothing is left of column {name!r}: no client has {self.config.rare} rows "
                    "(vectors.rare, or more by its owner's rules) of one category, so leave the "
                    "column out of vectors.categories, or lower vectors.rare"
                )
        missing = self.config.most_categories - most
        return replace(state, vocabulary=F.pad(kept, (0, missing), value=-1)), {}


def _most_frequent(counts: Tensor, most: int) -> Tensor:
    """Return the buckets with the highest counts in each row; of equals the lower one first."""
    return counts.argsort(dim=1, descending=True, stable=True)[:, :most]


@dataclass(frozen=True)
class VocabularyClientWork(SumOfClients[PreprocessingParams, CategoryCounts]):
    """Client side of exchange ``vocabulary``: count a client's rows by bucket."""

    config: VectorsConfig

    def of_client(
        self, message: PreprocessingParams, client: Client, randomness: Randomness
    ) -> CategoryCounts:
        """Return the sums over one client's rows, without categories of too few of them."""
        codes = client.images[:, -len(self.config.categories) :].double()
        sums = codes.new_zeros(3, codes.shape[1], BUCKETS)
        for column, own in enumerate(codes.T):
            distinct, counts = torch.unique(own[~own.isnan()], return_counts=True)
            kept = counts >= max(self.config.rare, self.context.least)
            buckets, checks = bucket_and_check(distinct[kept], message.salt)
            rows = counts[kept] * torch.stack([torch.ones_like(checks), checks, checks.square()])
            sums[:, column].index_add_(1, buckets, rows.double())
        return CategoryCounts(*sums)
