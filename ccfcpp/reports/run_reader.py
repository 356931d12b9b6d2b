"""Reader of run folders, finished or not."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import read_yaml, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import expand_table, sum_tables
from ccfcpp.core.tables import read_csv_rows
from ccfcpp.core.units import list_first
from ccfcpp.reports.statistics import CannotDrawError, matched_classes, tsne
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import Json, RunPaths, RunSetting
from ccfcpp.runs.report_samples import MOST_DIMENSIONS
from supervised.classifiers import title_of
from supervised.config import ClassifyConfig

_MOST_NAMES = 5
"""Most runs that a message names."""
_EARLIER = "an earlier version of ccfcpp made the run, and did not record it"


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedRun:
    """A run as recorded in its folder; nothing is recomputed, and no data set is opened.

    Attributes:
        config: Its configuration.
        title: Name of its system in the papers' tables.
        log: One row for each round, as in ``metrics.jsonl``.
        summary: Results; None if the run has not ended.
        setting: Facts, clients and classes; None if an earlier version made the run.
        sessions: The environment of each session of the run.
        images: Facts on each image by name, as in ``assignments.npz`` or
            ``predictions.npz``; empty before the run was stopped or has ended.
        names: Name of each image's file; empty if images have none.
        shown: Representations and images for figures, as in ``shown.npz``.
        spectra: Singular values of models, by name, as in ``spectra.npz``.
        remote: Whether the images are held by clients on other machines.
        tables: Contingency tables that these clients reported, by the client's number: int64 of
            shape (classes, clusters or predicted classes).
        profile: A description of the clusters by the columns of a table, as in ``profile.csv``.
        leakage: Results of attacks on the run, as in ``leakage.json``; empty if there were none.
        label: Name that distinguishes the run from others in the same report.
    """

    path: Path
    config: RunConfig
    title: str
    log: list[Json]
    summary: Json | None
    setting: RunSetting | None
    sessions: list[Json]
    images: Mapping[str, Tensor]
    names: tuple[str, ...]
    shown: Mapping[str, Tensor]
    spectra: Mapping[str, Tensor]
    remote: bool
    tables: Mapping[int, Tensor]
    profile: Sequence[Mapping[str, str]]
    leakage: Json
    label: str = ""

    @property
    def clusters_images(self) -> bool:
        """Whether the run clusters images; else it classifies them."""
        return isinstance(self.config, ClusterConfig)

    @property
    def planned(self) -> int:
        """Planned number of rounds; if it is not recorded, the number of rounds that were run."""
        return self.setting.planned if self.setting else len(self.log)

    @cached_property
    def facts(self) -> Json:
        """Facts on data and clients, as in the summary; empty for a run by an earlier version."""
        if self.setting is None:
            return {}
        # The number of clients trained side by side is known only where they were trained.
        recorded = {*self.setting.described, "cohort"}
        summary = self.summary or {}
        return self.setting.described | {k: v for k, v in summary.items() if k in recorded}

    @property
    def _known_setting(self) -> RunSetting:
        if self.setting is None:
            raise CannotDrawError(_EARLIER)
        return self.setting

    @cached_property
    def clients(self) -> dict[int, str]:
        """Name of each client, by its number."""
        return {int(number): name for number, name in self._known_setting.clients.items()}

    def client_name(self, number: int) -> str:
        """Return the name of a client, or its number if names are not recorded."""
        return self.clients[number] if self.setting else f"client {number}"

    @cached_property
    def connected(self) -> frozenset[int]:
        """Numbers of the clients that take part and hold images."""
        return frozenset(self._known_setting.connected)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in order."""
        return self._known_setting.classes

    @cached_property
    def holdings(self) -> Tensor:
        """Numbers of images by client and class, int64 of shape (clients, classes).

        A client on another machine that has reported nothing has zeros.
        """
        if self.remote:
            none = torch.zeros(len(self.class_names), 1, dtype=torch.int64)
            # The tables of a classification count test images.
            if not self.tables or not self.clusters_images:
                raise CannotDrawError("no client has reported the classes of its images")
            return torch.stack([self.tables.get(n, none).sum(dim=1) for n in self.clients])
        if self._known_setting.holdings is None:
            raise CannotDrawError("the images have no labels")
        return torch.tensor(self._known_setting.holdings)

    @property
    def has_labels(self) -> bool:
        """Whether classes of images are known."""
        return bool(self.tables) or "class" in self.images

    @cached_property
    def _reported_samples(self) -> tuple[Tensor, Tensor]:
        table = sum_tables(self.tables)
        if table is None:
            raise CannotDrawError("no client has reported the clusters of its images")
        return expand_table(table)

    def values_of_images(self, name: str, missing: str) -> Tensor:
        """Return the array ``name`` of ``images``, such as ``distance``: a value for each image.

        Raises:
            CannotDrawError: It is missing; ``missing`` is the reason if other arrays are there.
        """
        if self.remote:
            raise CannotDrawError("clients on other machines keep the clusters of their images")
        if not self.images:
            raise CannotDrawError(_EARLIER if self.summary else "the run has not ended")
        if name not in self.images:
            raise CannotDrawError(missing)
        return self.images[name]

    @property
    def labels(self) -> Tensor:
        """The cluster, or predicted class, of each image, int64 of shape (images,)."""
        if self.remote:
            return self._reported_samples[1]
        name = "cluster" if self.clusters_images else "predicted"
        return self.values_of_images(
            name, "no clusters are known yet: the run was interrupted before"
        )

    @property
    def classes(self) -> Tensor:
        """The true class of each image, int64 of shape (images,)."""
        if self.remote:
            return self._reported_samples[0]
        return self.values_of_images("class", "the images have no labels")

    @property
    def by_angle(self) -> bool:
        """Whether images were assigned by cosine similarity; else by Euclidean distance."""
        return bool(self.shown.get("by_angle", False))

    def representations(self, name: str) -> Tensor:
        """Return ``points``, ``covariance`` or ``singular_values`` of a run's representations.

        Raises:
            CannotDrawError: It is missing, or holds NaN or Inf.
        """
        if self.remote:
            raise CannotDrawError("the images are with the clients, on other machines")
        if not self.images or (self.summary and not self.setting):
            raise CannotDrawError(_EARLIER if self.summary else "the run has not ended")
        if "points" not in self.shown:
            raise CannotDrawError(
                "no representation is known yet: the run was interrupted before"
                if self.clusters_images
                else "each client has its own model: there is no common space of all images"
            )
        if name not in self.shown:
            dimensions = int(self.shown["dimensions"])
            raise CannotDrawError(
                f"the space has {dimensions:,} dimensions, more than {MOST_DIMENSIONS:,}"
            )
        if not self.shown[name].isfinite().all():
            raise CannotDrawError("the model has diverged: its representations hold NaN or Inf")
        return self.shown[name]

    @property
    def clusters(self) -> int:
        """Number of clusters k that the run was asked for, or that it chose."""
        facts = self.facts or self.summary
        if not facts:
            raise CannotDrawError(_EARLIER)
        return int(facts["clusters"])

    @property
    def groups(self) -> int:
        """Number of clusters, or, if the run classifies images, of classes."""
        if not self.clusters_images:
            return len(self.class_names)
        return self.clusters if self.summary else int(self.labels.max()) + 1

    @cached_property
    def matched(self) -> Tensor:
        """The class of each cluster after matching, −1 for none; int64 of shape (groups,)."""
        if not self.clusters_images:
            return torch.arange(self.groups)
        if not self.has_labels:
            return torch.full((self.groups,), -1)
        return matched_classes(self.classes, self.labels, self.groups)

    @cached_property
    def embedding(self) -> NDArray[np.float64]:
        """Places in the plane, by t-SNE, of the images in ``shown["index"]``: (images, 2)."""
        return tsne(self.representations("points"), self.by_angle)


