"""The representations and images of a run that its report shows, in ``shown.npz``."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ccfcpp.core.metrics import covariance
from ccfcpp.core.randomness import generator_of
from ccfcpp.data.images import sample_indices
from ccfcpp.data.vectors import Pictures
from ccfcpp.runs.contact_sheets import thumbnails

EACH, MOST_CLUSTERS = 8, 40
"""Number of images nearest to a centroid, and of the farthest; most clusters with pictures."""
MOST_DIMENSIONS, _MOST_POINTS = 2_048, 10_000
"""Most dimensions and points of a covariance matrix, since a larger one takes long."""
_MOST_PLACED, _COMPONENTS = 1_500, 50
"""Most points of an embedding, since more hide each other, and most dimensions of these: t-SNE is
made of the first principal components, as its authors advise."""
_LARGEST = 64
"""Largest height and width of a picture, in pixels."""


def plot_arrays(points: Tensor, numbers: Tensor, by_angle: bool) -> dict[str, Tensor]:
    """Return arrays that describe representations, for a report's figures.

    Args:
        points: Floats of shape (points, dimensions).
        numbers: Number of each point's image, int64 of shape (points,).
        by_angle: Whether points are compared by angle.

    Returns:
        ``points``, a random sample of the points, reduced to at most 50 principal components (of
        points divided by their lengths if ``by_angle``), and ``index``, the numbers of their
        images; ``covariance`` of shape (dimensions, dimensions) and its ``singular_values``, unless
        there are too many dimensions; ``by_angle`` and the number of ``dimensions``.
    """
    points, numbers = points.cpu(), numbers.cpu()
    everything = torch.arange(len(points))
    some = sample_indices(everything, _MOST_PLACED, generator_of(0))
    found = {
        "index": numbers[some],
        "points": _reduce(points[some], by_angle),
        "by_angle": torch.tensor(by_angle),
        "dimensions": torch.tensor(points.shape[1]),
    }
    if points.shape[1] <= MOST_DIMENSIONS:
        matrix = covariance(points[sample_indices(everything, _MOST_POINTS, generator_of(0))])
        finite = bool(matrix.isfinite().all())
        values = torch.linalg.eigvalsh(matrix) if finite else matrix.diagonal()
        found |= {
            "covariance": matrix.float(),
            "singular_values": values.flip(0).clamp(min=0),
        }
    return found


def _reduce(points: Tensor, by_angle: bool) -> Tensor:
    from sklearn.decomposition import PCA

    points = F.normalize(points.double(), dim=1) if by_angle else points.double()
    if points.shape[1] <= _COMPONENTS:
        return points
    if not bool(points.isfinite().all()):
        return points.new_full((len(points), 1), torch.nan)
    components = min(_COMPONENTS, len(points))
    if bool((points == points[0]).all()):
        return points.new_zeros(len(points), components)
    return torch.from_numpy(PCA(components, random_state=0).fit_transform(points.numpy()))


def plot_thumbnails(
    clusters: Tensor,
    distance: Tensor,
    values: Tensor,
    names: Sequence[str],
    pictures: Pictures | None,
) -> dict[str, Tensor]:
    """Return thumbnails of each cluster's images nearest to its centroid and farthest from it.

    Args:
        clusters: Cluster of each image, int64 of shape (images,).
        distance: Distance of each from its centroid, of shape (images,).
        values: The images, uint8 of shape (images, channels, height, width), or vectors.
        names: Names of the images; empty for images in memory.
        pictures: For vectors of photos, a function that returns photos by their names.

    Returns:
        ``pictured``, numbers of images, and ``pictures``, uint8 of shape (pictures, channels,
        height, width); empty if there is none.
    """
    chosen = [
        extremes(distance, clusters == cluster, farthest)
        for cluster in range(min(int(clusters.max()) + 1, MOST_CLUSTERS))
        for farthest in (False, True)
    ]
    index = torch.unique(torch.cat(chosen)).tolist()
    # Images in memory are called by their numbers.
    called = names or tuple(map(str, range(len(values))))
    small = thumbnails(index, values, called, pictures, _LARGEST)
    if not small:
        return {}
    return {"pictured": torch.tensor([*small]), "pictures": torch.stack([*small.values()])}


def extremes(distance: Tensor, members: Tensor, farthest: bool) -> Tensor:
    """Return the (at most) 8 members of a cluster nearest to its centroid, or farthest from it.

    ``distance`` and ``members``, bool, have shape (points,). The result has indices of points,
    int64, the most extreme first; ties are in the order of the indices.
    """
    index: Tensor = members.nonzero().flatten()
    order: Tensor = torch.argsort(distance[index], descending=farthest, stable=True)
    return index[order[:EACH]]
