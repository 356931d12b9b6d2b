"""Settings of k-means and of fuzzy c-means."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import Count, Positive, Section, Weight

Starts = Annotated[int, Field(ge=1, le=100)]
"""Number of initialisations that are compared by sums over all clients' samples."""


class LloydConfig(Section):
    """Settings of k-means from given initial centroids."""

    iterations: Positive = 100
    """Largest number of iterations."""


class KMeansConfig(LloydConfig):
    """Settings of k-means from initial centroids drawn at random."""

    restarts: Positive = 10
    """Number of initialisations; the best result is kept."""


class CentroidConfig(KMeansConfig):
    """Settings of how CCFC and CCFC++ compute global centroids from representations."""

    encoder: Literal["local", "global"] = "local"
    """Model whose representations a client clusters: its own trained one, or the global one."""
    first_encoder: Literal["local", "global"] = "local"
    """As ``encoder``, for the first centroids after pre-training; only if ``encoder`` is ``local``.
    The authors' code has ``global``."""
    server_weights: Literal["none", "sizes"] = "none"
    """Weight of a client's centroid in the server's k-means: ``sizes``, its cluster's size."""
    assignment: Literal["cosine", "euclidean"] = "cosine"
    """Assignment to centroids: ``cosine``, on normalised representations; ``euclidean``, Eq. (1) of
    the CCFC++ paper."""
    search: Literal["k-means", "lloyd"] = "k-means"
    """Computation of centroids in each round: ``k-means`` at the clients and then at the server;
    or ``lloyd``, only ``refine_steps`` from the previous centroids, so that clients send no points
    but sums. The first centroids then come from pre-training by neighbours, or from ``starts``."""
    starts: Starts = 1
    """Number of initialisations of the first centroids by the global model. If several, each makes
    15 federated steps of Lloyd's k-means from k-means of clients' centroids, five for a cluster,
    and the one with the largest mutual information of image and cluster is used."""
    refine_steps: Count = 0
    """Number of federated steps of Lloyd's k-means after the search."""


class MembershipConfig(Section):
    """Settings of the memberships in fuzzy c-means."""

    m: Annotated[float, Field(gt=1, le=100)] = 1.1
    """Fuzzifier: the closer to 1, the closer memberships are to the assignments of k-means."""


class LocalFuzzyConfig(MembershipConfig):
    """Settings of fuzzy c-means from given initial centroids, at the clients (FFCM)."""

    tolerance: Weight = 1e-4
    """Fuzzy c-means ends if no coordinate of a centroid moves by more than this."""
    iterations: Positive = 200
    """Largest number of iterations."""


class FuzzyConfig(LocalFuzzyConfig):
    """Settings of fuzzy c-means from random initial centroids, at the server (FCM, SDA-FC-FCM)."""

    restarts: Positive = 3
    """Number of initialisations; the best result is kept."""
