"""Which client holds which samples, those that came later too."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.setup import AnyData, all_samples, partition
from ccfcpp.core.randomness import Randomness
from ccfcpp.data import load
from ccfcpp.data.images import ImageData
from ccfcpp.data.joining import joined
from ccfcpp.data.partition import owner_partition


@dataclass(frozen=True)
class Holding:
    """The samples of all clients.

    Attributes:
        data: All samples.
        parts: The indices of each client's samples.
        names: What each client is called: its folder's name, or its number.
    """

    data: AnyData
    parts: list[Tensor]
    names: list[str]


def holding(config: ClusterConfig, data: AnyData, randomness: Randomness) -> Holding:
    """Divide a run's samples among its clients, and add those of clients that came later.

    Raises:
        UsageError: The partition does not fit the samples, or newcomers' samples cannot be read or
            are of another form.
    """
    parts = partition(config, data, randomness)
    names = [f"client {number}" for number in range(len(parts))]
    if config.partition.kind == "folders":
        names = list(data.owner_names)
    held = Holding(data, parts, names)
    for place in config.data.newcomers:
        held = _with_newcomers(config, held, place)
    return held


def _with_newcomers(config: ClusterConfig, held: Holding, place: str) -> Holding:
    path = Path(place).expanduser()
    data = _newcomers(config, held.data, place, path)
    parts, names = [torch.arange(len(data))], [path.stem]
    if data.owners is not None:
        parts = owner_partition(data.owners, len(data.owner_names))
        names = list(data.owner_names)
    return Holding(
        joined(held.data, data, path.stem),
        [*held.parts, *(part + len(held.data) for part in parts)],
        [*held.names, *(f"{path.stem}/{name}" if name in held.names else name for name in names)],
    )


def _newcomers(config: ClusterConfig, held: AnyData, place: str, path: Path) -> AnyData:
    """Each folder, or file of vectors, is a newcomer; photos that lie in none are one's."""
    folders = path.is_dir() and any(each.is_dir() for each in path.iterdir())
    if isinstance(held, ImageData):
        own = config.data.reading | {"image_size": None}
        channels, height, width = held.values.shape[1:]
        shape = channels, height, width
        return load(place, folders_are_clients=folders, shape=shape, **own)
    kind = "folders" if folders else "iid"
    partition = config.partition.model_copy(update={"kind": kind})
    return all_samples(config.model_copy(update={"dataset": place, "partition": partition}))
