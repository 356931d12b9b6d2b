"""How sure assignments are, and how far images are from the others, beside errors."""

import torch
from torch import Tensor

from ccfcpp.core.metrics import calibration
from ccfcpp.pages.drawing import Drawn, legend_above, paper
from ccfcpp.pages.examination import Run
from ccfcpp.pages.numbers import CannotDrawError
from ccfcpp.pages.palette import line_style
from ccfcpp.runs.folder import RunFolder

_PARTS = 10


def confidence(run: Run) -> Drawn:
    """Draw the share of images that are right by how sure they are."""
    sure, right = _told(run, "probability")
    rows, error = calibration(sure, right, _PARTS)
    with paper() as (figure, axes):
        axes.plot([0, 1], [0, 1], label="as sure as right", **line_style(1))
        axes.plot(rows[:, 0], rows[:, 1], label="images", **line_style(0))
        axes.set(xlabel="probability of the cluster", ylabel="share that is right")
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
        legend_above(axes)
    caption = (
        f"The share of images in the cluster of their class, by tenths of the images from the "
        f"least sure to the surest. Probability and share are {error:.3f} apart in the mean. "
        "Labels serve this figure alone."
    )
    return Drawn("confidence", "Confidence and errors", caption, figure, _rows(rows, "probability"))


def outliers(run: Run) -> Drawn:
    """Draw the share of images that are right by how far they are from their cluster."""
    far, right = _told(run, "outlier")
    rows, _ = calibration(far, right, _PARTS)
    with paper() as (figure, axes):
        axes.plot(rows[:, 0], rows[:, 1], **line_style(0))
        axes.set(xlabel="distance from the cluster, in units of the usual one")
        axes.set(ylabel="share that is right", ylim=(0, 1.02))
    caption = (
        "The share of images in the cluster of their class, by tenths of the images from the "
        "nearest to the farthest: the Mahalanobis distance from the cluster's mean, whose root "
        "mean square over all images is 1."
    )
    return Drawn("outliers", "Outliers and errors", caption, figure, _rows(rows, "outlier"))


def _told(run: Run, column: str) -> tuple[Tensor, Tensor]:
    """A column of a run's assignments, and whether each image's cluster has its class."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    if run.remote:
        raise CannotDrawError("clients on other machines keep the clusters of their images")
    if run.summary is None:
        raise CannotDrawError("the run has not ended")
    arrays = RunFolder(run.path).read_arrays("assignments")
    if "class" not in arrays:
        raise CannotDrawError("the images have no labels")
    if column not in arrays:
        raise CannotDrawError("the run does not know it, or an earlier version made it")
    return arrays[column], run.matched[arrays["cluster"]] == arrays["class"]


def _rows(rows: Tensor, column: str) -> list[dict[str, object]]:
    return [
        {"part": part + 1, column: float(mean), "right": float(share), "images": int(count)}
        for part, (mean, share, count) in enumerate(torch.unbind(rows))
    ]
