"""The command ``ccfcpp predict``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import progress_console
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import counted

if TYPE_CHECKING:
    from ccfcpp.clustering.model import Model
    from ccfcpp.data import ImageData
    from ccfcpp.data.vectors import VectorData

_DEVICES = ("auto", "cpu", "cuda")


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A run's model.safetensors, or the run's folder."),
    ],
    photos: Annotated[
        Path,
        typer.Argument(
            metavar="PHOTOS",
            help="A folder of images, an archive of one, or an .npz; or vectors.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="New CSV file, with a line for each image or vector.")
    ] = Path("clusters.csv"),
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
    """Assign new images or vectors to the clusters of a run, without its clients.

    MODEL is the model.safetensors of a run of ccfcpp cluster, with its
    config.yaml beside it, or the folder of both. PHOTOS is a folder of images,
    in which they may lie at any depth, an archive of one, or an .npz file. They
    are resized to the size of the run's images. Vectors come from a file or
    folder as for ccfcpp cluster; of a table that names its columns, those of
    the run are taken. The CSV file has the cluster of each, its probability and
    the distance to its centre where the system has them. Files that cannot be
    read are listed in OUT-skipped.csv.
    """
    skipped = out.with_name(f"{out.stem}-skipped.csv")
    _check_out(out)
    _check_out(skipped)
    if device not in _DEVICES:
        raise UsageError(f"--device {device} is refused: it should be one of {', '.join(_DEVICES)}")

    from ccfcpp.clustering.certainty import columns_of
    from ccfcpp.clustering.model import load_model
    from ccfcpp.core.files import write_whole
    from ccfcpp.core.tables import csv_bytes, rows_of
    from ccfcpp.data import ImageData
    from ccfcpp.data.reading import in_words
    from ccfcpp.runs.environment import use_processors

    use_processors()
    console = progress_console()
    loaded = load_model(model, device)
    console.print(f"reading {photos} …")
    read = (_vectors if loaded.problem.has_vectors else _photos)(photos, loaded, skip)
    if isinstance(read, ImageData):
        for line in in_words(read, skipped.name):
            console.print(line)
    console.print(f"assigning {counted(len(read), read.unit)} …")
    examined = loaded.examine(read.values)
    found: list[int] = examined["cluster"].tolist()
    try:
        write_whole(out, csv_bytes(rows_of({read.key: read.called, **columns_of(examined)})))
        if read.reading is not None and read.skipped:
            write_whole(skipped, csv_bytes(read.reading.rows))
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}): give another --out"
        ) from error
    if json_output:
        sizes = {str(cluster): size for cluster, size in sorted(Counter(found).items())}
        told: dict[str, object] = {"out": str(out), f"{read.unit}s": len(found)}
        if read.unit == "image":
            told["skipped"] = read.skipped or 0
        typer.echo(json.dumps(told | {"sizes": sizes}))
    else:
        typer.echo(f"{out}: {counted(len(found), read.unit)} in {len(set(found))} clusters")


def _photos(place: Path, model: Model, skip: str | None) -> ImageData:
    """Read images as the run's own were read."""
    from ccfcpp.clustering.config import ClusterDataConfig
    from ccfcpp.core.config_layers import validated
    from ccfcpp.data.photos import read_photos
    from ccfcpp.data.reading import Options

    then = model.problem.config.section(ClusterDataConfig)
    if skip is not None:
        then = validated(ClusterDataConfig, then.model_dump() | {"skip": skip})
    channels, height, width = model.image_shape
    shape = channels, height, width
    return read_photos(place, Options(None, shape, then.window, then.max_pixels, then.skip))


def _vectors(place: Path, model: Model, skip: str | None) -> VectorData:
    """Read vectors, with the columns of the run."""
    from ccfcpp.core.config import VectorsConfig
    from ccfcpp.data.tables import read_rows

    if skip is not None:
        raise UsageError("--skip has no effect on vectors: leave it out")
    missing = model.problem.config.section(VectorsConfig).missing
    return read_rows(place, model.image_shape[0], model.columns, missing)


def _check_out(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: make it, or give another --out")
