"""What the folder of a run shows, whether the run has ended or not."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.core.config import MethodConfig, RunConfig
from ccfcpp.core.config_layers import merge, read_yaml, validate, values_of
from ccfcpp.core.encoders import refuse_program
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import covariance
from ccfcpp.core.randomness import generator_of
from ccfcpp.core.units import first_of
from ccfcpp.data.images import random_part
from ccfcpp.deployment.link.packet import Nobody
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.evaluator import sum_of
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.client import Member
from ccfcpp.reports import numbers
from ccfcpp.runs.evaluator import Snapshot
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import Json, RunPaths
from supervised.classifiers import title_of
from supervised.config import ClassifyConfig
from supervised.run import ClassificationRun, classification_run

_MOST_DIMENSIONS = 2048
"""Most dimensions of a covariance matrix that is shown; a larger one takes long to draw."""
_MOST_NAMES = 5
"""Most runs that a message names."""
_MOST_POINTS = 10_000
"""Most points from which a covariance is computed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Known:
    """The experiment of a run, and what is known of its clients and images.

    Attributes:
        clients: Name of each client, by its number.
        sizes: Number of images of each client.
        connected: Numbers of the clients that took part and hold images.
        holdings: Images by client and class, int64 of shape (clients, classes); None without
            labels.
        snapshot: Images, representations and clusters by the last checkpoint; None without one.
        tables: What clients on other machines have reported, by their numbers: images by class and
            cluster, int64 of shape (classes, clusters or predicted classes).
    """

    experiment: ClusteringRun | ClassificationRun | DeployedRun
    clients: dict[int, str]
    sizes: list[int]
    connected: frozenset[int]
    holdings: Tensor | None
    snapshot: Snapshot | None
    tables: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(_Known):
    """A run, and the state of its images at its last checkpoint.

    Attributes:
        title: Name of its system in the papers' tables.
        planned: Largest number of rounds.
        log: One row for each round, as in ``metrics.jsonl``.
        summary: Results; None where the run has not ended.
        facts: The setting, as in a summary.
        sessions: The environment of each session of the run.
        clusters_images: Whether the run clusters images; else it classifies them.
        spectra: Singular values of models, by name, as in ``spectra.npz``.
        remote: Whether the images are with clients on other machines.
        leakage: Results of attacks on the run, as in ``leakage.json``; empty where there were none.
        label: Name that distinguishes the run from others in the same report.
    """

    path: Path
    config: MethodConfig
    title: str
    planned: int
    log: list[Json]
    summary: Json | None
    facts: Json
    sessions: list[Json]
    clusters_images: bool
    spectra: Mapping[str, Tensor]
    remote: bool = False
    leakage: Json = field(default_factory=dict)
    label: str = ""

    @property
    def seen(self) -> Snapshot:
        """The snapshot of the last checkpoint."""
        if self.snapshot is not None:
            return self.snapshot
        raise numbers.CannotDrawError(
            "no client has reported the clusters of its images"
            if self.remote
            else "the run ended before its first checkpoint"
        )

    @property
    def found(self) -> Tensor:
        """The cluster, or predicted class, of each image, int64 of shape (images,)."""
        if self.seen.found is None:
            raise numbers.CannotDrawError(
                "no clusters are known yet: the run was interrupted before"
            )
        return self.seen.found

    @property
    def classes(self) -> Tensor:
        """The true class of each image, int64 of shape (images,)."""
        if self.seen.classes is None:
            raise numbers.CannotDrawError("the images have no labels")
        return self.seen.classes

    @property
    def points(self) -> Tensor:
        """Representation of each image, finite floats of shape (images, dimensions)."""
        if self.remote:
            raise numbers.CannotDrawError("the images are with the clients, on other machines")
        points = self.seen.representations
        if points is None:
            raise numbers.CannotDrawError(
                "no representation is known yet: the run was interrupted before"
                if self.clusters_images
                else "each client has its own model: there is no common space of all images"
            )
        if not numbers.all_finite(points):
            raise numbers.CannotDrawError(
                "the model has diverged: its representations hold NaN or Inf"
            )
        return points

    @property
    def groups(self) -> int:
        """Number of clusters, or of predicted classes."""
        centroids = self.seen.centroids
        return len(self.seen.class_names) if centroids is None else len(centroids)

    @property
    def groups_asked(self) -> int:
        """The number of clusters k that the run was asked for."""
        return int(self.facts["clusters"])

    @cached_property
    def matched(self) -> Tensor:
        """The class of each cluster after matching, −1 for none; int64 of shape (groups,)."""
        if not self.clusters_images:
            return torch.arange(self.groups)
        if self.seen.classes is None:
            return torch.full((self.groups,), -1)
        return numbers.matched_classes(self.seen.classes, self.found, self.groups)

    @cached_property
    def covariance(self) -> Tensor:
        """Covariance of the representations, float64 of shape (dimensions, dimensions)."""
        dimensions = self.points.shape[1]
        if dimensions > _MOST_DIMENSIONS:
            raise numbers.CannotDrawError(
                f"the space has {dimensions:,} dimensions, more than {_MOST_DIMENSIONS:,}"
            )
        everything = torch.arange(len(self.points))
        return covariance(self.points[random_part(everything, _MOST_POINTS, generator_of(0))])

    @cached_property
    def embedding(self) -> numbers.Embedding:
        """Embedding of the representations in the plane."""
        return numbers.embed(self.points, self.seen.by_angle)


