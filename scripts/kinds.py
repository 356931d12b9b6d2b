"""A data set with unequal classes, some of several shapes: ``python -m scripts.kinds kinds.npz``.

It is Fashion-MNIST with five classes: tops (four of its classes), trousers, dresses, shoes (three)
and bags, 14,000 images drawn at random.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import random_part
from ccfcpp.data.open import load

KINDS = ("tops", "trousers", "dresses", "shoes", "bags")
KIND_OF_CLASS = (0, 1, 0, 2, 0, 3, 0, 3, 4, 3)
IMAGES = 14_000


def main(out: Annotated[Path, typer.Argument(help="The .npz file to write.")]) -> None:
    """Write the data set."""
    everything = load("fashion-mnist")
    chosen = random_part(torch.arange(len(everything)), IMAGES, Randomness(0).generator("kinds"))
    part = everything.selected(chosen)
    assert part.labels is not None
    kinds = torch.tensor(KIND_OF_CLASS)[part.labels]
    np.savez_compressed(out, images=part.images.numpy()[:, 0], labels=kinds.numpy())


if __name__ == "__main__":
    typer.run(main)
