"""One clustering run, from its configuration to its results."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.certainty import certainty, columns_of
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.holding import holding
from ccfcpp.clustering.judging import Judged, Judging
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.clustering.preprocessing.phased import make_algorithm
from ccfcpp.clustering.setup import load_data, number_of_clusters
from ccfcpp.clustering.typical import Typical, saved
from ccfcpp.clustering.vector_checks import check_vectors
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import (
    calibration,
    clustering_scores,
    effective_rank,
    match_clusters,
    spectrum,
)
from ccfcpp.core.randomness import SERVER, Randomness
from ccfcpp.core.tables import Columns, Rows
from ccfcpp.data.images import ImageData, random_part, rows, to_float
from ccfcpp.data.open import AnyData
from ccfcpp.engine.client import Client
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack, size
from ccfcpp.models.state import ModelState
from ccfcpp.runs.experiment import Experiment, Scores
from ccfcpp.runs.folder import Arrays
from ccfcpp.runs.local_spectra import LocalSpectra, describe_spectra
from ccfcpp.runs.shown import shown_pictures, shown_points

_MOST_COMPARED = 10_000
"""Images on which local models are compared with the global one."""


_MOST_PIXELS = 1_000_000
"""Number of pixels of all images that k-means clusters beside a run, in a second."""


class ClusteringExperiment(Experiment[Any]):
    """Data, clients, algorithm and federation that a configuration asks for.

    Making one checks everything that can be checked before a file is written.

    Args:
        data: The images or vectors; those that the configuration names where it is None.
        number: The clients are those that are there in this round; None: in the last one.

    Attributes:
        connected: Numbers of the clients that are there, ascending.
        absent: Numbers of those that are absent for the whole run, likewise.

    Raises:
        UsageError: The configuration does not fit the data or the machine.
    """

    algorithm: ClusteringAlgorithm[Any]

    data: AnyData

    def __init__(
        self, config: ClusterConfig, data: AnyData | None = None, number: int | None = None
    ) -> None:
        super().__init__(config)
        self.config = config
        own = load_data(config) if data is None else data
        # They are held once more only where the run is made anew when clients come.
        self._own = own if config.availability.late else None
        _ = number_of_clusters(config, own)  # says all that is missing, before the partition does
        everyone = holding(config, own, self.randomness)
        self.data, self.parts, self._names = everyone.data, everyone.parts, everyone.names
        self.clusters = number_of_clusters(config, self.data)
        numbers = range(len(self.parts))
        self.connected = self.availability.connected(numbers, self.randomness, number)
        self.absent = sorted(set(numbers) - set(self.connected))
        self.absent_names = [self.client_name(number) for number in self.absent]
        self.data = self.data.to(self.device)
        # A client without samples has nothing to train on and nothing to add to an average.
        self.clients = [
            self._holder(number, self.client_name(number), self.parts[number])
            for number in self.connected
            if len(self.parts[number]) > 0
        ]
        if not self.clients:
            raise UsageError(
                f"no connected client holds a{'n' * (self.data.unit[0] in 'aeiou')} "
                f"{self.data.unit}: give fewer clients"
            )
        held = torch.zeros(len(self.data), dtype=torch.bool)
        held[torch.cat([self.parts[client.id] for client in self.clients])] = True
        # Images that take no part in training are clustered all the same.
        self.unheld = (~held).nonzero().flatten()
        self.rest = self._holder(SERVER, "the rest", self.unheld)
        self.problem = Problem(
            config,
            tuple(self.data.values.shape[1:]),
            self.clusters,
            self.device,
            sum(map(len, self.clients)),
            config.fewest_clusters,
            config.grows,
            config.privacy.is_on,
            config.privacy.level != "none",
        )
        self.algorithm = make_algorithm(self.problem)
        if self.problem.has_vectors:
            check_vectors(config, self.data.values)
        self.check()

    def as_of(self, number: int) -> "ClusteringExperiment | None":
        """The run with the clients that are there from a round on; None where these are its own."""
        there = self.availability.connected(range(len(self.parts)), self.randomness, number)
        if there == self.connected:
            return None
        return ClusteringExperiment(self.config, self._own, number)

    def _holder(self, number: int, name: str, samples: Tensor) -> Client:
        return Client(number, name, rows(self.data.values, samples.to(self.device)))

    def client_name(self, number: int) -> str:
        """What a client is called: its folder's name, or its number."""
        return self._names[number]

    def scores(self, number: int, state: Any, memories: ClientMemories) -> Scores:
        """Scores over all samples where there are labels, and the effective rank of a model."""
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

    def _spectrum(self, points: Tensor | None) -> Tensor | None:
        """Singular values of the global model's representations; None without a model."""
        return None if self.algorithm.by_model is None or points is None else spectrum(points)

    def assignments(self, state: Any) -> Tensor:
        """The cluster of every sample, int64 of shape (samples,) on the CPU.

        Each client's images go through the model by themselves: what it makes of them serves the
        client in the next round too.
        """
        clusters = torch.empty(len(self.data), dtype=torch.int64)
        for client in self.clients:
            clusters[self.parts[client.id]] = self.algorithm.assign(state, client).cpu()
        if len(self.rest) > 0:
            clusters[self.unheld] = self.algorithm.assign(state, self.rest).cpu()
        return clusters

    def results(
        self, state: Any, memories: ClientMemories, local: LocalSpectra, told: Judged | None
    ) -> tuple[dict[str, Any], Arrays]:
        """The cluster of every image, scores where there are labels, and spectra of models."""
        typical = told.typical if told else None
        clusters, points = self.assignments(state), self.algorithm.represent(state, self._compared)
        assignments = self._assignments(state, clusters, typical)
        owners = assignments["client"]
        sure = assignments.get("probability")
        connected = [client.id for client in self.clients]
        found: dict[str, Any] = self.algorithm.found(state)
        unknown = dict.fromkeys(("nmi", "nmi_geometric", "kappa", "accuracy", "ari"))
        summary: dict[str, Any] = {
            **(self._scores_over(torch.arange(len(self.data)), clusters) or unknown),
            "scores_connected": self._scores_over(self._held_by(connected), clusters),
            "scores_absent": self._scores_over(self._held_by(self.absent), clusters),
            **sizes(owners, clusters, len(self.parts), found.get("clusters", self.clusters)),
            "nmi_of_pixels": self._by_pixels(found.get("clusters", self.clusters)),
            "bytes_delivered": size(saved(pack(self.algorithm.delivery(state)), typical)),
            **found,
        }
        arrays = self._arrays(points, assignments)
        if self.data.labels is not None and sure is not None:
            classes = self.data.labels.cpu().numpy()
            right = torch.from_numpy(match_clusters(classes, clusters.numpy()) == classes)
            summary["calibration_error"] = calibration(sure, right)[1]
        if (values := self._spectrum(points)) is not None:
            spectra = local.arrays(values)
            arrays["spectra"] = spectra
            summary |= describe_spectra(spectra)
        return summary, arrays

    def image_results(self, state: Any, memories: ClientMemories) -> Arrays:
        """The cluster of every image where there are any yet, and what figures show of images."""
        centres = self.algorithm.centres(state)
        # A run that was stopped may have a head that assigns, and no centres yet.
        known = centres is not None and self.algorithm.knows_clusters(state)
        clusters = self.assignments(state) if known else None
        points = self.algorithm.represent(state, self._compared)
        return self._arrays(points, self._assignments(state, clusters, None))

    def _assignments(
        self, state: Any, clusters: Tensor | None, typical: Typical | None
    ) -> dict[str, Tensor]:
        """Client, cluster and class of every image, and how sure the cluster is."""
        owners = torch.full((len(self.data),), -1)
        for number, part in enumerate(self.parts):
            owners[part] = number
        found = {"client": owners}
        if clusters is not None:
            found |= {"cluster": clusters} | self._certainty(state, clusters, typical)
        return found if self.data.labels is None else found | {"class": self.data.labels.cpu()}

    def _arrays(
        self, points: Tensor | None, assignments: dict[str, Tensor]
    ) -> dict[str, Mapping[str, Tensor | NDArray[np.str_]]]:
        shown: dict[str, Tensor] = {}
        if points is not None:
            shown |= shown_points(points, self._compared_index, self.algorithm.by_angle)
        if "distance" in assignments:
            pictures = None if isinstance(self.data, ImageData) else self.data.pictures
            shown |= shown_pictures(
                assignments["cluster"],
                assignments["distance"],
                self.data.values,
                self.data.names,
                pictures,
            )
        return {
            "assignments": {"name": np.array(self._named), **assignments},
            "shown": shown,
        }

    def _by_pixels(self, clusters: int) -> float | None:
        """NMI of k-means on the pixels of all images in one place, where these are few."""
        images, labels = self.data.values, self.data.labels
        if self.data.unit != "image" or labels is None or images.numel() > _MOST_PIXELS:
            return None
        points = to_float(images).flatten(1)
        found = nearest(points, kmeans(points, clusters, seed=0, restarts=3).centroids)
        return clustering_scores(labels.cpu().numpy(), found.cpu().numpy())["nmi"]

    def saved(self, state: Any, told: Judged | None) -> Mapping[str, Tensor]:
        """The server's state, and where the run's images lie."""
        return saved(pack(state), told.typical if told else None)

    def _certainty(
        self, state: Any, clusters: Tensor, typical: Typical | None
    ) -> dict[str, Tensor]:
        """How sure the cluster of every image is, floats of shape (samples,) by name."""
        parts = [(self.parts[client.id], client) for client in self.clients]
        parts += [(self.unheld, self.rest)] if len(self.rest) else []
        found: dict[str, Tensor] = {}
        for part, holder in parts:
            known = certainty(self.algorithm, state, holder, clusters[part], typical)
            for name, own in known.items():
                found.setdefault(name, own.new_empty(len(self.data)))[part] = own
        return found

    def tables(self, arrays: Arrays) -> Mapping[str, Rows]:
        """The cluster of each image, by the names of files, clients and classes."""
        found = {n: each for n, each in arrays["assignments"].items() if isinstance(each, Tensor)}
        columns = columns_of(found)
        # -1 is the last of these.
        clients = [*map(self.client_name, range(len(self.parts))), ""]
        columns["client"] = [clients[number] for number in found["client"].cpu().numpy()]
        if "class" in found:
            columns["class"] = [self.data.classes[label] for label in found["class"].cpu().numpy()]
        return {"clusters": Columns({self.data.key: self._named, **columns})}

    @property
    def _named(self) -> Sequence[str] | range:
        """What each sample is called, or is numbered: strings of millions would take a gigabyte."""
        return self.data.names or range(len(self.data))

    def _held_by(self, clients: Sequence[int]) -> Tensor:
        """Indices of the images of some clients."""
        return torch.cat([torch.arange(0), *(self.parts[number] for number in clients)])

    def _scores_over(self, images: Tensor, clusters: Tensor) -> Scores | None:
        """Scores over some images by themselves: clusters are matched with classes among them."""
        if self.data.labels is None or len(images) == 0:
            return None
        return clustering_scores(self.data.labels.cpu()[images].numpy(), clusters[images].numpy())

    @cached_property
    def _compared(self) -> Client:
        """Holds the images on which models are compared: a part where there are many."""
        return self._holder(SERVER, "images on which models are compared", self._compared_index)

    @cached_property
    def _compared_index(self) -> Tensor:
        generator = Randomness(0).generator("images on which models are compared")
        return random_part(torch.arange(len(self.data)), _MOST_COMPARED, generator)

    def local_representations(self, client: int, model: ModelState) -> Tensor | None:
        """What a local model makes of the images on which models are compared."""
        by_model = self.algorithm.by_model
        return None if by_model is None else by_model(model, self._compared.images)

    @cached_property
    def epilogue(self) -> Judging | None:
        """The exchanges by which the clustering is judged without labels."""
        return None if self.privacy.level != "none" else Judging(self.algorithm, self.clusters)

    def pictures(self, state: Any) -> Mapping[str, Tensor]:
        """What the system has to show."""
        return self.algorithm.pictures(state)

    def model_facts(self) -> dict[str, str]:
        """What the problem was."""
        return ModelFacts.of(self.problem, getattr(self.data, "columns", ())).header

    @property
    def _sends(self) -> str:
        """What leaves a client, in words."""
        sends = METHODS[self.config.method].sends
        return sends.replace("images", "vectors") if self.problem.has_vectors else sends

    def describe(self) -> dict[str, Any]:
        """The setting, for the summary."""
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
            "disconnected": len(self.absent),
            "sends": self._sends,
            "device": str(self.device),
            **self.algorithm.describe(),
        }


def sizes(owners: Tensor, clusters: Tensor, clients: int, k: int) -> dict[str, Any]:
    """Numbers of clusters with images, of images in each, and of each client's: a row for each.

    Args:
        owners: Client of each image, −1 for none; int64 of shape (samples,).
        clusters: Cluster of each image, int64 of shape (samples,).
        clients: Number of clients.
        k: Number of clusters.
    """
    held = owners >= 0
    pairs = (owners * k + clusters)[held].bincount(minlength=clients * k)
    return {
        "clusters_found": int((clusters.bincount() > 0).sum()),
        "cluster_sizes": clusters.bincount(minlength=k).tolist(),
        "client_cluster_sizes": pairs.view(clients, k).tolist(),
    }
