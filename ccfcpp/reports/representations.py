"""Figures of the representations: their t-SNE embedding, covariance and correlations."""

import numpy as np
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from ccfcpp.reports import drawing
from ccfcpp.reports.class_figures import cluster_names
from ccfcpp.reports.labels import Gathered, run_column
from ccfcpp.reports.palette import INK, PAPER, Look, colours, line_style, marker
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError, pair_correlations

_READING = "Points that lie close together are neighbours; distances between groups mean little."
_BOX: Look = {"facecolor": PAPER, "linewidth": 1, "boxstyle": "round,pad=0.2", "alpha": 0.85}
_NAME: Look = {"ha": "center", "va": "center", "color": INK, "fontsize": 10, "fontweight": "bold"}


def by_cluster(run: RecordedRun) -> drawing.DrawnFigure:
    """Draw the t-SNE embedding of representations, coloured by cluster or predicted class."""
    kind = "cluster" if run.clusters_images else "predicted class"
    caption = f"t-SNE of the representations, coloured by {kind}. {_READING}"
    if run.clusters_images and run.has_labels:
        caption += " A cluster has the colour of the class it is matched with."
    # A cluster without a class has a colour of its own.
    free = iter(range(len(run.class_names), len(run.class_names) + run.groups))
    inks = [number if number >= 0 else next(free) for number in run.matched.tolist()]
    return _draw(run, "tsne-clusters", kind, caption, run.labels, cluster_names(run), inks)


def by_class(run: RecordedRun) -> drawing.DrawnFigure:
    """Draw the t-SNE embedding of representations, coloured by true class."""
    caption = f"t-SNE of the representations, coloured by true class. {_READING}"
    names = run.class_names
    inks = list(range(len(names)))
    return _draw(run, "tsne-classes", "class", caption, run.classes, names, inks)


def _draw(
    run: RecordedRun,
    name: str,
    kind: str,
    caption: str,
    labels: Tensor,
    names: list[str],
    inks: list[int],
) -> drawing.DrawnFigure:
    places, index = run.embedding, run.shown["index"]
    own = labels[index].numpy()
    palette = colours(max(inks) + 1)
    size = min(30, max(9, 12_000 / len(index)))
    with drawing.new_picture(0.92 * drawing.WIDTH) as (figure, axes):
        for number, ink in enumerate(inks):
            x, y = places[own == number].T
            look: Look = {"color": palette[ink], "marker": marker(ink), "linewidths": 0}
            axes.scatter(x, y, s=size, alpha=0.85, rasterized=True, **look)
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
        if len(names) <= drawing.MOST_NAMES:
            for number in np.unique(own):
                box: Look = {"edgecolor": palette[inks[number]]} | _BOX
                x, y = np.median(places[own == number], axis=0)
                axes.text(x, y, drawing.short(names[number]), bbox=box, **_NAME)
    if len(names) > drawing.MOST_NAMES:
        caption += " The groups are too many to be named here; the CSV file names them."
    if len(index) < len(labels):
        caption += f" {len(index):,} of {len(labels):,} images, drawn at random."
    rows = [
        {"image": int(image), "x": float(place[0]), "y": float(place[1]), kind: names[label]}
        for image, place, label in zip(index, places, own, strict=True)
    ]
    return drawing.DrawnFigure(name, f"t-SNE by {kind}", caption, figure, rows)


_BINS = 40
_QUANTILE = 0.995
"""Quantile of the covariances at which the colour scale ends, since a few are very large."""


def draw_covariance(run: RecordedRun) -> drawing.DrawnFigure:
    """Draw the covariance matrix of a run's representations."""
    matrix = run.representations("covariance")
    limit = float(np.quantile(matrix.abs().numpy(), _QUANTILE)) or 1.0
    with drawing.new_picture(0.84 * drawing.WIDTH) as (figure, axes):
        picture = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set(xlabel="dimension", ylabel="dimension")
        bar = drawing.colour_bar(axes, picture, "covariance", {"extend": "both", "fraction": 0.05})
        bar.formatter = FuncFormatter(drawing.axis_number)
    rows = [
        {"dimension": number} | {str(j): value for j, value in enumerate(row)}
        for number, row in enumerate(matrix.tolist())
    ]
    caption = (
        "Covariance of each pair of dimensions of the representations; white is 0. Blocks off "
        f"the diagonal are redundant dimensions. Colours end at ±{limit:.2g}: {_QUANTILE:.1%} of "
        "the entries are within this range."
    )
    return drawing.DrawnFigure("covariance", "Covariance matrix", caption, figure, rows)


def pairwise_correlations(run: RecordedRun) -> Tensor:
    """Compute the correlation of each pair of dimensions of the representations, shape (pairs,)."""
    correlations = pair_correlations(run.representations("covariance"))
    if len(correlations) == 0:
        raise CannotDrawError("fewer than two dimensions vary")
    return correlations


def draw_correlations(gathered: Gathered[Tensor]) -> list[drawing.DrawnFigure]:
    """Draw in one figure, for each run, a histogram of its ``pairwise_correlations``."""
    edges = np.linspace(-1, 1, _BINS + 1)
    rows = []
    with drawing.new_figure() as (figure, axes):
        for number, (run, correlations) in enumerate(gathered):
            shares = np.histogram(correlations.numpy(), edges)[0] / len(correlations)
            look = line_style(number) | {"linewidth": 1.6, "fill": len(gathered) == 1}
            del look["marker"]
            axes.stairs(shares, edges, label=drawing.short(run.label, 32), **look)
            rows += [
                run_column(run) | {"from": float(low), "to": float(high), "share": float(share)}
                for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
            ]
        axes.set(xlabel="correlation of two dimensions", ylabel="share of the pairs", xlim=(-1, 1))
        axes.xaxis.set_major_formatter(drawing.axis_number)
        axes.yaxis.set_major_formatter(drawing.axis_number)
        if len(gathered) > 1:
            drawing.legend_above(axes)
    caption = (
        "Correlations between dimensions of the representations. The more of them are close to 0, "
        "the less redundant the dimensions are."
    )
    return [
        drawing.DrawnFigure(
            "correlations", "Correlations between dimensions", caption, figure, rows
        )
    ]
