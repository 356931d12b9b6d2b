"""Division of a run's samples among clients, including clients that joined later."""

from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig, SkewPartition
from ccfcpp.core.config import ClassesPartition
from ccfcpp.core.data_kinds import is_hidden
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.name_matching import canonical, tidy
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.concatenation import join_samples
from ccfcpp.data.images import ImageData, take_rows
from ccfcpp.data.open import AnyData, open_dataset
from ccfcpp.data.partition import (
    check_clients,
    classes_partition,
    dirichlet_partition,
    iid_partition,
    owner_partition,
    skewed_partition,
)
from ccfcpp.data.vectors import VectorData
from ccfcpp.engine.client import Client
from ccfcpp.runs.run import Holdings


def make_client(data: AnyData, number: int, name: str, samples: Tensor) -> Client:
    """Return the client ``number``, which holds the data at the int64 indices ``samples``."""
    return Client(number, name, take_rows(data.values, samples.to(data.values.device)))


def divide(config: ClusterConfig, data: AnyData, randomness: Randomness) -> Holdings[AnyData]:
    """Divide a run's samples among its clients, and add the samples of clients that joined later.

    Raises:
        UsageError: The partition does not fit the samples, or the samples of new clients cannot be
            read or differ in shape.
    """
    parts = partition(config, data, randomness)
    names = [f"client {number}" for number in range(len(parts))]
    if config.partition.kind == "folders":
        names = list(data.owner_names)
    holdings = Holdings[AnyData](data, parts, names)
    for path in config.data.newcomers:
        holdings = _add_newcomers(config, holdings, path)
    return holdings


def partition(config: ClusterConfig, data: AnyData, randomness: Randomness) -> list[Tensor]:
    """Return the indices of each client's samples, int64, by the configured partition.

    Raises:
        UsageError: The partition needs labels, folders or a number of clients that are missing.
    """
    choice = config.partition
    if choice.kind == "folders":
        if data.owners is None and isinstance(data, VectorData):
            raise UsageError(
                KeyValue("partition.kind", "folders"),
                " needs to know which client holds a row of "
                f"{data.name}: give a folder with a file for each client, or --client-column",
            )
        if data.owners is None:
            raise UsageError(
                KeyValue("partition.kind", "folders"),
                " needs an image folder, or an .npz file with an array "
                f"'clients', and {data.name} is neither: take --partition iid",
            )
        if choice.clients not in (None, len(data.owner_names)):
            raise UsageError(
                f"clients = {choice.clients} does not fit the {len(data.owner_names)} folders of "
                f"{data.name}: leave it out"
            )
        return owner_partition(data.owners, len(data.owner_names))
    clients = choice.clients or len(data.classes)
    if clients == 0:
        raise UsageError(
            f"clients is not given and {data.name} has no labels: give --clients, or "
            "--client-column for a table that names them"
        )
    check_clients(len(data), clients, data.unit)
    # A random division needs no labels.
    unlabelled = data.labels is None and isinstance(choice, SkewPartition) and choice.p == 0
    if choice.kind == "iid" or unlabelled:
        return iid_partition(len(data), clients, randomness)
    if data.labels is None:
        raise UsageError(
            KeyValue("partition.kind", choice.kind),
            f" needs class labels, and {data.name} has none: take "
            "--partition iid or --partition folders",
        )
    classes = len(data.classes)
    if isinstance(choice, SkewPartition):
        return skewed_partition(data.labels, classes, clients, choice.p, randomness)
    if isinstance(choice, ClassesPartition):
        each = choice.classes_per_client
        if each * clients < classes:
            raise UsageError(
                f"{clients} clients with {each} classes each leave some of the {classes} classes "
                "without a client: give more of one or the other"
            )
        return classes_partition(data.labels, classes, clients, each, randomness)
    return dirichlet_partition(
        data.labels, classes, clients, choice.alpha, randomness, choice.min_samples
    )


def _add_newcomers(
    config: ClusterConfig, holdings: Holdings[AnyData], path: str
) -> Holdings[AnyData]:
    """Read the samples of new clients from a path, and append them under unique client names."""
    stem = tidy(Path(path).expanduser().resolve().stem)
    data = _read_newcomers(config, holdings.data, path)
    parts, names = [torch.arange(len(data))], [stem]
    if data.owners is not None:
        parts = owner_partition(data.owners, len(data.owner_names))
        names = list(data.owner_names)
    all_names = [*holdings.names]
    for name in names:
        while canonical(name) in map(canonical, all_names):
            name = f"{stem}/{name}"
        all_names.append(name)
    new_parts = [part + len(holdings.data) for part in parts]
    samples = join_samples(holdings.data, data, stem)
    return Holdings(samples, [*holdings.parts, *new_parts], all_names)


def _read_newcomers(config: ClusterConfig, known: AnyData, place: str) -> AnyData:
    """Read new clients' samples, shaped like the known ones, with a client per folder or file."""
    by_client, shape, columns = config.partition.kind == "folders", None, tuple[str, ...]()
    if isinstance(known, ImageData):
        path = Path(place).expanduser()
        by_client = path.is_dir() and any(
            each.is_dir() and not is_hidden(each.name) for each in path.iterdir()
        )
        channels, height, width = known.images.shape[1:]
        shape = channels, height, width
    else:
        columns = known.columns
    return open_dataset(
        place,
        data=config.data,
        vectors=config.vectors,
        folders_are_clients=by_client,
        shape=shape,
        columns=columns,
    )
