"""Synthetic samples of the clients' decoders, and what the server makes of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.plugin import ModelState, assign_points


@dataclass(frozen=True)
class LocalClusters:
    """What a client's own network knows, and the server needs to draw samples like the client's.

    Attributes:
        decoder: Weights of the decoder.
        centroids: float32 of shape (at most k, latent).
        deviations: Standard deviation of each centroid's points, float32 of shape (at most k,).
        counts: Number of points by which samples are allotted, float64 of shape (at most k,).
    """

    decoder: ModelState
    centroids: Tensor
    deviations: Tensor
    counts: Tensor


def spreads(latents: Tensor, centroids: Tensor, near: bool) -> tuple[Tensor, Tensor]:
    """Return deviations and counts of each centroid's points, as in the public code.

    The deviation of a centroid is that of its points' distances from it, and 1 if there are fewer
    than two. If ``near``, points are counted whose distance is at most the deviation.

    Args:
        latents: Points of shape (samples, latent).
        centroids: Shape (k, latent).
        near: Whether only near points are counted.

    Returns:
        Deviations, float32, and counts, float64, both of shape (k,).
    """
    labels = assign_points(latents, centroids)
    distances = (latents - centroids[labels]).norm(dim=1)
    deviations = torch.ones(len(centroids), dtype=torch.float32, device=latents.device)
    counts = torch.zeros(len(centroids), dtype=torch.float64)
    for cluster in range(len(centroids)):
        own = distances[labels == cluster]
        if len(own) > 1:
            deviations[cluster] = own.std()
        counts[cluster] = int((own <= deviations[cluster]).sum()) if near else len(own)
    return deviations, counts


def allot(counts: Tensor, total: int) -> Tensor:
    """Divide ``total`` samples in proportion to counts, by largest remainders; int64 (centroids,).

    If no point is counted, all centroids get alike.
    """
    counts = counts if bool(counts.sum() > 0) else torch.ones_like(counts)
    exact = counts / counts.sum() * total
    whole = exact.floor()
    rest = (exact - whole).argsort(descending=True, stable=True)
    whole[rest[: total - int(whole.sum())]] += 1
    return whole.long()


def draw(
    clients: Sequence[LocalClusters],
    total: int,
    decode: Callable[[ModelState, Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Draw latents from N(centroid, deviation²) in proportion to the counts, and decode them.

    Args:
        clients: What each client sent.
        total: Number of samples.
        decode: Maps a decoder's weights and latents (samples, latent) to samples.
        generator: Source of random numbers.

    Returns:
        Synthetic samples, of shape (total, …), those of each client by its own decoder.
    """
    numbers, drawn = allot(torch.cat([own.counts for own in clients]), total), []
    for own in clients:
        shares, numbers = numbers[: len(own.counts)], numbers[len(own.counts) :]
        rows = torch.arange(len(shares)).repeat_interleave(shares).to(own.centroids.device)
        noise = torch.randn(len(rows), own.centroids.shape[1], generator=generator)
        latents = own.centroids[rows] + own.deviations[rows].unsqueeze(1) * noise.to(own.centroids)
        drawn.append(decode(own.decoder, latents))
    return torch.cat(drawn)


def embed(points: Tensor, dimensions: int, config: FedDCNConfig, seed: int) -> Tensor:
    """Embed points (samples, pixels) by UMAP; return floats of shape (samples, dimensions)."""
    # Imported here: it is an extra, and takes seconds.
    from umap import UMAP

    found = UMAP(
        n_components=dimensions,
        n_neighbors=config.neighbours,
        min_dist=config.min_dist,
        random_state=seed % 2**32,
        n_jobs=1,
    ).fit_transform(points.cpu().numpy())
    return torch.from_numpy(found).to(points)


def davies_bouldin(latents: Tensor, centroids: Tensor) -> float:
    """Return the Davies-Bouldin index (1979) of latents' clusters; infinity for a single cluster.

    Arguments are as in ``spreads``.
    """
    from sklearn.metrics import davies_bouldin_score

    labels = assign_points(latents, centroids)
    if not 1 < len(set(labels.tolist())) < len(labels):
        return math.inf
    return float(davies_bouldin_score(latents.cpu().numpy(), labels.cpu().numpy()))
