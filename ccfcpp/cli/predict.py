"""The command ``ccfcpp predict``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import progress_console
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import counted

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
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    json_output: AsJson = False,
) -> None:
    """Assign new images or vectors to the clusters of a run, without its clients.

    MODEL is the model.safetensors of a run of ccfcpp cluster, with its
    config.yaml beside it, or the folder of both. PHOTOS is a folder of images,
    in which they may lie at any depth, an archive of one, or an .npz file. They
    must have the size of the run's images; where the run had data.image_size,
    they are resized to it. Vectors come from a file or folder as for ccfcpp
    cluster; of a table that names its columns, those of the run are taken.
    """
    _check_out(out)
    if device not in _DEVICES:
        raise UsageError(f"--device {device} is refused: it should be one of {', '.join(_DEVICES)}")

    from ccfcpp.clustering.config import ClusterDataConfig
    from ccfcpp.clustering.model import load_model
    from ccfcpp.core.config import VectorsConfig
    from ccfcpp.core.files import write_whole
    from ccfcpp.data.photos import read_photos
    from ccfcpp.data.tables import read_rows
    from ccfcpp.runs.environment import use_processors
    from ccfcpp.runs.study import as_csv

    use_processors()
    console = progress_console()
    loaded = load_model(model, device)
    console.print(f"reading {photos} …")
    if loaded.problem.has_vectors:
        vectors = loaded.problem.config.section(VectorsConfig)
        (d,) = loaded.image_shape
        unit, key, samples = "vector", "row", read_rows(photos, d, loaded.columns, vectors.missing)
        names: Sequence[str] = [str(number) for number in range(len(samples))]
    else:
        resized = loaded.problem.config.section(ClusterDataConfig).image_size is not None
        read = read_photos(photos, loaded.image_shape, resized=resized)
        unit, key, names, samples = "image", "file", read.names, read.images
    console.print(f"assigning {counted(len(names), unit)} …")
    found: list[int] = loaded.assign(samples).tolist()
    rows = [{key: name, "cluster": own} for name, own in zip(names, found, strict=True)]
    try:
        # A file's name may be any bytes.
        write_whole(out, as_csv(rows).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}): give another --out"
        ) from error
    if json_output:
        sizes = {str(cluster): size for cluster, size in sorted(Counter(found).items())}
        typer.echo(json.dumps({"out": str(out), f"{unit}s": len(found), "sizes": sizes}))
    else:
        typer.echo(f"{out}: {counted(len(found), unit)} in {len(set(found))} clusters")


def _check_out(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: make it, or give another --out")
