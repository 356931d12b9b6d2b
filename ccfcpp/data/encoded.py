"""Data sets through an encoder: vectors of photos and texts, with what else is known of them."""

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import content_hash
from ccfcpp.core.kinds import kind_of
from ccfcpp.data import archives
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.folder import read_folder
from ccfcpp.data.images import ImageData
from ccfcpp.data.npz import read_npz
from ccfcpp.data.photos import embed_photos, thumbnails
from ccfcpp.data.reading import Options
from ccfcpp.data.registry import DATASETS, root_folder
from ccfcpp.data.texts import read_texts
from ccfcpp.data.vectors import VectorData, vectors_from

_NAME_LETTERS = 100
"""Of a text as the name of its vector."""


def read_encoded(
    source: str,
    encoder: Encoder,
    *,
    data_root: Path | None = None,
    folders_are_clients: bool = False,
    how: Options = Options(),  # noqa: B008 - it cannot change
    text: str = "text",
    label: str | None = None,
    client: str | None = None,
    flat: bool = False,
) -> VectorData:
    """Read photos, or texts, and make vectors of them.

    Args:
        source: A data set's name or a path, as `ccfcpp.data.load` and `read_texts` take it.
        encoder: What makes the vectors.
        data_root: Where named data sets lie.
        folders_are_clients: Whether each top-level folder is a client.
        how: How files are read; sizes do not count, since the encoder takes any.
        text: Of a table its column of texts.
        label: Of a table its column of classes.
        client: Of a table its column that says which client holds a row.
        flat: Whether folders tell nothing, and files lie at any depth.

    Returns:
        Vectors with what is known of their samples: names, labels, owners, files left out.

    Raises:
        UsageError: The source cannot be read, or holds what the encoder does not take.
    """
    path = Path(source).expanduser()
    if encoder.name.takes == "texts":
        data = _of_texts(path, encoder, text, label, client)
    elif source not in DATASETS and kind_of(source) == "vectors":
        raise UsageError(
            f"{source} holds vectors, and encoder {encoder.name.called} takes images: leave the "
            "encoder out, or give images"
        )
    elif source not in DATASETS and (
        path.is_dir() or (path.is_file() and archives.is_archive(path))
    ):
        how = replace(how, encoder=encoder, image_size=None, shape=None)
        if flat:
            data = embed_photos(path, how)
        else:
            found = read_folder(path, how=how, folders_are_clients=folders_are_clients)
            assert isinstance(found, VectorData)
            data = found
        data = replace(data, named_by="file", pictures=partial(thumbnails, path, how))
    else:
        data = embed_images(_in_memory(source, path, data_root), encoder)
    return replace(data, encoder=encoder.hash)


def embed_images(images: ImageData, encoder: Encoder) -> VectorData:
    """Make vectors of images in memory, with what is known of them."""
    keys = [content_hash([], {"image": image}) for image in images.images]
    vectors = _whole(encoder, keys, images.images.cpu().numpy())

    def pictures(names: Sequence[str]) -> Mapping[str, Tensor]:
        where = {name: row for row, name in enumerate(images.called)}
        return {name: images.images[where[name]].expand(3, -1, -1) for name in names}

    return VectorData(
        images.name,
        vectors,
        images.labels,
        images.classes,
        images.owners,
        images.owner_names,
        names=images.names,
        encoder=encoder.hash,
        pictures=pictures,
    )


def embed_texts(texts: Sequence[str], encoder: Encoder) -> Tensor:
    """Make vectors of texts, float32 of shape `(texts, d)`."""
    return _whole(encoder, [hashlib.sha256(text.encode()).hexdigest() for text in texts], texts)


def _whole(encoder: Encoder, keys: Sequence[str], samples: Any) -> Tensor:
    """Embed samples that are all there."""
    vectors, _ = encoder.embedded(keys, lambda i: samples[i])
    return torch.from_numpy(vectors)


def _in_memory(source: str, path: Path, data_root: Path | None) -> ImageData:
    if source in DATASETS:
        return DATASETS[source].load(root_folder(data_root))
    if not path.is_file() or path.suffix.lower() != ".npz":
        raise UsageError(
            f"there are no images at {source}: give a folder of images, an archive of one, an .npz "
            "file, or the name of a data set"
        )
    return read_npz(path)


def _of_texts(
    path: Path, encoder: Encoder, text: str, label: str | None, client: str | None
) -> VectorData:
    found = read_texts(path, text, label, client)
    vectors = embed_texts(found.texts, encoder)
    data = vectors_from(
        path.stem, np.asarray(vectors), str(path), labels=found.labels, clients=found.clients
    )
    names = tuple(textwrap.shorten(text, _NAME_LETTERS, placeholder=" …") for text in found.texts)
    return replace(data, names=names, named_by="text")
