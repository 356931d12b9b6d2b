"""Embedding of images in memory and of texts as vectors, with their labels and owners."""

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.files import content_hash
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.images import ImageData
from ccfcpp.data.texts import read_texts
from ccfcpp.data.vectors import VectorData, vectors_from

_NAME_LETTERS = 100
"""Number of letters of a text that become the name of its vector."""


def embed_images(images: ImageData, encoder: Encoder) -> VectorData:
    """Embed images in memory as vectors, with their labels, owners, names and notes."""
    keys = [content_hash([], {"image": image}) for image in images.images]
    pixels = images.images.cpu().numpy()
    vectors = torch.from_numpy(encoder.embed(keys, lambda row: pixels[row])[0])

    def pictures(names: Sequence[str]) -> Mapping[str, Tensor]:
        where = {name: row for row, name in enumerate(images.called)}
        # Vectors of new clients, which were embedded elsewhere, have none.
        known = [name for name in names if name in where]
        return {name: images.images[where[name]].expand(3, -1, -1) for name in known}

    facts = images.labels, images.classes, images.owners, images.owner_names
    data = VectorData(images.name, vectors, *facts, names=images.names, notes=images.notes)
    return replace(data, encoder=encoder.hash, pictures=pictures)


def embed_texts(texts: Sequence[str], encoder: Encoder) -> Tensor:
    """Embed texts as vectors, float32 of shape `(texts, d)`."""
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return torch.from_numpy(encoder.embed(keys, lambda row: texts[row])[0])


def read_encoded_texts(path: Path, encoder: Encoder, columns: VectorsConfig) -> VectorData:
    """Read texts from files and embed them; ``columns`` names those with texts and their facts."""
    texts = read_texts(path, columns.text_column, columns.label_column, columns.client_column)
    vectors = np.asarray(embed_texts(texts.texts, encoder))
    data = vectors_from(path.stem, vectors, str(path), labels=texts.labels, clients=texts.clients)
    names = tuple(textwrap.shorten(text, _NAME_LETTERS, placeholder=" …") for text in texts.texts)
    return replace(data, names=names, named_by="text", encoder=encoder.hash)
