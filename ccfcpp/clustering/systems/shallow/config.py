"""The configuration of the systems without a network."""

from typing import Literal

from ccfcpp.core.config import Positive, PositiveShare, Section, Weight


class PixelsConfig(Section):
    """Settings of how the systems without a network represent images."""

    normalise: bool = True
    """Whether an image's pixels are scaled to a vector of length 1; else they are in [0, 1]."""
    assignment: Literal["euclidean", "cosine"] = "euclidean"
    """``cosine``: to the centroids' directions alone."""


class KFedConfig(Section):
    """The settings of k-FED."""

    local_clusters: Positive | None = None
    """Clusters that a client is assumed to hold, the paper's k'; k if it is null."""


class FFCMConfig(Section):
    """The settings of FFCM: rounds of fuzzy c-means at the clients."""

    rounds: Positive = 10
    """Largest number of rounds."""
    tolerance: Weight = 1e-4
    """The run ends when no coordinate of a global centroid moves further than this."""


class FedDPConfig(Section):
    """The settings of FedDP-KMeans."""

    rounds: Positive = 2
    """The first one finds centroids to start from; each further one is a Lloyd step."""
    frequencies: Positive | None = 6
    """Number of the lowest frequencies of an image's discrete cosine transform that count, down and
    across, without the brightness of the whole image; null: all pixels."""
    dimensions: Positive | None = None
    """Largest number of dimensions of the subspace, the paper's k; null: the number of clusters. It
    has fewer if noise hides the others."""
    points: Positive = 200
    """Points at the server: drawn in the subspace, or so many of the images of ``server``."""
    server: str | None = None
    """The server's public images: a data set's name or a path, as ``dataset`` takes them."""
    margin: PositiveShare | None = None
    """Largest ratio of an image's distances from the nearest and the second start at which the
    first round adds it up; the paper's proof: 1/3, its code: 1. null: no such sums."""
    sums: Literal["subspace", "whole"] = "subspace"
    """Space of the sums of images by cluster: the subspace; or, as in the paper, the whole
    space."""