def examine(path: Path, data_root: str | None = None, encoder: str | None = None) -> Run:
    """Open the folder of a run without changing it.

    Its data sets are in ``data_root``, where this is neither the run's folder of them nor
    ``$CCFCPP_DATA``. ``encoder`` is the name of the run's encoder on this machine.

    Raises:
        UsageError: It is not the folder of a run, or the run's images cannot be loaded.
    """
    folder = RunFolder(path)
    config = _config(folder)
    far = folder.deployment.exists()
    known = _told(folder, config) if far else _opened(folder, config, data_root, encoder)
    summary = folder.read_summary() if folder.summary.is_file() else None
    # Another machine may have made the run: the recorded setting counts, and so does the number of
    # clients trained side by side, which is known only where they were trained.
    facts = known.experiment.evaluator.describe()
    recorded = {*facts, "cohort"}
    facts |= {key: value for key, value in (summary or {}).items() if key in recorded}
    return Run(
        **vars(known),
        path=path,
        config=config,
        title=title_of_system(config),
        planned=known.experiment.algorithm.rounds,
        log=folder.read_log(),
        summary=summary,
        facts=facts,
        sessions=folder.read_sessions(),
        clusters_images=isinstance(config, ClusterConfig),
        spectra=folder.read_arrays("spectra"),
        remote=far,
        leakage=folder.read_leakage(),
    )


def _opened(
    folder: RunFolder, config: MethodConfig, data_root: str | None, encoder: str | None
) -> _Known:
    refuse_program(values_of(config).get("data.encoder"), [encoder])
    experiment = _experiment(_here(config, data_root, _recorded_root(folder), encoder))
    return _Known(
        experiment=experiment,
        clients=dict(enumerate(experiment.names)),
        sizes=list(map(len, experiment.parts)),
        connected=frozenset(client.id for client in experiment.clients),
        holdings=_holdings(experiment),
        snapshot=_as_recorded(experiment.last_snapshot(folder), folder),
    )


def _told(folder: RunFolder, config: MethodConfig) -> _Known:
    """A run whose images are with clients on other machines, by what these have reported."""
    enrolment = Enrolment.load(folder.deployment)
    # The experiment serves to read its setting.
    experiment = enrolment.begun(_here(config, None, None), Channel(Nobody()))
    counts, members = folder.read_arrays("counts"), enrolment.members
    tables = dict(zip(counts["client"].tolist(), counts["table"], strict=True)) if counts else {}
    return _Known(
        experiment=experiment,
        clients={member.id: member.name for member in members},
        sizes=[member.samples for member in members],
        connected=frozenset(member.id for member in experiment.members),
        holdings=_told_holdings(tables, enrolment.spec, members),
        snapshot=_told_snapshot(tables, enrolment.spec),
        tables=tables,
    )


def _experiment(config: MethodConfig) -> ClusteringRun | ClassificationRun:
    if isinstance(config, ClusterConfig):
        return clustering_run(config)
    assert isinstance(config, ClassifyConfig)
    return classification_run(config)


def title_of_system(config: RunConfig) -> str:
    """Name the system of a run, as the papers' tables do."""
    if isinstance(config, ClusterConfig):
        return METHODS[config.method].title
    assert isinstance(config, ClassifyConfig)
    return title_of(config.method, config.decorrelation.kind)


def _config(folder: RunFolder) -> MethodConfig:
    if not folder.config.is_file():
        raise UsageError(_no_run(folder.path))
    tree = read_yaml(folder.config)
    method = str(tree.get("method"))
    kinds: tuple[type[MethodConfig], ...] = (ClusterConfig, ClassifyConfig)
    for kind in kinds:
        if method in kind.methods():
            return validate(kind, tree)
    raise UsageError(
        f"{folder.config} names no known method ({method}): give the folder of a run, or install "
        "the package that adds the method"
    )


