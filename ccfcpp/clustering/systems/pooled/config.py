"""Settings of exact k-means, fuzzy c-means and Gaussian mixtures."""

from typing import Literal

from ccfcpp.clustering.kmeans.config import Starts
from ccfcpp.core.config import Positive, Section, Weight


class MeansConfig(Section):
    """Settings of exact k-means and fuzzy c-means."""

    rounds: Positive = 100
    """Largest number of rounds. The first one computes initial centroids."""
    tolerance: Weight = 1e-6
    """The run ends when no coordinate of a centroid moves further than this."""
    starts: Starts | None = None
    """Number of initialisations. Each is tried in 15 steps of k-means, and the one with the least
    squared error is used, for fuzzy c-means, too. If null: 10 for ``fed-emp`` without noise,
    else 1."""


class PrototypesConfig(MeansConfig):
    """Settings of exact k-means, and of k-prototypes."""

    modes: bool = False
    """Whether a centroid has, in place of shares of a column's categories, the most frequent one of
    its cluster: k-prototypes (Huang, 1998), whose weight of a category is
    twice the square of ``vectors.category_weight``."""


class MixtureConfig(Section):
    """Settings of Gaussian mixtures, as of scikit-learn's ``GaussianMixture``."""

    covariance: Literal["full", "diag"] = "full"
    """``full``: a covariance matrix for each cluster; ``diag``: a variance for each column."""
    regularisation: Weight = 1e-6
    """Number that is added to the diagonal of each covariance matrix."""
    rounds: Positive = 100
    """Largest number of rounds; each is a step of expectation maximisation. The first also computes
    initial means, and the covariances of the points nearest to each."""
    tolerance: Weight = 1e-3
    """The run ends when the mean log-likelihood grows by less than this."""