def read_run(path: Path) -> RecordedRun:
    """Read the folder of a run.

    Raises:
        UsageError: It is not the folder of a run, or a file in it is damaged.
    """
    folder = RunFolder(path)
    config = _config(folder)
    counts = folder.read_arrays("counts")
    return RecordedRun(
        path=path,
        config=config,
        title=title_of_system(config),
        log=folder.read_log(),
        summary=folder.read_summary() if folder.summary.is_file() else None,
        setting=folder.read_setting(),
        sessions=folder.read_sessions(),
        images=folder.read_arrays("assignments") or _predictions(folder, config),
        names=folder.read_texts("assignments", "name"),
        shown=folder.read_arrays("shown"),
        spectra=folder.read_arrays("spectra"),
        remote=folder.deployment.exists(),
        tables=dict(zip(counts["client"].tolist(), counts["table"], strict=True)) if counts else {},
        profile=read_csv_rows(path / "profile.csv"),
        leakage=folder.read_leakage(),
    )


def _predictions(folder: RunFolder, config: RunConfig) -> Mapping[str, Tensor]:
    """Return arrays on a classifier's test images by name, with one prediction for each image."""
    arrays = folder.read_arrays("predictions")
    if not arrays or not isinstance(config, ClassifyConfig) or config.partition.kind == "domain":
        return arrays
    # If clients' own models have the same test images, only the first one's predictions count.
    first = arrays["test_set"] == 0
    return {name: values[first] for name, values in arrays.items()}


def title_of_system(config: RunConfig) -> str:
    """Return the name of a run's system (its method) in the papers' tables."""
    if isinstance(config, ClusterConfig):
        return METHODS[config.method].title
    assert isinstance(config, ClassifyConfig)
    return title_of(config.method, config.decorrelation.kind)


def _config(folder: RunFolder) -> RunConfig:
    if not folder.config.is_file():
        raise UsageError(_no_run(folder.path))
    tree = read_yaml(folder.config)
    method = str(tree.get("method"))
    kinds: tuple[type[RunConfig], ...] = (ClusterConfig, ClassifyConfig)
    for kind in kinds:
        if method in kind.methods():
            return validate(kind, tree)
    raise UsageError(
        f"{folder.config} names no known method ({method}): give the folder of a run, or install "
        "the package that adds the method"
    )


def _no_run(path: Path) -> str:
    """Return the message that a folder is no run; it names the runs inside, if any."""
    runs = sorted(path.glob("*/config.yaml")) or sorted(path.glob("*/*/config.yaml"))
    if not runs and not RunPaths(path).study.is_file():
        return f"{path} holds no run (no config.yaml): give the folder of a run"
    several = f"{path} holds several runs: give the folders of runs inside"
    if not runs:
        return several
    inside = [run.parent for run in runs]
    names = list_first([run.relative_to(path) for run in inside], _MOST_NAMES)
    both = shlex.join(map(str, inside[:2]))
    return f"{several} ({names}), one or more, such as ccfcpp report {both}"
