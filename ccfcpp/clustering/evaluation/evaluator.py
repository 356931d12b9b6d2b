"""Evaluation of a clustering on the samples of this process."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.client_data import make_client
from ccfcpp.clustering.confidence import confidence, table_columns
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.profile import profile
from ccfcpp.clustering.evaluation.server import EvaluationState
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.mahalanobis import SampleDistribution, model_tensors
from ccfcpp.clustering.methods import leaves_client
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.core.metrics import (
    calibration,
    clustering_scores,
    contingency_table,
    effective_rank,
    match_clusters,
    spectrum,
)
from ccfcpp.core.randomness import SERVER, Randomness
from ccfcpp.core.tables import Columns
from ccfcpp.data.images import ImageData, sample_indices, to_float
from ccfcpp.data.open import AnyData
from ccfcpp.engine.client import Client
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.models.state import ModelState
from ccfcpp.runs.evaluator import Arrays, Evaluator, Results, Scores
from ccfcpp.runs.local_spectra import LocalSpectra, describe_spectra
from ccfcpp.runs.paths import Json
from ccfcpp.runs.report_samples import plot_arrays, plot_thumbnails
from ccfcpp.runs.run import Holdings

_COMPARED, _MOST_COMPARED = "images on which models are compared", 10_000
"""Largest number of images on which local models are compared with the global one."""

_MOST_PIXELS = 1_000_000
"""Largest number of pixels of all images for which k-means on pixels is run for comparison."""
_OF_PIXELS = {"nmi_of_pixels": "nmi", "kappa_of_pixels": "kappa"}
"""Scores of k-means on the pixels by their keys in the summary."""

NO_SCORES = dict.fromkeys(("nmi", "nmi_geometric", "kappa", "accuracy", "ari"))
"""The scores of a summary, if there are no labels."""


class ClusteringEvaluator(Evaluator[Any]):
    """Evaluator of a clustering on all samples of a run, including those that no client trains on.

    Args:
        config: Configuration of the run.
        problem: Configuration, data shape, number of clusters and device of the run.
        algorithm: The clustering system.
        held: All samples, on the run's device, and their division among clients.
        clients: The connected clients that hold samples.
        connected: Numbers of the connected clients.

    Attributes:
        unheld: Indices of the samples that no connected client holds, int64.
        rest: Client that holds these samples, so that they are clustered, too.
    """

    def __init__(
        self,
        config: ClusterConfig,
        problem: Problem,
        algorithm: ClusteringAlgorithm[Any],
        held: Holdings[AnyData],
        clients: Sequence[Client],
        connected: Sequence[int],
    ) -> None:
        self.config, self.problem, self.algorithm = config, problem, algorithm
        self.data, self.parts, self.names = held.data, held.parts, held.names
        self.clients, self.clusters = clients, problem.clusters
        self._absent = sorted(set(range(len(held.parts))) - set(connected))
        trains = torch.zeros(len(held.data), dtype=torch.bool)
        trains[torch.cat([held.parts[client.id] for client in clients])] = True
        self.unheld = (~trains).nonzero().flatten()
        self.rest = make_client(held.data, SERVER, "the rest", self.unheld)

    def describe(self) -> Json:
        """Return facts about system, data, partition and clients, for the summary."""
        config = self.config
        return {
            "method": config.method,
            "dataset": config.dataset,
            "unit": self.data.unit,
            "samples": len(self.data),
            "skipped": self.data.skipped,
            "imbalance": config.data.imbalance if config.data.imbalance > 1 else None,
            "held": len(self.data) - len(self.unheld),
            "classes": len(self.data.classes),
            "clusters": self.clusters,
            **({"clusters_sought": config.clusters} if config.fewest_clusters else {}),
            "partition": config.partition.kind,
            **({"p": None, "classes_per_client": None, "alpha": None} | config.partition.degree),
            "seed": config.seed,
            "clients": len(self.parts),
            "connected": len(self.clients),
            "disconnected": len(self._absent),
            "sends": leaves_client(config, self.problem.has_vectors),
            "device": str(self.problem.device),
            **self.algorithm.describe(),
        }

    def scores(self, number: int, state: Any, memories: ClientMemories) -> Scores:
        """Return scores against labels and latents' effective rank; {} if not due this round."""
        if not self.algorithm.is_scored(number, self.config.evaluate_every):
            return {}
        scores: Scores = {}
        if self.data.labels is not None and self.algorithm.knows_clusters(state):
            clusters = self.assignments(state)
            scores = clustering_scores(self.data.labels.cpu().numpy(), clusters.numpy())
        if self.algorithm.by_model is not None:
            values = self._spectrum(self.algorithm.represent(state, self._compared))
            if values is not None and bool(values.isfinite().all()):
                scores["effective_rank"] = effective_rank(values)
        return scores

    def assignments(self, state: Any) -> Tensor:
        """Return the cluster of every sample, int64 of shape (samples,) on the CPU.

        The model is applied client by client, and clients cache their latents for the next round.
        """
        clusters = torch.empty(len(self.data), dtype=torch.int64)
        for part, client in self._clients_with_samples():
            clusters[part] = self.algorithm.assign(state, client).cpu()
        return clusters

    def results(
        self,
        state: Any,
        memories: ClientMemories,
        local: LocalSpectra,
        outcome: EvaluationState | None,
    ) -> Results:
        """Return a finished run's results: summary, model, table of clusters, arrays, pictures.

        Args:
            state: The server's last state.
            memories: Unused.
            local: Spectra of the local models' representations in the last round.
            outcome: Result of the evaluation without labels; None if there was none.
        """
        clusters, typical = self.assignments(state), outcome.typical if outcome else None
        points = self.algorithm.represent(state, self._compared)
        last: dict[str, Any] = self.algorithm.summarize(state)
        k, images = last.get("clusters", self.clusters), self._by_image(state, clusters, typical)
        connected = [client.id for client in self.clients]
        model = model_tensors(pack(state), typical)
        described = profile(self.data, self.config.vectors, clusters)
        summary: dict[str, Any] = {
            **(self._scores_over(torch.arange(len(self.data)), clusters) or NO_SCORES),
            "scores_connected": self._scores_over(self._samples_of(connected), clusters),
            "scores_absent": self._scores_over(self._samples_of(self._absent), clusters),
            **cluster_sizes(images["client"], clusters, len(self.parts), k),
            "client_names": list(self.names),
            **self._pixel_kmeans_scores(k),
            "bytes_delivered": count_bytes(
                model_tensors(pack(self.algorithm.final_model(state)), typical)
            ),
            **last,
        }
        arrays, columns = self._arrays(points, images), getattr(self.data, "columns", ())
        if self.data.labels is not None and "probability" in images:
            classes = self.data.labels.cpu().numpy()
            correct = torch.from_numpy(match_clusters(classes, clusters.numpy()) == classes)
            summary["calibration_error"] = calibration(images["probability"], correct)[1]
        if (values := self._spectrum(points)) is not None:
            arrays["spectra"] = spectra = local.arrays(values)
            summary |= describe_spectra(spectra)
        return Results(
            summary,
            model,
            ModelFacts.of(self.clusters, self.problem.image_shape, columns).header,
            arrays,
            {"clusters": self._table(images)} | ({"profile": described} if described else {}),
            self.algorithm.pictures(state),
        )

    def image_results(self, state: Any, memories: ClientMemories) -> Arrays:
        """Return the arrays to save for a stopped run, with clusters if there are any."""
        centres = self.algorithm.centres(state)
        # The head of a stopped run may assign images before there are centres.
        known = centres is not None and self.algorithm.knows_clusters(state)
        clusters = self.assignments(state) if known else None
        points = self.algorithm.represent(state, self._compared)
        return self._arrays(points, self._by_image(state, clusters, None))

    def represent(self, client: int, model: ModelState) -> Tensor | None:
        """Return a local model's latents of the compared images, (n, d); None without models."""
        by_model = self.algorithm.by_model
        return None if by_model is None else by_model(model, self._compared.images)

    def _clients_with_samples(self) -> list[tuple[Tensor, Client]]:
        """Return each client with the indices of its samples; ``rest`` is the last client."""
        pairs = [(self.parts[client.id], client) for client in self.clients]
        return pairs + ([(self.unheld, self.rest)] if len(self.rest) else [])

    def _by_image(
        self, state: Any, clusters: Tensor | None, typical: SampleDistribution | None
    ) -> dict[str, Tensor]:
        """Return each sample's client, cluster, class and confidence, of shape (samples,)."""
        owners = torch.full((len(self.data),), -1)
        for number, part in enumerate(self.parts):
            owners[part] = number
        columns = {"client": owners}
        if clusters is not None:
            columns |= {"cluster": clusters} | self._confidence(state, clusters, typical)
        return columns if self.data.labels is None else columns | {"class": self.data.labels.cpu()}

    def _arrays(
        self, points: Tensor | None, images: dict[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        """Return the arrays to save in a run's folder: of all images, and of some for plots."""
        shown: dict[str, Tensor] = {}
        if points is not None:
            shown |= plot_arrays(points, self._compared_index, self.algorithm.by_angle)
        if "distance" in images:
            data = self.data
            pictures = None if isinstance(data, ImageData) else data.pictures
            assigned = images["cluster"], images["distance"]
            shown |= plot_thumbnails(*assigned, data.values, data.names, pictures)
        return {"assignments": {"name": np.array(self._sample_names), **images}, "shown": shown}

    @property
    def _sample_names(self) -> Sequence[str] | range:
        """The name of each sample, or its number if samples have no names."""
        return self.data.names or range(len(self.data))

    def _spectrum(self, points: Tensor | None) -> Tensor | None:
        """Return the singular values of latents; None if the system trains no model."""
        return None if self.algorithm.by_model is None or points is None else spectrum(points)

    def _pixel_kmeans_scores(self, clusters: int) -> dict[str, float | None]:
        """Return scores of k-means on all images' pixels; None without labels or if too many."""
        images, labels = self.data.values, self.data.labels
        if self.data.unit != "image" or labels is None or images.numel() > _MOST_PIXELS:
            return dict.fromkeys(_OF_PIXELS)
        points = to_float(images).flatten(1)
        assigned = nearest(points, kmeans(points, clusters, seed=0, restarts=3).centroids)
        scores = clustering_scores(labels.cpu().numpy(), assigned.cpu().numpy())
        return {key: scores[name] for key, name in _OF_PIXELS.items()}

    def _confidence(
        self, state: Any, clusters: Tensor, typical: SampleDistribution | None
    ) -> dict[str, Tensor]:
        """Return measures of confidence in each image's cluster, floats of shape (samples,)."""
        measures: dict[str, Tensor] = {}
        for part, client in self._clients_with_samples():
            of_client = confidence(self.algorithm, state, client, clusters[part], typical)
            for name, values in of_client.items():
                measures.setdefault(name, values.new_empty(len(self.data)))[part] = values
        return measures

    def _table(self, images: dict[str, Tensor]) -> Columns:
        """Return a table with a row per image; clients and classes appear by name."""
        columns = table_columns(images)
        clients = [*self.names, ""]  # The last is for −1, no client.
        columns["client"] = [clients[number] for number in images["client"].tolist()]
        if "class" in images:
            columns["class"] = [self.data.classes[label] for label in images["class"].tolist()]
        return Columns({self.data.key: self._sample_names, **columns})

    def _samples_of(self, clients: Sequence[int]) -> Tensor:
        """Return the indices of the images of some clients."""
        return torch.cat([torch.arange(0), *(self.parts[number] for number in clients)])

    def _scores_over(self, images: Tensor, clusters: Tensor) -> Scores | None:
        """Return scores over the images with given indices; None without images or labels."""
        if self.data.labels is None or len(images) == 0:
            return None
        return clustering_scores(self.data.labels.cpu()[images].numpy(), clusters[images].numpy())

    @cached_property
    def _compared(self) -> Client:
        """Client that holds the images on which models are compared: all, or 10,000 at random."""
        return make_client(self.data, SERVER, _COMPARED, self._compared_index)

    @cached_property
    def _compared_index(self) -> Tensor:
        generator = Randomness(0).generator(_COMPARED)
        return sample_indices(torch.arange(len(self.data)), _MOST_COMPARED, generator)


def cluster_sizes(owners: Tensor, clusters: Tensor, clients: int, k: int) -> dict[str, Any]:
    """Count non-empty clusters, images by cluster, and by client and cluster, for the summary.

    Args:
        owners: Client of each image, −1 for none; int64 of shape (samples,).
        clusters: Cluster of each image, int64 of shape (samples,).
        clients: Number of clients.
        k: Number of clusters.
    """
    held = owners >= 0
    return {
        "clusters_found": int((clusters.bincount() > 0).sum()),
        "cluster_sizes": clusters.bincount(minlength=k).tolist(),
        "client_cluster_sizes": contingency_table(
            owners[held], clusters[held], clients, k
        ).tolist(),
    }
