"""The images or vectors, number of clusters and partition that a configuration asks for."""

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.images import random_part
from ccfcpp.data.imbalance import long_tailed
from ccfcpp.data.open import AnyData, open_dataset
from ccfcpp.data.vectors import VectorData
from ccfcpp.runs.environment import choose_device

# Drawn by a seed of its own, so that runs with different seeds see the same images.
_PART = Randomness(0)


def load_data(config: ClusterConfig) -> AnyData:
    """Load the images or vectors, or a part of them, with owners if each folder is a client.

    ``data.images`` are drawn first, and ``data.imbalance`` applies to the rest.

    Raises:
        UsageError: The images cannot be read, or lack labels that the part needs.
    """
    data = _whole_data(config)
    if config.data.images is not None:
        data = data.selected(_part(config, data))
    if config.data.imbalance > 1:
        data = long_tailed(data, config.data.imbalance, _PART.generator("imbalance"))
    return data


def left_out_data(config: ClusterConfig) -> AnyData | None:
    """Return the images that ``data.images`` leaves out; None if it leaves out none.

    Raises:
        UsageError: The images cannot be read.
    """
    if config.data.images is None:
        return None
    data = _whole_data(config)
    rest = torch.ones(len(data), dtype=torch.bool)
    rest[_part(config, data)] = False
    return data.selected(rest) if bool(rest.any()) else None


def _whole_data(config: ClusterConfig) -> AnyData:
    if config.data_kind == "vectors" and config.data.image_size is not None:
        what = "which holds vectors" if config.data.encoder is None else "which is embedded"
        raise UsageError(f"data.image_size has no effect on {config.dataset}, {what}: leave it out")
    return open_dataset(
        config.dataset,
        load_run_encoder(config, choose_device(config.device)),
        data=config.data,
        vectors=config.vectors,
        # Another kind of partition says itself who holds what.
        folders_are_clients=config.partition.kind == "folders",
    )


def load_run_encoder(config: ClusterConfig, device: torch.device) -> Encoder | None:
    """Load the encoder of a run, by the name that its user gives; None without one.

    Raises:
        UsageError: It cannot be loaded, is another one than the run's, or takes images although
            columns are named.
    """
    if config.data.encoder is None:
        return None
    from ccfcpp.data.encoders.loading import load_encoder

    encoder, vectors = load_encoder(config.data.encoder, device), config.vectors
    check_encoder(config, encoder.hash)
    named = [name for name in (vectors.label_column, vectors.client_column) if name is not None]
    if encoder.name.takes == "images" and named:
        raise UsageError(
            f"column {named[0]!r} has no effect on images, which have none: leave it out"
        )
    return encoder


def check_encoder(config: ClusterConfig, found: str) -> None:
    """Refuse vectors from another encoder than the one with which a run began.

    Raises:
        UsageError: They come from another one, or from none.
    """
    name, wanted = config.data.encoder, config.data.encoder_hash
    if not found and (name or wanted):
        raise UsageError(
            f"the run is on vectors of {name or 'an encoder'}, and these do not say which encoder "
            "made them: give the photos or texts with --encoder, or embed them by ccfcpp embed"
        )
    if wanted is not None and found != wanted:
        raise UsageError(
            f"the encoder has the content hash {found[:12]}…, and that of the run is "
            f"{wanted[:12]}…: give the same network with the same weights"
        )


def _part(config: ClusterConfig, data: AnyData) -> Tensor:
    """Return the indices of the images that ``data.images`` and ``data.imbalance`` select."""
    generator = _PART.generator("part of the images")
    return random_part(torch.arange(len(data)), config.data.images, generator)


def number_of_clusters(config: ClusterConfig, data: AnyData) -> int:
    """Return k: as configured, the number of classes, or the largest candidate.

    Raises:
        UsageError: There are more clusters than images; or k is not configured, and there is one
            class or no label. In the last case the message names all that is missing.
    """
    clusters = config.most_clusters(len(data), len(data.classes), data.unit)
    if clusters == 0:
        raise UsageError(_missing(config, data))
    if clusters == 1 and config.clusters is None:
        raise UsageError(
            f"clusters is not given and {data.name} has one class alone, {data.classes[0]!r}, so "
            f"that all {data.unit}s would be one cluster: give --clusters"
        )
    return clusters


def _missing(config: ClusterConfig, data: AnyData) -> str:
    """List everything that a user has to give for images without labels."""
    if isinstance(data, VectorData):
        clients = "" if data.owners is not None or config.partition.clients else " and --clients"
        return (
            f"clusters is not given and {data.name} has no labels: give --clusters{clients}, or "
            "the column that holds classes by --label-column"
        )
    if config.partition.kind == "folders":
        return (
            f"clusters is not given: each of the {len(data.owner_names)} folders of {data.name} is "
            "a client, and none of them holds folders of classes. Give --clusters; or where the "
            "folders are classes, leave out --partition folders"
        )
    if config.partition.clients is None:
        return (
            f"clusters and clients are not given and {data.name} has no labels: give --clusters "
            "and --clients"
        )
    return f"clusters is not given and {data.name} has no labels: give --clusters"
