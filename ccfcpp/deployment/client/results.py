"""Files with a client's results for its own images, which are never sent."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.core.tables import read_csv_rows
from ccfcpp.data.vectors import Pictures
from ccfcpp.runs.contact_sheets import thumbnails
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths
from ccfcpp.runs.report_samples import EACH

_MOST_CLUSTERS = 100
_LARGEST = 96
"""Largest height and width of a saved picture, in pixels."""
_FOUND, _PICTURES = "found.npz", "pictures.npz"
_TABLES = "clusters", "skipped", "profile"

Row = Mapping[str, object]
Chosen = dict[int, list[int]]
"""Indices of some rows, by cluster."""


def save_results(
    folder: Path,
    assignments: Tensor,
    rows: Sequence[Row],
    images: Tensor,
    pictures: Pictures | None = None,
    profile: Sequence[Row] = (),
) -> None:
    """Save the assigned clusters or classes, a table, and pictures for the owner's report.

    Args:
        folder: Folder of the client's state.
        assignments: The cluster or predicted class of each image, int64 of shape (images,).
        rows: A table row for each image: its file, cluster and confidence; if empty, neither a
            table nor pictures are saved.
        images: The images, uint8 of shape (images, channels, height, width), or vectors of shape
            (images, length).
        pictures: If ``images`` are vectors of photos: loads the photos with given names.
        profile: A description of the clusters by the columns of a table, or no rows.
    """
    _save(folder / _FOUND, found=assignments)
    for name in (_PICTURES, "clusters.csv", "profile.csv"):
        (folder / name).unlink(missing_ok=True)
    if not rows:
        return
    RunPaths(folder).write_table("clusters", rows)
    if profile:
        RunPaths(folder).write_table("profile", profile)
    shown_rows = (*typical(rows).values(), *unsure(rows).values())
    index = sorted({number for chosen in shown_rows for number in chosen})
    names = [str(next(iter(row.values()))) for row in rows]
    if small := thumbnails(index, images, names, pictures, _LARGEST):
        shown = torch.stack(list(small.values()))
        _save(folder / _PICTURES, index=torch.tensor(list(small)), images=shown)


def _save(path: Path, **arrays: Tensor) -> None:
    buffer = io.BytesIO()
    content = {name: array.numpy() for name, array in arrays.items()}
    np.savez_compressed(buffer, **content)  # type: ignore[arg-type] # names are no options
    write_atomically(path, buffer.getvalue())


def typical(rows: Sequence[Row]) -> Chosen:
    """Return, by cluster, the indices of a few rows nearest to its centroid, or most probable."""
    return _first_rows(rows, lambda row: row.get("distance", -_number(row, "probability")))


def unsure(rows: Sequence[Row]) -> Chosen:
    """Return, by cluster, the indices of a few rows least probable, or farthest from centroid."""
    return _first_rows(rows, lambda row: row.get("probability", -_number(row, "distance")))


def _number(row: Row, key: str) -> float:
    return float(str(row.get(key, 0.0)))


def _first_rows(rows: Sequence[Row], by: Callable[[Row], object]) -> Chosen:
    chosen: Chosen = {}
    for number, row in enumerate(rows):
        chosen.setdefault(int(str(row["cluster"])), []).append(number)
    value = [float(str(by(row))) for row in rows]
    return {
        cluster: sorted(chosen[cluster], key=lambda number: value[number])[:EACH]
        for cluster in sorted(chosen)[:_MOST_CLUSTERS]
    }


@dataclass(frozen=True)
class ClientResults:
    """The saved results of a client's last run.

    Attributes:
        rows: Rows of ``clusters.csv``: file, cluster and confidence of each image.
        pictures: Small images, uint8 of shape (channels, height, width), by index of the row.
        skipped: Rows of ``skipped.csv``: the files that were left out.
        profile: Rows of ``profile.csv``, if the images are rows of a table.
    """

    rows: Sequence[Row] = ()
    pictures: Mapping[int, Tensor] = field(default_factory=dict)
    skipped: Sequence[Row] = ()
    profile: Sequence[Mapping[str, str]] = ()

    @staticmethod
    def read(folder: Path) -> "ClientResults":
        """Read the results from a client's state folder; the attribute of a missing file is empty.

        Raises:
            UsageError: A file is damaged.
        """
        tables = [read_csv_rows(folder / f"{name}.csv") for name in _TABLES]
        arrays = RunFolder(folder).read_arrays(Path(_PICTURES).stem)
        pictures = dict[int, Tensor]()
        try:
            if arrays:
                pictures = dict(zip(arrays["index"].tolist(), arrays["images"], strict=True))
            for row in tables[0]:
                _ = int(str(row["cluster"])), _number(row, "probability"), _number(row, "distance")
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"{folder} holds damaged files ({error}): take part in a run again"
            ) from error
        return ClientResults(tables[0], pictures, *tables[1:])
