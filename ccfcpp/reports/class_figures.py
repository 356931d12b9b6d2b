"""Figures that compare clusters and clients with the true classes."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ccfcpp.core.metrics import contingency_table
from ccfcpp.reports.drawing import DrawnFigure, colour_bar, new_picture, thin_ticks
from ccfcpp.reports.palette import Look, ink_on
from ccfcpp.reports.run_reader import RecordedRun

_MOST_DIGITS, _MOST_NUMBERED = 40, 25
"""Most digits in a row, and most rows, of a table whose cells have room for their numbers."""


def cluster_names(run: RecordedRun) -> list[str]:
    """Return a name for each cluster, its number; or the class names, if the run classifies."""
    return [*map(str, range(run.groups))] if run.clusters_images else run.class_names


def cluster_order(run: RecordedRun) -> list[int]:
    """Return the clusters' numbers, sorted by matched class; those without a class come last."""
    matched = run.matched.tolist()
    return sorted(range(run.groups), key=lambda number: (matched[number] < 0, matched[number]))


def confusion(run: RecordedRun) -> DrawnFigure:
    """Draw true classes by clusters, or the confusion matrix of a classifier, as a heat map."""
    classes, labels = run.classes, run.labels
    names, order = run.class_names, cluster_order(run)
    counts = contingency_table(classes, labels, len(names), run.groups)[:, order]
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    columns = [cluster_names(run)[number] for number in order]
    across = "cluster" if run.clusters_images else "predicted class"
    figure = heat_map(counts, shares, names, columns, ("class", across), "share of the class")
    caption = (
        "Images of each true class (row) by cluster (column). Clusters are in the order of the "
        "classes they match best, so that agreement lies on the diagonal."
        if run.clusters_images
        else "Test images of each true class (row) by the class predicted (column)."
    )
    if not run.clusters_images and "points" not in run.shown:
        caption += (
            " Each client has its own model: where several were tested on the same images, the "
            "predictions of the first one are shown."
        )
    matched = run.matched[order].tolist()
    rows = [
        {
            "class": name,
            across: column,
            "matched": matched[j] == i,
            "images": int(counts[i, j]),
            "share": float(shares[i, j]),
        }
        for i, name in enumerate(names)
        for j, column in enumerate(columns)
    ]
    title = "Confusion matrix" + (" after matching" if run.clusters_images else "")
    return DrawnFigure("confusion", title, caption, figure, rows)


def client_classes(run: RecordedRun) -> DrawnFigure:
    """Draw the number of images by client and class as a heat map."""
    return draw_client_table(run, run.holdings, ("class", "classes"), run.class_names)


def draw_client_table(
    run: RecordedRun, counts: Tensor, kind: tuple[str, str], columns: Sequence[object]
) -> DrawnFigure:
    """Draw numbers of images, ``counts``, int64 of shape (clients, columns), as a heat map.

    ``kind`` says in singular and plural what a column is, such as a cluster; ``columns`` are their
    names.
    """
    one, several = kind
    names, shown = [*run.clients.values()], [*map(str, columns)]
    figure = heat_map(counts, counts.double(), names, shown, ("", one), "images of the client")
    rows = [
        {"client": number, "name": name, one: column, "images": int(count)}
        for (number, name), own in zip(run.clients.items(), counts, strict=True)
        for column, count in zip(columns, own, strict=True)
    ]
    caption = f"The number of images by client (row) and {one} (column)."
    return DrawnFigure(f"client-{several}", f"Clients and {several}", caption, figure, rows)


def heat_map(
    counts: Tensor,
    values: Tensor,
    rows: list[str],
    columns: list[str],
    axes_names: tuple[str, str],
    scale: str,
) -> Figure:
    """Draw a heat map of ``values`` with ``counts`` in its cells, if there is room for numbers.

    Both have shape (rows, columns). ``rows`` and ``columns`` are the names on the axes,
    ``axes_names`` the labels of the y and the x axis, and ``scale`` that of the colour bar.
    """
    height = min(6.5, max(2.4, 1.5 + 0.24 * len(rows)))
    with new_picture(height) as (figure, axes):
        picture = axes.imshow(values.numpy(), cmap="cividis", aspect="auto", vmin=0)
        axes.set_yticks(*thin_ticks(rows, 30))
        places, names = thin_ticks(columns)
        slanted = max(map(len, names)) > 3
        turned: Look = (
            {"rotation": 40, "ha": "right"} if slanted else {"rotation": 0, "ha": "center"}
        )
        axes.set_xticks(places, names, **turned)
        axes.set(ylabel=axes_names[0], xlabel=axes_names[1])
        colour_bar(axes, picture, scale, {"fraction": 0.06, "aspect": 8 * height})
        digits = len(str(int(counts.max())))
        if digits * len(columns) <= _MOST_DIGITS and len(rows) <= _MOST_NUMBERED:
            _number(axes, counts, picture.to_rgba(values.numpy()))
    return figure


def _number(axes: Axes, counts: Tensor, inks: object) -> None:
    colours = torch.as_tensor(inks)
    centred: Look = {"ha": "center", "va": "center", "fontsize": 8.5}
    for row, column in counts.nonzero().tolist():
        ink = ink_on(*colours[row, column, :3].tolist())
        axes.text(column, row, f"{int(counts[row, column])}", color=ink, **centred)
