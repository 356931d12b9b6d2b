"""The configuration of k-means and of fuzzy c-means."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.conditions import When
from ccfcpp.core.config import Count, Positive, Section, Weight

_POINTS = When("centroids.search", "k-means")


class CentroidConfig(Section):
    """From representations to global centroids."""

    encoder: Annotated[Literal["local", "global"], _POINTS] = "local"
    """Whose representations a client clusters: its own trained model's, or the global model's."""
    first_encoder: Annotated[
        Literal["local", "global"], _POINTS, When("centroids.encoder", "local")
    ] = "local"
    """The same for the first centroids, after pre-training, where ``encoder`` is ``local``. The
    authors' code: ``global``."""
    server_weights: Annotated[Literal["none", "sizes"], _POINTS] = "none"
    """Whether the server's k-means weighs an uploaded centroid by its cluster's size."""
    assignment: Literal["cosine", "euclidean"] = "cosine"
    """``cosine``: on normalised representations; ``euclidean``: Eq. (1) as printed."""
    search: Literal["k-means", "lloyd"] = "k-means"
    """How centroids are found in each round: ``k-means``, at the clients and then at the server; or
    ``lloyd``, from the last ones by ``refine_steps`` alone, so that clients send sums, no points.
    The first ones then come from pre-training by neighbours."""
    refine_steps: Count = 0
    """Federated Lloyd steps after the search."""
    restarts: Positive = 10
    iterations: Positive = 100


FOR_REPRESENTATIONS = tuple(
    f"centroids.{key}"
    for key in (
        "encoder", "first_encoder", "server_weights", "assignment", "search", "refine_steps",
    )
)  # fmt: skip
"""Keys that systems ignore whose centroids are not of a federated network's representations."""


class FuzzyConfig(Section):
    """Fuzzy c-means, at the clients (FFCM) or at the server (FCM, SDA-FC-FCM)."""

    m: Annotated[float, Field(gt=1, le=100)] = 1.1
    """Fuzzifier: towards 1 memberships become those of k-means."""
    tolerance: Weight = 1e-4
    """It ends where no coordinate of a centroid moves further than this."""
    iterations: Positive = 200
    restarts: Positive = 3
    """Of the server's, whose best is taken; clients start from the global centroids."""
