"""Checks, before a run, for vectors that float precision cannot distinguish."""

from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.centroids import FARTHEST
from ccfcpp.clustering.kmeans.chunks import blocks
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.errors import KeyValue, UsageError

_FAR = 1000
"""Largest ratio of the mean's norm to the standard deviation that float32 vectors may have."""


def check_vectors(config: ClusterConfig, values: Tensor) -> None:
    """Check that float precision can distinguish the vectors of a run.

    Args:
        config: Configuration of the run.
        values: Vectors, floats of shape (samples, d).

    Raises:
        UsageError: They are too large, or so far from 0 that a network cannot tell them apart.
    """
    vectors = config.vectors
    if vectors.categories:
        values = values[:, : values.shape[1] - len(vectors.categories)]
        if values.shape[1] == 0:
            return
    check_range(vectors, values)
    centred = vectors.scale == "standard" or vectors.components is not None
    if centred or "scan" not in METHODS[config.method].sections:
        return
    values = F.normalize(values, dim=1) if vectors.scale == "unit" else values
    mean = values.nanmean(dim=0)
    spread = (values - mean).square().nanmean(dim=0).sum().sqrt()
    if spread > 0 and mean.norm() > _FAR * spread:
        raise UsageError(
            KeyValue("vectors.scale", vectors.scale),
            f" is refused with {config.method}: the vectors lie "
            f"{float(mean.norm() / spread):,.0f} times as far from 0 as they differ, so that its "
            "network could not tell them apart; take --scale standard, or --method fed-em",
        )


def check_range(config: VectorsConfig, values: Tensor) -> None:
    """Check that unscaled vectors are within the range that is allowed for centroids (1e15).

    Raises:
        UsageError: A coordinate is too large, and the vectors are not scaled.
    """
    far = max(float(block.nan_to_num().abs().max()) for block in blocks(values))
    if far > FARTHEST and config.scale == "none" and not config.whiten:
        raise UsageError(
            f"vectors lie as far as {far:g}, and without scaling {FARTHEST:g} is the farthest: "
            "give --scale standard, or a larger unit"
        )
