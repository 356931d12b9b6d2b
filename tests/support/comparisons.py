"""Plans of comparisons."""

from collections.abc import Mapping, Sequence

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree
from ccfcpp.studies.comparison import plan_comparison
from ccfcpp.studies.grids import PlannedRun, StudySpec


def planned_comparison(
    values: Tree, methods: Sequence[str], axes: Mapping[str, Sequence[object]], seeds: int
) -> list[PlannedRun[ClusterConfig]]:
    """The runs of methods at all places of some axes, with single values."""
    return plan_comparison(StudySpec([], values, [{"method": methods, **axes}], seeds))
