"""Figures of the images nearest to each centroid, and of those farthest from it."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.metrics import distances
from ccfcpp.core.units import shown as as_line
from ccfcpp.reports.classes import cluster_order
from ccfcpp.reports.drawing import WIDTH, Drawn, plate, short
from ccfcpp.reports.examination import Run
from ccfcpp.reports.numbers import CannotDrawError, extremes
from ccfcpp.runs.sheets import sheet, small_ones

_EACH, _MOST_CLUSTERS = 8, 40
_INCHES_A_LETTER, _INCHES_A_LINE, _LETTERS = 0.088, 0.15, 80
_LARGEST = 64
"""Largest height and width of an image in a figure, in pixels."""


_CAPTIONS = {
    "nearest": "The images of each cluster nearest to its centroid, the nearest one first: these "
    "are typical of the cluster.",
    "farthest": "The images of each cluster farthest from its centroid, the farthest one first: "
    "their assignment is the least certain.",
}


def _drawn(run: Run, name: str) -> Drawn:
    if not run.clusters_images:
        raise CannotDrawError("a classifier has no centroids")
    if run.seen.images.ndim != 4 and not run.seen.names and run.seen.pictures is None:
        raise CannotDrawError("the vectors have neither pictures nor names")
    far = name == "farthest"
    found, centroids = run.found, run.seen.centroids
    assert centroids is not None  # Without centroids no cluster is known.
    distance = distances(run.points, found, centroids, run.seen.by_angle)
    chosen = {
        cluster: extremes(distance, found == cluster, _EACH, far) for cluster in cluster_order(run)
    }
    caption = _CAPTIONS[name]
    title = f"{name.capitalize()} {'from' if far else 'to'} the centroids"
    names = run.seen.names
    rows = [
        {"cluster": cluster, "rank": rank + 1, "image": image}
        | ({"file": names[image]} if names else {})
        | {"distance": float(distance[image])}
        for cluster, index in chosen.items()
        for rank, image in enumerate(index.tolist())
    ]
    shown = dict(list(chosen.items())[:_MOST_CLUSTERS])
    if len(shown) < len(chosen):
        caption += f" The first {len(shown)} of {len(chosen)} clusters; the CSV file has all."
    caption += f" Distances are {'angles' if run.seen.by_angle else 'Euclidean'}."
    if run.seen.classes is not None:
        caption += " The class beside a cluster is the one it is matched with."
    listed = {
        f"cluster {cluster}": ", ".join(as_line(names[image]) for image in index.tolist())
        for cluster, index in shown.items()
        if names
    }
    seen, numbers = run.seen, torch.cat(list(shown.values())).tolist()
    # Images in memory are called by their numbers.
    called = seen.names or tuple(map(str, range(len(seen.images))))
    small = small_ones(numbers, seen.images, called, seen.pictures, _LARGEST)
    figure = _figure(run, shown, small) if small else _named(run, shown)
    return Drawn(name, title, caption, figure, rows, listed)


nearest = partial(_drawn, name="nearest")
farthest = partial(_drawn, name="farthest")


def _named(run: Run, shown: dict[int, Tensor]) -> Figure:
    """List samples without pictures, by their names."""
    lines = [(_row_name(run, cluster).replace("\n", ", "), "bold") for cluster in shown]
    members = [[(run.seen.names[i], "normal") for i in index.tolist()] for index in shown.values()]
    lines = [each for line, own in zip(lines, members, strict=True) for each in (line, *own)]
    with plate(_INCHES_A_LINE * (len(lines) + 1)) as (figure, axes):
        axes.set(ylim=(len(lines), -1), xticks=[], yticks=[])
        for number, (line, weight) in enumerate(lines):
            text = short(line, _LETTERS).replace("$", r"\$")  # which would begin a formula
            axes.text(0, number, text, weight=weight, va="center", fontsize=8)
    return figure


def _figure(run: Run, shown: dict[int, Tensor], small: dict[int, Tensor]) -> Figure:
    picture = _picture(small, shown)
    down, across, _ = picture.shape
    names = [_row_name(run, cluster) for cluster in shown]
    margin = _INCHES_A_LETTER * max(len(line) for name in names for line in name.splitlines())
    height = (WIDTH - margin) * down / across
    with plate(height) as (figure, axes):
        # The layout engine does not place axes with square pixels well.
        figure.set_layout_engine("none")
        axes.set_position((margin / WIDTH, 0, 1 - margin / WIDTH, 1))
        axes.imshow(picture)
        step = down / len(shown)
        axes.set_yticks([step * (row + 0.5) for row in range(len(shown))], names)
        axes.set_xticks([])
    return figure


def _picture(images: dict[int, Tensor], shown: dict[int, Tensor]) -> NDArray[np.uint8]:
    """Arrange images, uint8 of shape (channels, height, width) by number, in rows of at most 8.

    Places without an image are transparent: this is RGBA of shape (pixels down, across, 4).
    """
    blank = torch.full_like(next(iter(images.values())), 255)
    numbers = [
        int(index[column]) if column < len(index) else None
        for index in shown.values()
        for column in range(_EACH)
    ]
    there = [number if number in images else None for number in numbers]
    cells = [blank if number is None else images[number] for number in there]
    empty = [blank if number is None else torch.zeros_like(blank) for number in there]
    opaque = 255 - sheet(torch.stack(empty), _EACH)[..., :1]
    return torch.cat([sheet(torch.stack(cells), _EACH), opaque], dim=2).numpy()


def _row_name(run: Run, cluster: int) -> str:
    name, matched = f"cluster {cluster}", int(run.matched[cluster])
    return f"{name}\nclass {short(run.seen.class_names[matched], 9)}" if matched >= 0 else name
