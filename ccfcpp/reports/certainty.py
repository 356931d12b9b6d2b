"""How sure assignments are, and how far images are from the others, beside errors."""

from torch import Tensor

from ccfcpp.core.metrics import calibration
from ccfcpp.reports.drawing import Drawn, legend_above, paper
from ccfcpp.reports.examination import Run
from ccfcpp.reports.numbers import CannotDrawError
from ccfcpp.reports.palette import line_style
from ccfcpp.runs.folder import RunFolder

_RIGHT = "The share of images in the cluster of their class, by tenths of the images from the "
_CONFIDENCE = (
    "least sure to the surest. Probability and share are {error:.3f} apart in the mean. Labels "
    "serve this figure alone."
)
_OUTLIERS = (
    "nearest to the farthest: the Mahalanobis distance from the cluster's mean, whose root mean "
    "square over all images is 1."
)


def confidence(run: Run) -> Drawn:
    """Draw the share of images that are right by how sure they are."""
    return _drawn(run, "probability", "probability of the cluster", "Confidence", _CONFIDENCE)


def outliers(run: Run) -> Drawn:
    """Draw the share of images that are right by how far they are from their cluster."""
    label = "distance from the cluster, in units of the usual one"
    return _drawn(run, "outlier", label, "Outliers", _OUTLIERS)


def _drawn(run: Run, column: str, label: str, title: str, caption: str) -> Drawn:
    found, error = calibration(*_told(run, column))
    with paper() as (figure, axes):
        axes.plot(found[:, 0], found[:, 1], label="images", **line_style(0))
        axes.set(xlabel=label, ylabel="share that is right", ylim=(0, 1.02))
        if column == "probability":
            axes.plot([0, 1], [0, 1], label="as sure as right", **line_style(1))
            axes.set(xlim=(0, 1.02))
            legend_above(axes)
    rows: list[dict[str, object]] = [
        {"part": part + 1, column: mean, "right": share, "images": int(count)}
        for part, (mean, share, count) in enumerate(found.tolist())
    ]
    said = _RIGHT + caption.format(error=error)
    return Drawn(title.lower(), f"{title} and errors", said, figure, rows)


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
