"""Kinds of data that a client sends, which the owner of its images can allow or refuse."""

from typing import Literal, get_args

Kind = Literal["models", "centroids", "sums", "pixels", "synthetic", "images", "counts", "classes"]
"""``models``: weights, and numbers that belong to them; ``centroids``: points in the space of
latents; ``sums``: sums over several images, such as gradients; ``pixels``: averages of images,
which can be looked at, or of vectors; ``synthetic``: images that a client's GAN draws; ``images``:
the client's own images or vectors; ``counts``: the names of its classes, and the number of its
images by class and cluster, or by class and predicted class; ``classes``: these names for
classification, which cannot be without. The server passes names on to the other clients."""

KINDS: tuple[Kind, ...] = get_args(Kind)
ALWAYS: frozenset[Kind] = frozenset(("models", "centroids", "sums"))
"""Kinds that a client sends without explicit permission."""
OPTIONAL = tuple(kind for kind in KINDS if kind not in ALWAYS)
"""Kinds that a client sends only if its owner allows them."""
