"""The configuration of the systems with exact steps."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import Positive, Section, Weight

_Starts = Annotated[int, Field(ge=1, le=100)]


class MeansConfig(Section):
    """Rounds of exact k-means or fuzzy c-means."""

    rounds: Positive = 100
    """Largest number of rounds. The first one finds centroids to start from."""
    tolerance: Weight = 1e-6
    """The run ends when no coordinate of a centroid moves further than this."""
    starts: _Starts | None = None
    """Starts that k-means tries in 15 steps each before its first round; the one with the least
    squared error goes on, for fuzzy c-means, too. If it is null: 10 for ``fed-emp`` without
    noise, else 1."""


class MixtureConfig(Section):
    """A mixture of Gaussian distributions, as scikit-learn's ``GaussianMixture``."""

    covariance: Literal["full", "diag"] = "full"
    """``full``: a matrix for each cluster; ``diag``: a variance for each of its columns."""
    regularisation: Weight = 1e-6
    """Added to the diagonal of each covariance."""
    rounds: Positive = 100
    """Largest number of steps of expectation maximisation. The first round also finds means to
    start from, and covariances of the points that are nearest to them."""
    tolerance: Weight = 1e-3
    """The run ends when the mean log-likelihood grows by less than this."""
