"""What may leave a client, in kinds that the owner of images can allow or refuse."""

from typing import Literal, get_args

Kind = Literal["models", "centroids", "sums", "synthetic", "images", "counts"]
"""``models``: weights and what goes with them; ``centroids``: points among images or latents;
``sums``: totals over some images, such as gradients; ``synthetic``: images that a client's GAN
draws; ``images``: its own; ``counts``: how many of its images of each class are in which cluster,
or were predicted as which class."""

KINDS: tuple[Kind, ...] = get_args(Kind)
ALWAYS: frozenset[Kind] = frozenset(("models", "centroids", "sums"))
"""What a client sends without being asked for leave."""