def _no_run(path: Path) -> str:
    """Say what is in a folder that is no run; of several runs, which they are."""
    runs = sorted(path.glob("*/config.yaml")) or sorted(path.glob("*/*/config.yaml"))
    if not runs and not RunPaths(path).study.is_file():
        return f"{path} holds no run (no config.yaml): give the folder of a run"
    several = f"{path} holds several runs: give the folders of runs inside"
    if not runs:
        return several
    inside = [run.parent for run in runs]
    names = first_of([run.relative_to(path) for run in inside], _MOST_NAMES)
    both = shlex.join(map(str, inside[:2]))
    return f"{several} ({names}), one or more, such as ccfcpp report {both}"


def _recorded_root(folder: RunFolder) -> str | None:
    """Folder of the data sets in the run's last session; None where ``$CCFCPP_DATA`` is set now."""
    sessions = folder.read_sessions()
    root = sessions[-1].get("data_root") if sessions else None
    if os.environ.get("CCFCPP_DATA") or not isinstance(root, str) or not Path(root).is_dir():
        return None
    return root


def _as_recorded(snapshot: Snapshot | None, folder: RunFolder) -> Snapshot | None:
    """Replace the clusters, or predicted classes, by those that a finished run has recorded.

    On another device or number of threads the model would assign a few images differently.
    """
    recorded = folder.read_arrays("assignments").get("cluster")
    if recorded is None:
        recorded = folder.read_arrays("predictions").get("predicted")
    if snapshot is None or recorded is None or not folder.summary.is_file():
        return snapshot
    return replace(snapshot, found=recorded[: len(snapshot.images)])


def _here(
    config: MethodConfig, data_root: str | None, recorded: str | None, encoder: str | None = None
) -> MethodConfig:
    """Adapt a configuration to this machine, which may lack a GPU or keep its data elsewhere.

    The folder of the data sets is the one that the user names, or that of the configuration, or the
    one that the run recorded.
    """
    changes: Json = {"device": "auto", "track": "none"}
    if config.compute.precision == "tf32":  # Only GPUs have it, and only training needs it.
        changes["compute"] = {"precision": "float32"}
    values = config.model_dump(mode="json")
    changes["data"] = {"root": data_root or values["data"]["root"] or recorded}
    if encoder and values["data"].get("encoder"):
        changes["data"]["encoder"] = encoder
    return validate(type(config), merge(values, changes))


def _holdings(experiment: ClusteringRun | ClassificationRun) -> Tensor | None:
    labels = experiment.data.labels
    if labels is None:
        return None
    sizes = torch.tensor(list(map(len, experiment.parts)))
    owners = torch.arange(len(sizes)).repeat_interleave(sizes)
    held = labels.cpu()[torch.cat(experiment.parts)]
    return numbers.counts_by(owners, held, len(sizes), len(experiment.data.classes))


Tables = Mapping[int, Tensor]
"""What clients have reported, by their numbers: images by class and cluster, int64 of shape
(classes, clusters or predicted classes)."""


def _told_holdings(tables: Tables, spec: RunSpec, members: Sequence[Member]) -> Tensor | None:
    """Images by client and class, int64 of shape (clients, classes).

    A client that has reported nothing has zeros. None where no client has reported anything,
    and in classification, where clients count test images.
    """
    if not tables or spec.command == "classify":
        return None
    held = torch.zeros(len(members), len(spec.classes), dtype=torch.int64)
    for row, member in enumerate(members):
        if member.id in tables:
            held[row] = tables[member.id].sum(dim=1)
    return held


def _told_snapshot(tables: Tables, spec: RunSpec) -> Snapshot | None:
    """Class and cluster of each image, restored from the counts; there are no images."""
    table = sum_of(tables)
    if table is None:
        return None
    classes, found = table.nonzero(as_tuple=True)
    times = table[classes, found]
    # Of a number that was to be found, the description of the run has the largest alone.
    sought = isinstance(spec.config.get("clusters"), str)
    clusters = int(found.max()) + 1 if sought else spec.clusters
    return Snapshot(
        images=torch.empty(0, *spec.image_shape, dtype=torch.uint8),
        representations=None,
        found=found.repeat_interleave(times),
        classes=classes.repeat_interleave(times),
        class_names=spec.classes,
        centroids=torch.empty(clusters, 0) if clusters else None,
    )
