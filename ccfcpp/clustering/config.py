"""The configuration of ``ccfcpp cluster``."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.conditions import Affects, When
from ccfcpp.core.config import (
    DataConfig,
    Heeding,
    MethodConfig,
    Positive,
    Section,
    Share,
    VectorsConfig,
)
from ccfcpp.hostility.config import AttackConfig, DefenceConfig
from ccfcpp.privacy.config import PrivacyConfig


class ClusterDataConfig(DataConfig):
    """Where the images come from, and how many of them are used."""

    images: Positive | None = None
    """Use only so many images, drawn at random, alike for every seed."""
    imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Of these, use so many that the largest class has this many times the images of the smallest:
    sizes fall geometrically from class to class. 1: all. Drawn as ``images`` are."""


class PartitionConfig(Section):
    """How the images are divided among clients."""

    kind: Literal["skew", "classes", "dirichlet", "iid", "folders"] = "skew"
    """``skew``: the CCFC++ paper's p-skew; ``classes``: M classes a client; ``dirichlet``: shares
    of each class by Dir(alpha); ``iid``: at random; ``folders``: a folder a client, and of vectors
    a file or a name in ``vectors.client_column``."""
    p: Annotated[Share, When("partition.kind", "skew")] = 0.0
    """Degree of ``skew``: 0 gives shares at random, 1 one class a client."""
    classes_per_client: Annotated[Positive, When("partition.kind", "classes")] = 2
    """M of ``classes``: with M times the clients up to the number of classes, none is shared."""
    alpha: Annotated[float, Field(gt=0), When("partition.kind", "dirichlet")] = 0.5
    """Concentration of ``dirichlet``: heterogeneous where it is small; ``inf`` is ``iid``."""
    clients: Positive | None = None
    """Number of clients; one a class (or a folder) where it is null."""
    min_samples: Annotated[Positive, When("partition.kind", "dirichlet")] = 10
    """``dirichlet`` is drawn again until each client holds so many."""

    @property
    def degree(self) -> dict[str, float | str]:
        """How much clients differ, by the name of the key; empty where the kind has none.

        JSON has no infinity: it is a text here.
        """
        if self.kind == "skew":
            return {"p": self.p}
        if self.kind == "classes":
            return {"classes_per_client": self.classes_per_client}
        if self.kind == "dirichlet":
            return {"alpha": self.alpha if self.alpha != math.inf else "inf"}
        return {}

    @property
    def in_words(self) -> str:
        """The kind and its degree."""
        if self.kind == "classes":
            return f"{self.classes_per_client} classes a client"
        degree = (f"{name} = {float(value):g}" for name, value in self.degree.items())
        return ", ".join([self.kind, *degree])


class ClusterConfig(MethodConfig):
    """All of ``ccfcpp cluster``, but for the sections that methods bring."""

    method: str = "ccfc++"
    """``ccfc`` is ``ccfc++`` without the decorrelation term."""
    preset: Annotated[Literal["default", "published"], Affects("other settings")] = "default"
    """``default``: what does best here; ``published``: CCFC and CCFC++ with the phases of their
    papers and code, which is what stands beside published values."""
    clusters: Positive | None = None
    """Number of clusters k; the number of classes where it is null."""
    data: ClusterDataConfig = ClusterDataConfig()
    partition: PartitionConfig = PartitionConfig()
    vectors: VectorsConfig = VectorsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    attack: AttackConfig = AttackConfig()
    defence: DefenceConfig = DefenceConfig()

    @classmethod
    def own_methods(cls) -> list[str]:
        """The systems of this library."""
        return METHODS.own()

    @classmethod
    def methods(cls) -> Mapping[str, Heeding]:
        """All systems."""
        return METHODS
