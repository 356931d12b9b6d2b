"""The names that a package needs to add a system, a network, a method or a data set.

Other names may change without notice. ``docs/extending.md`` has a whole package.
"""

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.contrastive import ContrastiveClustering, ContrastiveConfig
from ccfcpp.clustering.kmeans.centroids import InitState, required_centroids, sum_by_group
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.clustering.methods import System
from ccfcpp.clustering.sums_system import SumsConfig, SumsSystem
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, PixelClustering
from ccfcpp.core.config import (
    AffineViewsConfig,
    ComputeConfig,
    IntensityViewsConfig,
    Positive,
    PositiveNumber,
    PositiveShare,
    PrecisionConfig,
    Section,
    Share,
    Unused,
    Weight,
    require,
    require_other,
)
from ccfcpp.core.errors import FederationError, KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData
from ccfcpp.data.registry import DataSet
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    ClientWork,
    Exchange,
    Images,
    Metrics,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    SummedWork,
    Task,
)
from ccfcpp.engine.payload import check_counts, pack, sum_updates, unpack
from ccfcpp.engine.update_format import (
    Count,
    Mean,
    Opaque,
    Rows,
    Spec,
    Sum,
    UpdateFormat,
    Votes,
    format_of,
)
from ccfcpp.models.pooled import Objective, Pool, Program, apply_pooled
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.local import LocalContext, LocalMethod
from supervised.methods.method import Method
from supervised.sharing import Sharing

__all__ = [
    "AffineViewsConfig", "Aggregation", "AnyServerWork", "Broadcast", "CentroidState",
    "ClassifyConfig", "Client", "ClientContext", "ClientSide", "ClientWork", "ClusterConfig",
    "ClusteringAlgorithm", "ComputeConfig", "ContrastiveClustering", "ContrastiveConfig", "Count",
    "DataSet", "Exchange", "FederationError", "ImageData", "Images", "InitState",
    "IntensityViewsConfig", "KeyValue", "LocalContext", "LocalMethod", "LocalUpdate", "Mean",
    "Member", "Method", "Metrics", "ModelState", "Nothing", "Objective", "Opaque",
    "PixelClustering", "PixelsConfig", "Pool", "Positive", "PositiveNumber", "PositiveShare",
    "PrecisionConfig", "Problem", "Program", "Randomness", "RefusedUpdateError", "Rows", "Section",
    "ServerState", "ServerWork", "Share", "Sharing", "Spec", "Sum", "SummedWork", "SumsConfig",
    "SumsSystem", "System", "Task", "Unused", "UpdateFormat", "UsageError", "Votes", "Weight",
    "apply_pooled", "assign_points", "check_counts", "format_of", "pack", "require",
    "require_other", "required_centroids", "sum_by_group", "sum_updates", "unpack",
]  # fmt: skip
