"""The configuration of the systems without a network."""

from typing import Annotated, Literal

from ccfcpp.core.conditions import When
from ccfcpp.core.config import Positive, Section, Weight


class PixelsConfig(Section):
    """How the systems without a network see images."""

    normalise: bool = True
    """Whether an image's pixels are scaled to a vector of length 1; else they are in [0, 1]."""
    assignment: Literal["euclidean", "cosine"] = "euclidean"
    """``cosine``: to the centroids' directions alone."""


class KFedConfig(Section):
    """k-FED."""

    local_clusters: Positive | None = None
    """Clusters that a client is assumed to hold, the paper's k'; k where it is null."""


class FFCMConfig(Section):
    """FFCM: rounds of fuzzy c-means at the clients."""

    rounds: Positive = 10
    """At most."""
    tolerance: Annotated[
        Weight, When("availability.dropout_rate", 0), When("availability.sample_fraction", 1)
    ] = 1e-4
    """The run ends where no coordinate of a global centroid moves further than this."""
