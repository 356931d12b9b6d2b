"""Loading of a run's images or vectors, and its number of clusters, from the configuration."""

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.images import sample_indices
from ccfcpp.data.imbalance import long_tailed
from ccfcpp.data.open import AnyData, open_dataset
from ccfcpp.data.vectors import VectorData
from ccfcpp.runs.environment import choose_device

# The same for every seed of a run, so that all runs use the same images.
_SELECTION = Randomness(0)


def load_data(config: ClusterConfig) -> AnyData:
    """Load the images or vectors of a run, with their clients if each folder is a client.

    First ``data.images`` of them are drawn at random, then ``data.imbalance`` shrinks classes.

    Raises:
        UsageError: The data cannot be read, or have no labels and ``data.imbalance`` needs them.
    """
    data = _load_all(config)
    if config.data.images is not None:
        data = data.selected(_selected_indices(config, data))
    if config.data.imbalance > 1:
        data = long_tailed(data, config.data.imbalance, _SELECTION.generator("imbalance"))
    return data


def left_out_data(config: ClusterConfig) -> AnyData | None:
    """Load the images that ``data.images`` leaves out; None if there are none.

    Raises:
        UsageError: The images cannot be read.
    """
    if config.data.images is None:
        return None
    data = _load_all(config)
    rest = torch.ones(len(data), dtype=torch.bool)
    rest[_selected_indices(config, data)] = False
    return data.selected(rest) if bool(rest.any()) else None


def _load_all(config: ClusterConfig) -> AnyData:
    if config.data_kind == "vectors" and config.data.image_size is not None:
        what = "which holds vectors" if config.data.encoder is None else "which is embedded"
        raise UsageError(f"data.image_size has no effect on {config.dataset}, {what}: leave it out")
    return open_dataset(
        config.dataset,
        load_run_encoder(config, choose_device(config.device)),
        data=config.data,
        vectors=config.vectors,
        # With any other partition, folders are classes.
        folders_are_clients=config.partition.kind == "folders",
    )


def load_run_encoder(config: ClusterConfig, device: torch.device) -> Encoder | None:
    """Load the encoder that a configuration names, onto a device; None if it names none.

    Raises:
        UsageError: It cannot be loaded, is not the encoder with which the run began, or embeds
            images although the configuration names columns of a table.
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


def check_encoder(config: ClusterConfig, content_hash: str) -> None:
    """Check that vectors come from the encoder with which a run began.

    Args:
        config: Configuration of the run.
        content_hash: Hash of the encoder of the vectors; empty if it is unknown.

    Raises:
        UsageError: They come from another encoder, or from an unknown one.
    """
    name, wanted = config.data.encoder, config.data.encoder_hash
    if not content_hash and (name or wanted):
        raise UsageError(
            f"the run is on vectors of {name or 'an encoder'}, and these do not say which encoder "
            "made them: give the photos or texts with --encoder, or embed them by ccfcpp embed"
        )
    if wanted is not None and content_hash != wanted:
        raise UsageError(
            f"the encoder has the content hash {content_hash[:12]}…, and that of the run is "
            f"{wanted[:12]}…: give the same network with the same weights"
        )


def _selected_indices(config: ClusterConfig, data: AnyData) -> Tensor:
    """Return the indices of the images that ``data.images`` selects."""
    generator = _SELECTION.generator("part of the images")
    return sample_indices(torch.arange(len(data)), config.data.images, generator)


def number_of_clusters(config: ClusterConfig, data: AnyData) -> int:
    """Return the number of clusters k of a run, or its largest candidate.

    It is the configured number, or else the number of classes.

    Raises:
        UsageError: There are more clusters than samples; or k is not configured and there is only
            one class, or no labels. The message then names all settings that are missing.
    """
    clusters = config.most_clusters(len(data), len(data.classes), data.unit)
    if clusters == 0:
        raise UsageError(_missing_settings(config, data))
    if clusters == 1 and config.clusters is None:
        raise UsageError(
            f"clusters is not given and {data.name} has one class alone, {data.classes[0]!r}, so "
            f"that all {data.unit}s would be one cluster: give --clusters"
        )
    return clusters


def _missing_settings(config: ClusterConfig, data: AnyData) -> str:
    """Return the error message that names all settings which samples without labels need."""
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
