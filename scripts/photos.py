"""Few photos in folders, as a user has them: ``python -m scripts.photos ARCHIVE photos/``.

Of a data set with labels some classes are drawn, and some images of each. A folder is a class.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from PIL import Image

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import random_part
from ccfcpp.data.open import load


def main(
    dataset: Annotated[str, typer.Argument(help="A data set's name or path, with labels.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    classes: Annotated[int, typer.Option(help="Drawn at random.")] = 4,
    each: Annotated[int, typer.Option(help="Images of a class, drawn at random.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """Write the photos as PNG files."""
    data, randomness = load(dataset), Randomness(seed)
    assert data.labels is not None
    kinds = random_part(torch.unique(data.labels), classes, randomness.generator("classes"))
    for kind in kinds.tolist():
        of_kind = torch.nonzero(data.labels == kind).flatten()
        folder = out / f"class-{kind}"
        folder.mkdir(parents=True)
        for place in random_part(of_kind, each, randomness.generator(f"class {kind}")).tolist():
            pixels = data.images[place].permute(1, 2, 0).squeeze(2).numpy()
            Image.fromarray(pixels).save(folder / f"{place}.png")


if __name__ == "__main__":
    typer.run(main)
