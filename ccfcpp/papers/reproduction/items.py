"""All tables and figures, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.papers.reproduction.findings import Findings
from ccfcpp.papers.reproduction.plan import Block
from ccfcpp.papers.reproduction.results import Result
from ccfcpp.runs.experiment import Experiment
from supervised.config import ClassifyConfig
from supervised.experiment import ClassificationExperiment


@dataclass(frozen=True)
class Command:
    """What runs are made by.

    Attributes:
        config: The kind of their configurations.
        presets: Folder of the data sets' presets.
        make: Makes a run.
        base: Settings of all runs, under those of a table.
    """

    config: type[RunConfig]
    presets: str
    make: Callable[[Any], Experiment[Any]]
    base: Tree = field(default_factory=dict)


CLUSTER = Command(ClusterConfig, "cluster", ClusteringExperiment, {"preset": "published"})
CLASSIFY = Command(ClassifyConfig, "classify", ClassificationExperiment)


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper.

    Attributes:
        title: What it shows, and where.
        command: What its runs are made by.
        full: Its runs at the paper's size.
        quick: Its runs on little data.
        find: From finished runs to tables, figures and statements that held or did not.
        timed: Whether it measures time, so that its runs have the machine for themselves.
    """

    title: str
    command: Command
    full: Sequence[Block]
    quick: Sequence[Block]
    find: Callable[[Sequence[Result]], Findings]
    timed: bool = False
