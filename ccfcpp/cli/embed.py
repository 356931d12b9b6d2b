"""The command ``ccfcpp embed``, which turns photos or texts into vectors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.options import AsJson, Settings, single_values
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import flatten, validate
from ccfcpp.core.data_kinds import is_hidden
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.files import write_atomically, write_table
from ccfcpp.core.units import format_count
from ccfcpp.runs.paths import writable

if TYPE_CHECKING:
    from ccfcpp.data.vectors import VectorData

_FLAGS = (
    flags.ENCODER,
    flags.INSPECTED_PARTITION,
    flags.LABEL_COLUMN,
    flags.CLIENT_COLUMN,
    flags.TEXT_COLUMN,
    *flags.IMAGES,
    flags.DEVICE,
    flags.DATA_ROOT,
)
_USED = ("data.", "device", *(f"vectors.{of}_column" for of in ("label", "client", "text")))
"""Beginnings of the keys of settings that have an effect, besides the partition by folders."""


@with_flags(_FLAGS, ClusterConfig)
def embed(
    named: flags.Named,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Images as ccfcpp cluster takes them; or texts: a .csv file, a .txt file with a "
            "text in each line, or a folder of these.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|FOLDER",
            help="New .npz file; or new folder, with a file for each client.",
        ),
    ],
    settings: Settings = None,
    json_output: AsJson = False,
) -> None:
    """Turn photos or texts into vectors by a pre-trained encoder.

    The .npz file has vectors, float32 (n, d), names, and labels and clients if
    the data have them: ccfcpp cluster --dataset takes it. If each folder or file
    is a client (--partition folders) and OUT is a folder, each client gets a
    file. What was embedded before, by the same encoder, is not embedded again.
    """
    if flags.ENCODER.key not in named:
        raise UsageError("--encoder is missing: give one, such as torchvision:resnet50")
    skipped = out.with_name(f"{out.stem}-skipped.csv")
    for path in (out, skipped):
        if path.exists():
            raise UsageError(f"{path} is there already: give another --out")
    given = single_values(named, settings)
    config = validate(ClusterConfig, given | {"dataset": data})
    for key, value in flatten(given):
        if not key.startswith(_USED) and (key, value) != (flags.PARTITION.key, "folders"):
            raise UsageError(KeyValue(key, value), " has no effect on embedding: leave it out")
    if out.suffix.lower() != ".npz" and config.partition.kind != "folders":
        raise UsageError(
            f"--out {out} is no .npz file, and a folder has a file for each client: give one, or "
            "--partition folders"
        )

    from ccfcpp.clustering.setup import load_data
    from ccfcpp.data.image_files import describe_reading
    from ccfcpp.data.vectors import VectorData

    terminal.prepare()
    embedded = load_data(config)
    assert isinstance(embedded, VectorData)
    for line in describe_reading(embedded, skipped.name):
        terminal.progress_console().print(line)
    _save(embedded, out, skipped)
    n, d = embedded.vectors.shape
    if json_output:
        output = {"out": str(out), "vectors": n, "length": d, "encoder": embedded.encoder}
        typer.echo(json.dumps(output | {"skipped": embedded.skipped or 0}))
    else:
        typer.echo(f"{out}: {format_count(n, 'vector')} of {format_count(d, 'number')}")


def _save(data: VectorData, out: Path, skipped: Path) -> None:
    is_file = out.suffix.lower() == ".npz"
    if not is_file and not data.owner_names:
        raise UsageError(f"--out {out} is a folder, and {data.name} has no clients: give an .npz")
    # Names from a table's column may be no file names, or those of files that are not read.
    odd = [name for name in data.owner_names if Path(name).name != name or is_hidden(name)]
    if not is_file and odd:
        raise UsageError(f"client {odd[0]!r} cannot be a file's name: give an --out of .npz")
    with writable(out.parent if is_file else out):
        if is_file:
            write_atomically(out, _npz(data))
        else:
            assert data.owners is not None  # there are names
            for number, name in enumerate(data.owner_names):
                own = data.selected(data.owners == number)
                write_atomically(out / f"{name}.npz", _npz(own, clients=False))
        if data.reading is not None and data.skipped:
            write_table(skipped, data.reading.rows)


def _npz(data: VectorData, clients: bool = True) -> bytes:
    """Encode vectors as an ``.npz`` file; ``clients`` tells whether to add each one's client."""
    import numpy as np

    arrays = {"vectors": data.vectors.numpy(), "names": np.array(data.called)}
    if data.labels is not None:
        arrays["labels"] = np.array(data.classes)[data.labels]
    if data.owners is not None and clients:
        arrays["clients"] = np.array(data.owner_names)[data.owners]
    buffer = io.BytesIO()
    np.savez(buffer, encoder=np.array(data.encoder), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
