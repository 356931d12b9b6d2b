"""How often neighbours are of the same class: ``python -m scripts.neighbours cifar10_jpeg.tar.gz``.

For each kind of features: the share of an image's nearest 1, 5, 10, 20 and 50 images of its client
that have its class, and the accuracy of a vote of 20. Labels serve these figures alone.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.model import load_model
from ccfcpp.clustering.scan.neighbours import FEATURES, nearest_neighbours
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.open import load
from ccfcpp.engine.client import Client

_COUNTS = 1, 5, 10, 20, 50
_VOTE = 20


def main(
    dataset: Annotated[str, typer.Argument(help="A data set's name or path, with labels.")],
    images: Annotated[int, typer.Option(help="Drawn at random.")] = 18_000,
    clients: Annotated[int, typer.Option(help="Among which they are divided at random.")] = 3,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of a run on such images, for its latents. May be repeated."),
    ] = None,
) -> None:
    """Print a line for each kind of features."""
    data = load(dataset)
    assert data.labels is not None
    # Not in their order, in which the classes may come one after the other.
    generator = Randomness(0).generator("neighbours")
    chosen = torch.randperm(len(data), generator=generator)[:images]
    parts = list(
        zip(data.images[chosen].chunk(clients), data.labels[chosen].chunk(clients), strict=True)
    )
    kinds = {**FEATURES, **{f"latents of {each.name}": _latents(each) for each in model or []}}
    print("| features | 1 | 5 | 10 | 20 | 50 | vote | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for title, describe in kinds.items():
        began = time.monotonic()
        found = torch.cat([_same(describe(shown), labels) for shown, labels in parts])
        seconds = time.monotonic() - began
        shares = " | ".join(f"{found[:, :count].mean():.3f}" for count in _COUNTS)
        print(f"| {title} | {shares} | {found[:, -1].mean():.3f} | {seconds:.1f} |")


def _latents(folder: Path) -> Callable[[Tensor], Tensor]:
    """Describe images by the latents of a finished run."""
    made = load_model(folder)

    def describe(images: Tensor) -> Tensor:
        latents = made.algorithm.represent(made.delivery, Client(0, "client", images))
        assert latents is not None
        return latents

    return describe


def _same(points: Tensor, labels: Tensor) -> Tensor:
    """Tell whether neighbours have an image's class and, in the last column, whether a vote has."""
    classes = labels[nearest_neighbours(points, max(_COUNTS)).long()]
    votes = F.one_hot(classes[:, :_VOTE]).sum(dim=1).argmax(dim=1)
    return torch.cat([classes == labels[:, None], (votes == labels)[:, None]], dim=1).float()


if __name__ == "__main__":
    typer.run(main)
