"""Settings of the systems without a neural network."""

from typing import Literal

from ccfcpp.core.config import Positive, PositiveShare, Section, Weight


class PixelsConfig(Section):
    """Settings of how images become points, and how points are assigned to centroids."""

    normalise: bool = True
    """Whether an image or a vector is scaled to length 1; else pixels are in [0, 1], and vectors
    stay as they are."""
    assignment: Literal["euclidean", "cosine"] = "euclidean"
    """Samples are assigned to the centroid with the smallest distance, or the largest cosine."""


class KFedConfig(Section):
    """Settings of k-FED: k-means at each client, then at the server."""

    local_clusters: Positive | None = None
    """Number of clusters at each client, k' in the paper; null: the number of all clusters."""


class FFCMConfig(Section):
    """Settings of FFCM: rounds of fuzzy c-means at the clients."""

    rounds: Positive = 10
    """Largest number of rounds."""
    tolerance: Weight = 1e-4
    """The run ends when no coordinate of a global centroid moves further than this."""


class FedDPConfig(Section):
    """Settings of FedDP-KMeans: k-means from sums in a small subspace."""

    rounds: Positive = 2
    """Number of rounds. The first computes initial centroids; each other one is a Lloyd step."""
    frequencies: Positive | None = 6
    """Number of the lowest frequencies of an image's discrete cosine transform that are used, along
    height and width, without the mean brightness; null: all pixels."""
    dimensions: Positive | None = None
    """Largest number of dimensions of the subspace, k in the paper; null: the number of clusters.
    Dimensions that cannot be told from noise are left out."""
    points: Positive = 200
    """Number of points at the server: random ones in the subspace, or images of ``server``."""
    server: str | None = None
    """The server's public images: a data set's name or a path, as for ``dataset``."""
    margin: PositiveShare | None = None
    """In the first round, images move the initial centroids if the ratio of their distances to the
    nearest and the second nearest one is at most this; 1/3 in the paper's proof, 1 in its code.
    null: they do not."""
    sums: Literal["subspace", "whole"] = "subspace"
    """Space in which the images of a cluster are summed; in the paper, the whole space."""
