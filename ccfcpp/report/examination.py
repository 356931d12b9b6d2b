"""A run as its folder shows it, finished or not."""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import merge, read_yaml, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.report.embedding import Embedding, embed
from ccfcpp.report.errors import CannotDrawError
from ccfcpp.report.numbers import (
    counts_by,
    covariance,
    drawn_at_random,
    has_numbers,
    matched_classes,
)
from ccfcpp.report.remote import Told, unconnected
from ccfcpp.runs.experiment import Experiment, Snapshot
from ccfcpp.runs.folder import RunFolder
from supervised.classifiers import CLASSIFIERS, title_of
from supervised.config import ClassifyConfig
from supervised.experiment import ClassificationExperiment

_MOST_DIMENSIONS = 2048
"""Of points whose covariance is shown: more say nothing that can be seen, and take long."""
_MOST_NAMES = 5
"""Of runs in a message."""
_MOST_POINTS = 10_000
"""Points from which a covariance is taken."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """A run, and what its last checkpoint makes of the images.

    Attributes:
        path: Its folder.
        config: Its configuration.
        title: Its system's name in the papers' tables.
        planned: Number of its rounds, at most.
        log: A row a round, as in ``metrics.jsonl``.
        summary: Its results; None where it has not ended.
        facts: Its setting, as in a summary.
        sessions: Where it ran.
        clients: Name of each client.
        sizes: Images of each client.
        connected: Which clients took part and hold images.
        holdings: Images by client and class, int64 of shape (clients, classes); None without
            labels.
        clusters_images: Whether images are clustered; else they are classified.
        snapshot: What the last checkpoint makes of the images; None where there is none.
        spectra: Singular values of models, by name, as in ``spectra.npz``.
        remote: Whether the images are with clients on other machines.
        leakage: What attacks on it came to, as in ``leakage.json``; empty where there were none.
        label: What sets it apart from other runs in the same report.
    """

    path: Path
    config: RunConfig
    title: str
    planned: int
    log: list[Row]
    summary: Row | None
    facts: Row
    sessions: list[Row]
    clients: list[str]
    sizes: list[int]
    connected: frozenset[int]
    holdings: Tensor | None
    clusters_images: bool
    snapshot: Snapshot | None
    spectra: Mapping[str, Tensor]
    remote: bool = False
    leakage: Row = field(default_factory=dict)
    label: str = ""

    @property
    def seen(self) -> Snapshot:
        """What the last checkpoint makes of the images.

        Raises:
            CannotDrawError: There is no checkpoint.
        """
        if self.snapshot is None and self.remote:
            raise CannotDrawError("no client has told where its images are")
        if self.snapshot is None:
            raise CannotDrawError("the run ended before its first checkpoint")
        return self.snapshot

    @property
    def found(self) -> Tensor:
        """The cluster, or predicted class, of each image, int64 of shape (images,).

        Raises:
            CannotDrawError: None is known.
        """
        if self.seen.found is None:
            raise CannotDrawError("no clusters are known yet: the run was interrupted before")
        return self.seen.found

    @property
    def classes(self) -> Tensor:
        """The true class of each image, int64 of shape (images,).

        Raises:
            CannotDrawError: The images have no labels.
        """
        if self.seen.classes is None:
            raise CannotDrawError("the images have no labels")
        return self.seen.classes

    @property
    def points(self) -> Tensor:
        """Representation of each image, floats of shape (images, dimensions).

        Raises:
            CannotDrawError: There is none, or it has no numbers.
        """
        if self.remote:
            raise CannotDrawError("the images are with the clients, on other machines")
        points = self.seen.representations
        if points is None and not self.clusters_images:
            raise CannotDrawError(
                "each client has a model of its own: there is no one space in which all images lie"
            )
        if points is None:
            raise CannotDrawError("no representation is known yet: the run was interrupted before")
        if not has_numbers(points):
            raise CannotDrawError("the model has diverged: its representations hold NaN or Inf")
        return points

    @property
    def groups(self) -> int:
        """Number of clusters, or of predicted classes."""
        centroids = self.seen.centroids
        return len(self.seen.class_names) if centroids is None else len(centroids)

    @cached_property
    def matched(self) -> Tensor:
        """The class of each cluster after matching, −1 for none; int64 of shape (groups,)."""
        if not self.clusters_images:
            return torch.arange(self.groups)
        if self.seen.classes is None:
            return torch.full((self.groups,), -1)
        return matched_classes(self.seen.classes, self.found, self.groups)

    @cached_property
    def covariance(self) -> Tensor:
        """Of the representations, float64 of shape (dimensions, dimensions).

        Raises:
            CannotDrawError: There are none, or too many dimensions.
        """
        dimensions = self.points.shape[1]
        if dimensions > _MOST_DIMENSIONS:
            raise CannotDrawError(
                f"the space has {dimensions:,} dimensions, more than {_MOST_DIMENSIONS:,}"
            )
        return covariance(self.points[drawn_at_random(len(self.points), _MOST_POINTS)])

    @cached_property
    def embedding(self) -> Embedding:
        """The representations in the plane.

        Raises:
            CannotDrawError: There are none, or too few.
        """
        return embed(self.points, self.seen.by_angle)


def examine(path: Path, data_root: str | None = None) -> Run:
    """Open the folder of a run, without a change to it.

    Args:
        path: The folder.
        data_root: Folder of the data sets, where it is neither the run's nor ``$CCFCPP_DATA``.

    Raises:
        UsageError: It is not the folder of a run, or the run's images cannot be loaded.
    """
    folder = RunFolder(path)
    kind, config = _config(folder)
    if folder.deployment.exists():
        return _deployed(folder, kind, config)
    experiment = kind.make(_here(config, data_root, _recorded_root(folder)))
    names = {client.id: client.name for client in experiment.clients}
    clients = range(len(experiment.parts))
    summary = folder.read_summary() if folder.summary.is_file() else None
    return Run(
        path,
        config,
        kind.title(config),
        experiment.algorithm.rounds,
        folder.read_log(),
        summary,
        _facts(experiment, summary),
        folder.read_sessions(),
        [names.get(number, f"client {number}") for number in clients],
        list(map(len, experiment.parts)),
        frozenset(names),
        _holdings(experiment),
        kind is _CLUSTERING,
        _as_recorded(experiment.last_snapshot(folder), folder),
        folder.read_arrays("spectra"),
        leakage=folder.read_leakage(),
    )


def _deployed(folder: RunFolder, kind: "_Kind", config: RunConfig) -> Run:
    """A run whose images are with clients on other machines, by what they have told."""
    enrolment = Enrolment.load(folder.deployment)
    experiment = unconnected(enrolment, _here(config, None, None))
    told = Told.read(folder.read_arrays("counts"), enrolment.spec)
    summary = folder.read_summary() if folder.summary.is_file() else None
    return Run(
        folder.path,
        config,
        kind.title(config),
        experiment.algorithm.rounds,
        folder.read_log(),
        summary,
        _facts(experiment, summary),
        folder.read_sessions(),
        [member.name for member in enrolment.members],
        [member.samples for member in enrolment.members],
        frozenset(member.id for member in experiment.members),
        told.holdings(enrolment.members),
        kind is _CLUSTERING,
        told.snapshot,
        folder.read_arrays("spectra"),
        remote=True,
    )


@dataclass(frozen=True)
class _Kind:
    """A kind of runs: its methods, its configurations, what makes one and what one is called."""

    methods: Mapping[str, object]
    config: type[RunConfig]
    make: Callable[[Any], Experiment[Any]]
    title: Callable[[Any], str]


_CLUSTERING = _Kind(
    METHODS, ClusterConfig, ClusteringExperiment, lambda config: METHODS[config.method].title
)
_CLASSIFICATION = _Kind(
    CLASSIFIERS,
    ClassifyConfig,
    ClassificationExperiment,
    lambda config: title_of(config.method, config.decorrelation.kind),
)


def _config(folder: RunFolder) -> tuple[_Kind, RunConfig]:
    if not folder.config.is_file():
        inside = sorted({each.parent for each in folder.path.glob("*/config.yaml")})
        inside = inside or sorted({each.parent for each in folder.path.glob("*/*/config.yaml")})
        if inside or (folder.path / "study.yaml").is_file():
            raise UsageError(_several(folder.path, inside))
        raise UsageError(f"{folder.path} holds no run (no config.yaml): give the folder of a run")
    tree = read_yaml(folder.config)
    method = str(tree.get("method"))
    for kind in (_CLUSTERING, _CLASSIFICATION):
        if method in kind.methods:
            return kind, validate(kind.config, tree)
    raise UsageError(
        f"{folder.config} names no known method ({method}): give the folder of a run, or install "
        "the package that adds the method"
    )


def _several(path: Path, runs: list[Path]) -> str:
    """That a folder holds runs, which, and how to see them side by side."""
    if not runs:
        return f"{path} holds several runs: give the folders of runs inside"
    names = ", ".join(str(run.relative_to(path)) for run in runs[:_MOST_NAMES])
    more = f" and {len(runs) - _MOST_NAMES} more" if len(runs) > _MOST_NAMES else ""
    both = " ".join(shlex.quote(str(run)) for run in runs[:2])
    return (
        f"{path} holds several runs: give the folders of runs inside ({names}{more}), one or more, "
        f"such as ccfcpp report {both}"
    )


def _recorded_root(folder: RunFolder) -> str | None:
    """Where the run's last session found the data sets by ``$CCFCPP_DATA``, if nothing says now."""
    sessions = folder.read_sessions()
    root = sessions[-1].get("data_root") if sessions else None
    if os.environ.get("CCFCPP_DATA") or not isinstance(root, str) or not Path(root).is_dir():
        return None
    return root


