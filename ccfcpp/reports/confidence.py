"""Figures that compare confidence and outlier scores of images with errors of assignment."""

from functools import partial

from ccfcpp.core.metrics import calibration
from ccfcpp.reports.drawing import DrawnFigure, legend_above, new_figure
from ccfcpp.reports.palette import line_style
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError

_CAPTIONS = {
    "probability": "least sure to the surest. Probability and share are {error:.3f} apart in the "
    "mean. Labels serve this figure alone.",
    "outlier": "nearest to the farthest: the Mahalanobis distance from the cluster's mean, whose "
    "root mean square over all images is 1.",
}


def _draw(run: RecordedRun, column: str, title: str, label: str) -> DrawnFigure:
    """Draw the share of images in the right cluster, by ten bins of the values in ``column``."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    if run.summary is None and not run.remote:
        raise CannotDrawError("the run has not ended")
    classes = run.values_of_images("class", "the images have no labels")
    values = run.values_of_images(column, "the run does not know it, or an earlier version made it")
    tenths, error = calibration(values, run.matched[run.labels] == classes)
    with new_figure() as (figure, axes):
        axes.plot(tenths[:, 0], tenths[:, 1], label="images", **line_style(0))
        axes.set(xlabel=label, ylabel="share that is right", ylim=(0, 1.02))
        if column == "probability":
            axes.plot([0, 1], [0, 1], label="as sure as right", **line_style(1))
            axes.set(xlim=(0, 1.02))
            legend_above(axes)
    rows: list[dict[str, object]] = [
        {"part": part, column: mean, "right": share, "images": int(count)}
        for part, (mean, share, count) in enumerate(tenths.tolist(), start=1)
    ]
    caption = (
        "The share of images in the cluster of their class, by tenths of the images from the "
        + _CAPTIONS[column].format(error=error)
    )
    return DrawnFigure(title.lower(), f"{title} and errors", caption, figure, rows)


confidence = partial(
    _draw, column="probability", title="Confidence", label="probability of the cluster"
)
outliers = partial(
    _draw,
    column="outlier",
    title="Outliers",
    label="distance from the cluster, in units of the usual one",
)
