"""Which client holds which samples, those that came later too."""

from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.setup import AnyData, partition
from ccfcpp.core.kinds import is_hidden
from ccfcpp.core.names import canonical, tidy
from ccfcpp.core.randomness import Randomness
from ccfcpp.data import load
from ccfcpp.data.images import rows
from ccfcpp.data.joining import joined
from ccfcpp.data.partition import owner_partition
from ccfcpp.data.tables import read_vectors
from ccfcpp.data.vectors import VectorData
from ccfcpp.engine.client import Client
from ccfcpp.runs.run import Holdings


def holder(data: AnyData, number: int, name: str, samples: Tensor) -> Client:
    """Return the holder of the samples with some indices."""
    return Client(number, name, rows(data.values, samples.to(data.values.device)))


def holding(config: ClusterConfig, data: AnyData, randomness: Randomness) -> Holdings[AnyData]:
    """Divide a run's samples among its clients, and add those of clients that came later.

    Raises:
        UsageError: The partition does not fit the samples, or newcomers' samples cannot be read or
            are of another form.
    """
    parts = partition(config, data, randomness)
    names = [f"client {number}" for number in range(len(parts))]
    if config.partition.kind == "folders":
        names = list(data.owner_names)
    held = Holdings[AnyData](data, parts, names)
    for place in config.data.newcomers:
        held = _with_newcomers(config, held, place)
    return held


def _with_newcomers(
    config: ClusterConfig, held: Holdings[AnyData], place: str
) -> Holdings[AnyData]:
    stem = tidy(Path(place).expanduser().resolve().stem)
    data = _newcomers(config, held.data, place)
    parts, names = [torch.arange(len(data))], [stem]
    if data.owners is not None:
        parts = owner_partition(data.owners, len(data.owner_names))
        names = list(data.owner_names)
    called = [*held.names]
    for name in names:
        while canonical(name) in map(canonical, called):
            name = f"{stem}/{name}"
        called.append(name)
    later = [part + len(held.data) for part in parts]
    return Holdings(joined(held.data, data, stem), [*held.parts, *later], called)


def _newcomers(config: ClusterConfig, held: AnyData, place: str) -> AnyData:
    """Each folder, or file of vectors, is a newcomer; photos that lie in none are one's."""
    path, vectors = Path(place).expanduser(), config.vectors
    if isinstance(held, VectorData):
        by_column = config.partition.kind == "folders"
        return read_vectors(
            path,
            label_column=vectors.label_column,
            client_column=vectors.client_column if by_column else None,
            columns=held.columns,
        )
    folders = path.is_dir() and any(
        each.is_dir() and not is_hidden(each.name) for each in path.iterdir()
    )
    channels, height, width = held.values.shape[1:]
    return load(
        place,
        data_root=Path(config.data.root) if config.data.root else None,
        folders_are_clients=folders,
        shape=(channels, height, width),
        **config.data.reading | {"image_size": None},
    )
