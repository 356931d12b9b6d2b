"""The sparse manifold transform: what images look like, by which of their patches go together.

Source: Chen, Yun, Ma, Olshausen and LeCun, *Minimalistic Unsupervised Representation Learning with
the Sparse Manifold Transform* (ICLR 2023, arXiv 2209.15261). A patch is coded by the atoms of a
dictionary that it resembles. Atoms that occur in the same images get near places in an embedding,
and an image is described by where the atoms of its patches lie, on a coarse grid.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.lessons import learnt
from ccfcpp.data.images import to_float

PATCH = 6
"""Pixels of a patch's side."""
SIDE = 32
"""Larger images are reduced to so many pixels a side: patches then cover parts of things."""
THRESHOLD = 0.3
"""Cosine similarity from which on an atom is in the code of a patch."""
DIMENSIONS = 128
"""Of the embedding of atoms."""
_GRID = 6
"""Places a side at which an image is described."""
_VALUES = 1 << 23
"""Of codes that are made at a time: 32 MB."""


@dataclass(frozen=True)
class Transform:
    """What is known of the transform; it grows from lesson to lesson.

    Attributes:
        whitening: W, float32 of shape (p, p), where p is the number of a patch's values.
        dictionary: Atoms, float32 of shape (atoms, p), each of length 1.
        embedding: Where atoms lie, float32 of shape (atoms, dimensions).
    """

    whitening: Tensor | None = None
    dictionary: Tensor | None = None
    embedding: Tensor | None = None


def reduced(images: Tensor) -> Tensor:
    """Images as floats, no larger than ``SIDE``: (samples, channels, height, width)."""
    height, width = images.shape[2:]
    size = min(height, SIDE), min(width, SIDE)
    values = to_float(images)
    return values if size == (height, width) else F.interpolate(values, size, mode="area")


def patches(images: Tensor) -> Tensor:
    """All patches of images, each without its mean.

    Args:
        images: uint8 of shape (samples, channels, height, width).

    Returns:
        float32 of shape (samples, places, values of a patch).
    """
    found = F.unfold(reduced(images), PATCH).transpose(1, 2)
    return found - found.mean(dim=2, keepdim=True)


def whitened(whitening: Tensor, rows: Tensor) -> Tensor:
    """Patches as directions: multiplied by W, and of length 1."""
    return F.normalize(rows @ whitening, dim=-1)


def codes(whitening: Tensor, dictionary: Tensor, images: Tensor) -> Tensor:
    """Which atoms each patch resembles: ones and zeros, float32 (samples, places, atoms)."""
    cosines = whitened(whitening, patches(images)) @ dictionary.T
    return cosines.ge_(THRESHOLD)


def places(images: Tensor) -> tuple[int, int]:
    """Rows and columns of the patches of an image."""
    height, width = (min(size, SIDE) for size in images.shape[2:])
    return height - PATCH + 1, width - PATCH + 1


def batches(images: Tensor, atoms: int) -> Iterator[Tensor]:
    """Images in parts, of whose codes so many fit the memory."""
    rows, columns = places(images)
    return iter(torch.split(images, max(1, _VALUES // (rows * columns * atoms))))


@torch.no_grad()
def features(known: Transform, images: Tensor) -> Tensor:
    """Describe images, without their mean.

    At each place of a grid the embeddings of the atoms in the codes are added up, and the sum is
    made of length 1. Codes are pooled first: the embedding is linear, and pooled codes are few.

    Args:
        known: The whole transform.
        images: uint8 of shape (samples, channels, height, width).

    Returns:
        float32 of shape (samples, grid · grid · dimensions), each of length 1.
    """
    whitening, dictionary = learnt(known.whitening), learnt(known.dictionary)
    pool = _pooling(*places(images)).to(images.device)
    found = []
    for part in batches(images, len(dictionary)):
        pooled = pool @ codes(whitening, dictionary, part)
        found.append(F.normalize(pooled @ learnt(known.embedding), dim=2).flatten(1))
    values = torch.cat(found)
    values -= values.mean(dim=0)
    return F.normalize(values, dim=1, out=values)


def _pooling(rows: int, columns: int) -> Tensor:
    """The matrix that adds up places in each window of the grid: (windows, rows · columns)."""
    down, across = _windows(rows), _windows(columns)
    return torch.kron(down, across)


def _windows(count: int) -> Tensor:
    """Which of some places in a row are in each window, as ``adaptive_avg_pool`` has them."""
    grid = min(_GRID, count)
    found = torch.zeros(grid, count)
    for window in range(grid):
        found[window, window * count // grid : -(-(window + 1) * count // grid)] = 1
    return found
