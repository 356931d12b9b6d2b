"""The command ``ccfcpp predict``, which assigns new samples to the clusters of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.options import AsJson
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.terminal import prepare, progress_console
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree, VectorsConfig
from ccfcpp.core.config_layers import merge, unflatten, validate
from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.encoders import refuse_program
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_table
from ccfcpp.core.tables import Columns
from ccfcpp.core.units import format_count

if TYPE_CHECKING:
    from ccfcpp.clustering.model import Model
    from ccfcpp.data.open import AnyData
    from ccfcpp.data.vectors import VectorData

_ENCODER = replace(
    flags.ENCODER, help="Where this machine has the run's encoder.", default="the run's name for it"
)
_FLAGS = replace(flags.SKIP, default="the run's"), _ENCODER, flags.DEVICE


@with_flags(_FLAGS, ClusterConfig)
def predict(
    named: flags.Named,
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
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Give no cluster where its probability is lower, such as 0.8.",
        ),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Assign new images or vectors to the clusters of a run, without its clients.

    MODEL is the model.safetensors of a run of ccfcpp cluster, with its
    config.yaml beside it, or the folder of both. PHOTOS is a folder of images,
    in which they may lie at any depth, an archive of one, or an .npz file. They
    are resized to the size of the run's images. Vectors come from a file or
    folder as for ccfcpp cluster; of a table that names its columns, those of
    the run are taken. If the run had an encoder, photos or texts go through the
    same one. The CSV file has the cluster of each, its probability, the
    distance to its centre, and an outlier score: 1 is usual, and a median of 1.4
    means images of a new kind. Columns that the run cannot compute are left out.
    Files that cannot be read are listed in OUT-skipped.csv.
    """
    skipped = out.with_name(f"{out.stem}-skipped.csv")
    _check_out(out)
    _check_out(skipped)
    settings = unflatten(named)
    device = validate(ClusterConfig, settings).device
    if min_confidence is not None and not 0 <= min_confidence <= 1:
        raise UsageError(f"--min-confidence {min_confidence} is refused: give a number from 0 to 1")

    from ccfcpp.clustering.confidence import table_columns
    from ccfcpp.clustering.model import load_model
    from ccfcpp.data.image_files import describe_reading

    prepare()
    console = progress_console()
    loaded = load_model(model, device)
    console.print(f"reading {photos} …")
    read = _read(photos, loaded, settings)
    gaps = loaded.describe_gaps(read.values) if loaded.problem.has_vectors else []
    for line in (*describe_reading(read, skipped.name), *gaps):
        console.print(line)
    console.print(f"assigning {format_count(len(read), read.unit)} …")
    examined = loaded.examine(read.values)
    columns = {read.key: read.called, **table_columns(examined)}
    clusters: list[int] = examined["cluster"].tolist()
    outlier = float(examined["outlier"].median()) if "outlier" in examined else None
    if min_confidence is not None:
        if "probability" not in examined:
            raise UsageError(
                f"--min-confidence {min_confidence} is refused: the run has no probabilities; "
                "leave it out"
            )
        sure = (examined["probability"] >= min_confidence).tolist()
        columns["cluster"] = [own if s else "" for own, s in zip(clusters, sure, strict=True)]
        clusters = [own for own, s in zip(clusters, sure, strict=True) if s]
    try:
        write_table(out, Columns(columns))
        if read.reading is not None and read.skipped:
            write_table(skipped, read.reading.rows)
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}): give another --out"
        ) from error
    if json_output:
        sizes = {str(cluster): size for cluster, size in sorted(Counter(clusters).items())}
        output: dict[str, object] = {"out": str(out), f"{read.unit}s": len(read)}
        if min_confidence is not None:
            output["unsure"] = len(read) - len(clusters)
        if outlier is not None:
            output["median_outlier"] = outlier
        if read.unit == "image":
            output["skipped"] = read.skipped or 0
        typer.echo(json.dumps(output | {"sizes": sizes}))
    else:
        if outlier is not None:
            console.print(
                f"median outlier score {outlier:.2f}: 1 is usual, and {read.unit}s of kinds that "
                "the run has not seen have more"
            )
        found = format_count(len(set(clusters)), "cluster")
        line = f"{out}: {format_count(len(clusters), read.unit)} in {found}"
        unsure = len(read) - len(clusters)
        typer.echo(line if not unsure else f"{line}, and {unsure:,} without one")


def _read(place: Path, model: Model, settings: Tree) -> AnyData:
    """Read images or vectors by the run's settings, which ``settings`` override."""
    from ccfcpp.data.open import open_images

    of_run = model.problem.config.model_dump(mode="json")
    config = validate(ClusterConfig, merge(of_run, {"data": {"image_size": None}}, settings))
    if model.problem.has_vectors:
        return _read_vectors(place, model, config, settings.get("data", {}))
    if "encoder" in settings.get("data", {}):
        raise UsageError("--encoder has no effect: the run was on images; leave it out")
    channels, height, width = model.image_shape
    shape = channels, height, width
    return open_images(str(place.absolute()), data=config.data, flat=True, shape=shape)


def _read_vectors(
    place: Path, model: Model, config: ClusterConfig, given: Collection[str]
) -> VectorData:
    """Read vectors with the columns of the run, or embed photos or texts with its encoder.

    ``given`` are the user's settings of the section ``data``.
    """
    from ccfcpp.clustering.setup import check_encoder, load_run_encoder
    from ccfcpp.data.open import open_dataset
    from ccfcpp.data.texts import holds_texts
    from ccfcpp.data.vectors import VectorData

    data, network = config.data, None
    of_rows = {"text_column", "missing", "categories", "dates"}
    vectors = VectorsConfig(**config.vectors.model_dump(include=of_rows))
    name = data.encoder_name
    embeds_texts = name is not None and name.takes == "texts" and holds_texts(place)
    if kind_of(str(place)) != "vectors" or embeds_texts:
        refuse_program(data.encoder, [data.encoder] if "encoder" in given else [])
        network = load_run_encoder(
            config.model_copy(update={"vectors": vectors}), model.problem.device
        )
        if network is None and data.encoder_hash is not None:
            raise UsageError(
                f"the run was on vectors of an encoder, and {place} holds none: give --encoder, "
                "the one by which they were made"
            )
    if network is None and "skip" in given:
        raise UsageError("--skip has no effect on vectors: leave it out")
    if network is None and "encoder" in given:
        raise UsageError(f"--encoder has no effect on {place}, which holds vectors: leave it out")
    columns = () if network else model.columns
    read = open_dataset(
        str(place.absolute()), network, data=data, vectors=vectors, flat=True, columns=columns
    )
    if not isinstance(read, VectorData):
        raise UsageError(f"the model is for vectors, and {place} holds none: give a file of them")
    if read.vectors.shape[1] != model.image_shape[0]:
        raise UsageError(
            f"the vectors of {place} have {read.vectors.shape[1]} columns, and the model is for "
            f"{model.image_shape[0]}"
        )
    if read.encoder:
        check_encoder(config, read.encoder)
    return read


def _check_out(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: make it, or give another --out")
