"""The configuration of ``ccfcpp cluster``."""

from collections.abc import Mapping
from typing import Literal

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import DataConfig, Heeding, MethodConfig, Positive, Section, Share


class ClusterDataConfig(DataConfig):
    """Where the images come from, and how many of them are used."""

    images: Positive | None = None
    """Use only so many images, drawn at random, alike for every seed."""


class PartitionConfig(Section):
    """How the images are divided among clients."""

    kind: Literal["skew", "iid", "folders"] = "skew"
    """``skew``: the CCFC++ paper's p-skew; ``iid``: at random; ``folders``: a folder a client."""
    p: Share = 0.0
    """Degree of skew: 0 gives shares at random, 1 one class a client."""
    clients: Positive | None = None
    """Number of clients; one a class (or a folder) where it is null."""


class ClusterConfig(MethodConfig):
    """All of ``ccfcpp cluster``, but for the sections that methods bring."""

    method: str = "ccfc++"
    """``ccfc`` is ``ccfc++`` without the decorrelation term."""
    clusters: Positive | None = None
    """Number of clusters k; the number of classes where it is null."""
    data: ClusterDataConfig = ClusterDataConfig()
    partition: PartitionConfig = PartitionConfig()

    @classmethod
    def own_methods(cls) -> list[str]:
        """The systems of this library."""
        return METHODS.own()

    @classmethod
    def methods(cls) -> Mapping[str, Heeding]:
        """All systems."""
        return METHODS
