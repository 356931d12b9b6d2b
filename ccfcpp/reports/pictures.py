"""Figures of the images nearest to each centroid, and of those farthest from it."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.units import printable_name as as_line
from ccfcpp.reports.class_figures import cluster_order
from ccfcpp.reports.drawing import WIDTH, DrawnFigure, new_picture, short
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError
from ccfcpp.runs.contact_sheets import contact_sheet
from ccfcpp.runs.report_samples import EACH, MOST_CLUSTERS, extremes

_INCHES_A_LETTER, _INCHES_A_LINE, _LETTERS = 0.088, 0.15, 80

_CAPTIONS = {
    "nearest": "The images of each cluster nearest to its centroid, the nearest one first: these "
    "are typical of the cluster.",
    "farthest": "The images of each cluster farthest from its centroid, the farthest one first: "
    "their assignment is the least certain.",
}


def _draw(run: RecordedRun, name: str) -> DrawnFigure:
    if not run.clusters_images:
        raise CannotDrawError("a classifier has no centroids")
    distance = run.values_of_images("distance", "the run knows no centroids")
    if not distance.isfinite().all():
        raise CannotDrawError("the model has diverged: its distances hold NaN or Inf")
    numbers = run.shown.get("pictured", torch.arange(0)).tolist()
    small = dict(zip(numbers, run.shown.get("pictures", ()), strict=True))
    names = run.names
    if not small and not names:
        raise CannotDrawError("no picture of the images is kept, and they have no names")
    chosen = {
        cluster: extremes(distance, run.labels == cluster, name == "farthest").tolist()
        for cluster in cluster_order(run)
    }
    rows = [
        {"cluster": cluster, "rank": rank, "image": image}
        | ({"file": names[image]} if names else {})
        | {"distance": float(distance[image])}
        for cluster, index in chosen.items()
        for rank, image in enumerate(index, start=1)
    ]
    shown = {cluster: index for cluster, index in chosen.items() if cluster < MOST_CLUSTERS}
    caption = _CAPTIONS[name]
    if len(shown) < len(chosen):
        caption += f" The first {len(shown)} of {len(chosen)} clusters; the CSV file has all."
    caption += f" Distances are {'angles' if run.by_angle else 'Euclidean'}."
    if run.has_labels:
        caption += " The class beside a cluster is the one it is matched with."
    listed = {
        f"cluster {cluster}": ", ".join(as_line(names[image]) for image in index)
        for cluster, index in shown.items()
        if names
    }
    figure = _draw_pictures(run, shown, small) if small else _draw_names(run, shown)
    title = f"{name.capitalize()} {'from' if name == 'farthest' else 'to'} the centroids"
    return DrawnFigure(name, title, caption, figure, rows, listed)


nearest = partial(_draw, name="nearest")
farthest = partial(_draw, name="farthest")


def _draw_names(run: RecordedRun, shown: dict[int, list[int]]) -> Figure:
    """Draw the names of samples that have no pictures; ``shown`` has their numbers by cluster."""
    lines = [(_row_name(run, cluster).replace("\n", ", "), "bold") for cluster in shown]
    members = [[(run.names[i], "normal") for i in index] for index in shown.values()]
    lines = [each for line, own in zip(lines, members, strict=True) for each in (line, *own)]
    with new_picture(_INCHES_A_LINE * (len(lines) + 1)) as (figure, axes):
        axes.set(ylim=(len(lines), -1), xticks=[], yticks=[])
        for number, (line, weight) in enumerate(lines):
            axes.text(0, number, short(line, _LETTERS), weight=weight, va="center", fontsize=8)
    return figure


def _draw_pictures(
    run: RecordedRun, shown: dict[int, list[int]], small: Mapping[int | None, Tensor]
) -> Figure:
    picture = _arrange(small, shown)
    down, across, _ = picture.shape
    names = [_row_name(run, cluster) for cluster in shown]
    margin = _INCHES_A_LETTER * max(len(line) for name in names for line in name.splitlines())
    height = (WIDTH - margin) * down / across
    with new_picture(height) as (figure, axes):
        # The layout engine does not place axes with square pixels well.
        figure.set_layout_engine("none")
        axes.set_position((margin / WIDTH, 0, 1 - margin / WIDTH, 1))
        axes.imshow(picture)
        step = down / len(shown)
        axes.set_yticks([step * (row + 0.5) for row in range(len(shown))], names)
        axes.set_xticks([])
    return figure


def _arrange(images: Mapping[int | None, Tensor], shown: dict[int, list[int]]) -> NDArray[np.uint8]:
    """Arrange images in one picture with a row for each cluster.

    ``images`` are uint8 (channels, height, width), by number; ``shown`` has their numbers by
    cluster. The result is RGBA, uint8 of shape (height, width, 4), transparent at missing images.
    """
    blank = torch.full_like(next(iter(images.values())), 255)
    numbers = [
        index[column] if column < len(index) else None
        for index in shown.values()
        for column in range(EACH)
    ]
    cells = [images.get(number, blank) for number in numbers]
    empty = [torch.zeros_like(blank) if number in images else blank for number in numbers]
    opaque = 255 - contact_sheet(torch.stack(empty), EACH)[..., :1]
    return torch.cat([contact_sheet(torch.stack(cells), EACH), opaque], dim=2).numpy()


def _row_name(run: RecordedRun, cluster: int) -> str:
    name, matched = f"cluster {cluster}", int(run.matched[cluster])
    return f"{name}\nclass {short(run.class_names[matched], 9)}" if matched >= 0 else name
