"""The command ``ccfcpp inspect``, which shows what a run would read from a folder or file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ccfcpp.cli import flags, inspect_vectors
from ccfcpp.cli.options import AsJson, Settings, single_values
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.terminal import print_facts
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import DataConfig, Section, Tree, VectorsConfig
from ccfcpp.core.config_layers import flatten, resolve, validated
from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.units import counts_in_words, format_count, list_first, printable_name

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData

S = TypeVar("S", bound=Section)
_MOST_LISTED = 20


@with_flags((flags.INSPECTED_PARTITION, *flags.IMAGES, *flags.VECTORS), ClusterConfig)
def inspect(
    named: flags.Named,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A folder of images, an archive of one, an .npz; or a table, or a folder of them.",
        ),
    ],
    settings: Settings = None,
    json_output: AsJson = False,
) -> None:
    """Look at images or tables as a run would, without running: what is there, what is skipped.

    Nothing is trained or sent. It reads every file, and shows which kinds, sizes
    and depths there are, to which size images would be resized, which classes and
    clients the folders make, and what would be left out and why. Of a table it
    shows which columns there are, which values are missing and how columns are
    scaled. At a client of a deployment it shows this for the client's own data.
    """
    tree = single_values(named, settings)
    if kind_of(path) == "vectors":
        _section(tree, "vectors", VectorsConfig)
        asked = {"dataset": path, "vectors": tree.get("vectors", {})}
        config = resolve(ClusterConfig, "cluster", asked)
        vectors, read_as, refusal = inspect_vectors.read_leniently(path, config.vectors)
        facts = inspect_vectors.describe_vectors(vectors, read_as, config)
        show = inspect_vectors.print_description
    else:
        data, refusal = _read_images(path, tree)
        facts, show = _describe_images(data), _print
    if json_output:
        typer.echo(json.dumps({"path": path, **facts, "refused": refusal or None}))
    else:
        show(path, facts)
    if refusal:
        raise UsageError(refusal)


def _read_images(path: str, tree: Tree) -> tuple[ImageData, str]:
    """Read images, and return them with the reason why a run would refuse them, or ""."""
    from ccfcpp.data.image_files import check_share
    from ccfcpp.data.open import open_images

    config = _section(tree, "data", DataConfig)
    clients = tree.get("partition", {}).get("kind") in flags.BY_FOLDER
    lenient = config.model_copy(update={"skip": 1.0})
    data = open_images(path, data=lenient, folders_are_clients=clients)
    try:
        if data.reading is not None:
            check_share(data.reading.files, config.skip, path)
    except UsageError as error:
        return data, str(error)
    return data, ""


def _section(tree: Tree, name: str, kind: type[S]) -> S:
    """Validate section ``name`` of the settings, the only one that reading the data needs.

    Raises:
        UsageError: There are settings of other sections, or a partition that is not by folders.
    """
    what = "images" if name == "data" else name
    keys = [f"{name}.{key}" for key in kind.model_fields]
    given = {key for key, _ in flatten(tree) if key != "partition.kind"}
    if other := sorted(given.difference(keys)):
        raise UsageError(
            KeyValue(other[0]),
            f" does not concern the reading of {what}: give one of {', '.join(keys)}",
        )
    partition = tree.get("partition", {}).get("kind")
    if partition not in (None, *flags.BY_FOLDER):
        raise UsageError(
            KeyValue("partition.kind", partition),
            f" does not concern the reading of {what}: give folders, or leave it out",
        )
    return validated(kind, tree.get(name, {}))


def _describe_images(data: ImageData) -> dict[str, Any]:
    """Describe images by JSON values: their kinds, sizes, classes, clients and skipped files."""
    reading = data.reading
    files = [] if reading is None else reading.files
    headers = [file.header for file in files if file.header is not None and not file.reason]
    channels, height, width = data.images.shape[1:]
    return {
        "images": len(data),
        "files": len(files),
        "kinds": _counts(header.kind for header in headers),
        "sizes": _counts(f"{header.width}x{header.height}" for header in headers),
        "bits": _counts(str(header.bits) for header in headers),
        "colour": sum(header.channels > 1 for header in headers),
        "turned": sum(header.orientation > 1 for header in headers),
        "several_frames": sum(header.frames > 1 for header in headers),
        "width": width,
        "height": height,
        "channels": channels,
        "classes": data.class_sizes,
        "clients": data.client_sizes,
        "empty": [] if reading is None else list(reading.empty),
        "hidden": [] if reading is None else list(reading.hidden),
        "notes": list(data.notes),
        "skipped": [] if reading is None else reading.rows,
    }


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _print(path: str, facts: dict[str, Any]) -> None:
    hidden, skipped = facts["hidden"], facts["skipped"]
    rows = {
        "images": f"{facts['images']:,}",
        "kinds": counts_in_words(facts["kinds"]),
        "sizes": counts_in_words(facts["sizes"]),
        "bits of a value": counts_in_words(facts["bits"]),
        "in colour": str(facts["colour"]),
        "turned by EXIF": str(facts["turned"]),
        "several frames": f"{facts['several_frames']}, of which the first is taken",
        "meet at": f"{facts['width']}x{facts['height']} pixels, "
        + ("in colour" if facts["channels"] == 3 else "grey"),
        "classes": counts_in_words(facts["classes"]) or "none: images lie in no folders of classes",
        "clients": counts_in_words(facts["clients"]) or "one, without --partition folders",
        "without an image": ", ".join(map(printable_name, facts["empty"])),
        "hidden": format_count(len(hidden), "name") if hidden else "",
        "left out": format_count(len(skipped), "file"),
    }
    print_facts(path, {name: text for name, text in rows.items() if text})
    for note in facts["notes"]:
        typer.echo(note)
    if hidden:
        names = list_first([printable_name(name) for name in hidden], _MOST_LISTED)
        typer.echo(f"not looked at, as hidden: {names}")
    for file in skipped[:_MOST_LISTED]:
        typer.echo(f"left out: {printable_name(file['file'])}: {file['reason']}")
    if len(skipped) > _MOST_LISTED:
        typer.echo(f"and {len(skipped) - _MOST_LISTED} more: --json lists all")
