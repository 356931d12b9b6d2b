"""The command ``ccfcpp predict``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import progress_console
from ccfcpp.core.errors import UsageError

_DEVICES = ("auto", "cpu", "cuda")


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A run's model.safetensors, or the run's folder."),
    ],
    photos: Annotated[
        Path,
        typer.Argument(metavar="PHOTOS", help="A folder of images, an archive of one, or an .npz."),
    ],
    out: Annotated[Path, typer.Option(help="New CSV file, with a line for each image.")] = Path(
        "clusters.csv"
    ),
    skip: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the files that may be unreadable, such as 5%; the run's otherwise.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    json_output: AsJson = False,
) -> None:
    """Assign new images to the clusters of a run, without its clients.

    MODEL is the model.safetensors of a run of ccfcpp cluster, with its
    config.yaml beside it, or the folder of both. PHOTOS is a folder of images,
    in which they may lie at any depth, an archive of one, or an .npz file. They
    are resized to the size of the run's images. The CSV file has the cluster of
    each, its probability and the distance to its centre where the system has
    them. Files that cannot be read are listed in OUT-skipped.csv.
    """
    skipped = out.with_name(f"{out.stem}-skipped.csv")
    _check_out(out)
    _check_out(skipped)
    if device not in _DEVICES:
        raise UsageError(f"--device {device} is refused: it should be one of {', '.join(_DEVICES)}")

    from ccfcpp.clustering.certainty import columns_of
    from ccfcpp.clustering.config import ClusterDataConfig
    from ccfcpp.clustering.model import load_model
    from ccfcpp.core.config_layers import validated
    from ccfcpp.core.files import write_whole
    from ccfcpp.core.tables import csv_bytes, rows_of
    from ccfcpp.data.photos import read_photos
    from ccfcpp.data.reading import Options, in_words
    from ccfcpp.runs.environment import use_processors

    use_processors()
    console = progress_console()
    loaded = load_model(model, device)
    console.print(f"reading {photos} …")
    # As the run's own images were read.
    then = loaded.problem.config.section(ClusterDataConfig)
    if skip is not None:
        then = validated(ClusterDataConfig, then.model_dump() | {"skip": skip})
    channels, height, width = loaded.image_shape
    shape = channels, height, width
    read = read_photos(photos, Options(None, shape, then.window, then.max_pixels, then.skip))
    for line in in_words(read, skipped.name):
        console.print(line)
    console.print(f"assigning {len(read):,} images …")
    examined = loaded.examine(read.images)
    found: list[int] = examined["cluster"].tolist()
    try:
        write_whole(out, csv_bytes(rows_of({"file": read.called, **columns_of(examined)})))
        if read.reading is not None and read.skipped:
            write_whole(skipped, csv_bytes(read.reading.rows))
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}): give another --out"
        ) from error
    if json_output:
        sizes = {str(cluster): size for cluster, size in sorted(Counter(found).items())}
        told = {"out": str(out), "images": len(found), "skipped": read.skipped or 0}
        typer.echo(json.dumps(told | {"sizes": sizes}))
    else:
        typer.echo(f"{out}: {len(found):,} images in {len(set(found))} clusters")


def _check_out(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: make it, or give another --out")
