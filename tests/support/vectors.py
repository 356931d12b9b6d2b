"""Small runs on vectors in memory, divided among clients by an array of their numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.core.config import Tree, VectorsConfig
from ccfcpp.core.config_layers import merge, resolve
from ccfcpp.data import tables
from ccfcpp.data.vectors import VectorData, vectors_from

Points = NDArray[np.float64]

SECURE: Tree = {"privacy": {"secure_sums": True}}
ROUNDING = 2e-5
"""What secure sums of a few clients may be off by, in numbers of the size of a few units."""


def blobs(samples: int, d: int, clusters: int, seed: int) -> Points:
    """Gaussian blobs, far from the origin and in columns of different spread."""
    source = np.random.default_rng(seed)
    centres = source.normal(0, 4, (clusters, d))
    points = centres[source.integers(clusters, size=samples)] + source.normal(size=(samples, d))
    return np.asarray(points * source.uniform(0.5, 2, d) + source.normal(0, 5, d))


def read_vectors(path: Path, *, columns: Sequence[str] = (), **settings: Any) -> VectorData:
    """The vectors of a file or folder, read by these settings."""
    return tables.read_vectors(path, VectorsConfig(**settings), columns)


def held(points: Points, owners: NDArray[np.int64], missing: Any = "refuse") -> VectorData:
    """Vectors of clients."""
    return vectors_from("points", points, "points", clients=owners, missing=missing)


def plan(method: str, clusters: int, *trees: Tree) -> ClusterConfig:
    """A configuration for vectors in memory, as they are."""
    tree: Tree = {
        "dataset": "./points.npy",
        "method": method,
        "clusters": clusters,
        "device": "cpu",
        "partition": {"kind": "folders"},
        "vectors": {"scale": "none"},
    }
    for other in trees:
        tree = merge(tree, other)
    return resolve(ClusterConfig, "cluster", tree)


def experiment(
    method: str, points: Points, owners: NDArray[np.int64], clusters: int, *trees: Tree
) -> ClusteringRun:
    """A run of a system, with other settings."""
    config = plan(method, clusters, *trees)
    return clustering_run(config, held(points, owners, config.vectors.missing))


def there(run: ClusteringRun) -> NDArray[np.int64]:
    """The places of the vectors that clients hold who take part."""
    return np.sort(torch.cat([run.parts[client.id] for client in run.clients]).numpy())


def after(run: ClusteringRun, state: Any, rounds: int, first: int = 1) -> Any:
    """The state after some rounds, which begin with the one numbered ``first``."""
    federation = run.federation()
    for number in range(first, first + rounds):
        state, report = federation.run_round(state, number)
        assert report.refused == {}
    return state
