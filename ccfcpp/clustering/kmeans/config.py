"""The configuration of k-means and of fuzzy c-means."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import Count, Positive, Section, Weight


class LloydConfig(Section):
    """Settings of k-means from given initial centroids."""

    iterations: Positive = 100
    """Largest number of iterations."""


class KMeansConfig(LloydConfig):
    """Settings of k-means from initial centroids drawn at random."""

    restarts: Positive = 10
    """Number of initialisations, of which the best result is kept."""


class CentroidConfig(KMeansConfig):
    """Settings of global centroids: from representations, by k-means or exact steps."""

    encoder: Literal["local", "global"] = "local"
    """The model whose representations a client clusters: its own trained one, or the global one."""
    first_encoder: Literal["local", "global"] = "local"
    """The same for the first centroids, after pre-training, if ``encoder`` is ``local``. The
    authors' code: ``global``."""
    server_weights: Literal["none", "sizes"] = "none"
    """Whether the server's k-means weighs an uploaded centroid by its cluster's size."""
    assignment: Literal["cosine", "euclidean"] = "cosine"
    """``cosine``: on normalised representations; ``euclidean``: Eq. (1) as printed."""
    search: Literal["k-means", "lloyd"] = "k-means"
    """The search for centroids in each round: ``k-means``, at the clients and then at the server;
    or ``lloyd``, from the last ones by ``refine_steps`` alone, so that clients send sums, no
    points. The first ones then come from pre-training by neighbours."""
    refine_steps: Count = 0
    """Federated Lloyd steps after the search."""


class MembershipConfig(Section):
    """Settings of memberships of fuzzy c-means."""

    m: Annotated[float, Field(gt=1, le=100)] = 1.1
    """Fuzzifier: towards 1 memberships become those of k-means."""


class LocalFuzzyConfig(MembershipConfig):
    """Settings of fuzzy c-means from given initial centroids, at the clients (FFCM)."""

    tolerance: Weight = 1e-4
    """The largest movement of a centroid's coordinate at which it ends."""
    iterations: Positive = 200
    """Largest number of iterations."""


class FuzzyConfig(LocalFuzzyConfig):
    """Settings of fuzzy c-means from random initial centroids, at the server (FCM, SDA-FC-FCM)."""

    restarts: Positive = 3
    """Number of initialisations, of which the best result is kept."""