def _facts(experiment: Experiment[Any], summary: Row | None) -> Row:
    """The setting: as the run has recorded it, which another machine may have made."""
    facts = experiment.describe()
    # How many clients were trained side by side is known where they were.
    recorded = {*facts, "cohort"}
    return facts | {key: value for key, value in (summary or {}).items() if key in recorded}


def _as_recorded(snapshot: Snapshot | None, folder: RunFolder) -> Snapshot | None:
    """With the clusters, or predicted classes, that a finished run has recorded.

    On another device or number of threads the model would put a few images elsewhere.
    """
    recorded = folder.read_arrays("assignments").get("cluster")
    if recorded is None:
        recorded = folder.read_arrays("predictions").get("predicted")
    if snapshot is None or recorded is None or not folder.summary.is_file():
        return snapshot
    return replace(snapshot, found=recorded[: len(snapshot.images)])


def _here(config: RunConfig, data_root: str | None, recorded: str | None) -> RunConfig:
    """The configuration for this machine, which may have no GPU, and its data elsewhere.

    Args:
        config: The run's.
        data_root: Folder of the data sets, if the user names one.
        recorded: Where they were, if the run's configuration does not say.
    """
    changes: Row = {"device": "auto", "tensorboard": False}
    if config.compute.precision == "tf32":  # which only GPUs have, and only training needs
        changes["compute"] = {"precision": "float32"}
    values = config.model_dump(mode="json")
    changes["data"] = {"root": data_root or values["data"]["root"] or recorded}
    return validate(type(config), merge(values, changes))


def _holdings(experiment: Experiment[Any]) -> Tensor | None:
    labels = experiment.data.labels
    if labels is None:
        return None
    sizes = torch.tensor(list(map(len, experiment.parts)))
    owners = torch.arange(len(sizes)).repeat_interleave(sizes)
    held = labels.cpu()[torch.cat(experiment.parts)]
    return counts_by(owners, held, len(sizes), len(experiment.data.classes))
