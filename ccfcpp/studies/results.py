"""Finished runs, and labels in the papers' words, to compare with the papers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import values_of
from ccfcpp.reports.run_reader import RecordedRun, read_run
from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies.score_tables import DATASETS
from ccfcpp.studies.tables import format_number
from supervised.classifiers import CLASSIFIERS, TERMS

Facts = Mapping[str, str]
"""Facts that distinguish one number of a run from others, such as ``{"round": "3"}``."""

_CLASSIFIED = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "tiny-imagenet": "TinyImageNet"}
DOMAINS = {"office-caltech10": "Office-Caltech10", "domainnet": "DomainNet"}
"""Data sets whose folders are domains; the papers have no name for others."""
_NETWORKS = {"mobilenetv2": "MobileNetV2", "resnet18": "ResNet18", "resnet32": "ResNet32"}
_FACT = re.compile(r"{(.+?)}")


@dataclass(frozen=True)
class Result:
    """A finished run: its configuration and its folder."""

    config: RunConfig
    folder: RunFolder

    @cached_property
    def summary(self) -> Tree:
        """The content of ``summary.json``; ``UsageError`` if it is damaged."""
        return self.folder.read_summary()

    @cached_property
    def settings(self) -> Tree:
        """The configuration by dotted key, with defaults for keys that it does not have."""
        known = self.config.known_fields(self.config.model_dump())
        return {key: field.default for key, field in known.items()} | values_of(self.config)

    @cached_property
    def recorded(self) -> RecordedRun:
        """The run as recorded in its folder."""
        return read_run(self.folder.path)


def label(template: str, result: Result, facts: Facts | None = None) -> str:
    """Return a run's label: a template such as ``{images}, p = {partition.p}``, filled in.

    Names in braces are those of ``facts``, which distinguish a number of the run, of ``NAMED``, and
    dotted keys of settings.
    """

    def fact(found: re.Match[str]) -> str:
        name = found[1]
        if facts and name in facts:
            return facts[name]
        return NAMED[name](result) if name in NAMED else format_number(result.settings[name])

    return _FACT.sub(fact, template)


def group_by_label(results: Sequence[Result], template: str) -> dict[str, list[Result]]:
    """Group runs by the label that ``template`` gives each of them."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(label(template, result), []).append(result)
    return groups


def select_lowest_seed(results: Sequence[Result]) -> list[Result]:
    """Return the runs whose seed is the lowest of all."""
    lowest = min(result.config.seed for result in results)
    return [result for result in results if result.config.seed == lowest]


def dataset_name(config: RunConfig) -> str:
    """Return the name of a data set, or of the folder of its images."""
    return Path(config.dataset).name


def images(result: Result) -> str:
    """Return the name of a run's images."""
    name = dataset_name(result.config)
    clustered = result.settings["method"] in METHODS
    title = ((DATASETS if clustered else _CLASSIFIED) | DOMAINS).get(name, name)
    parts = []
    if count := result.settings.get("data.images"):
        parts.append(f"{count:,} images")
    if size := result.settings["data.image_size"]:
        parts.append(f"{size} pixels a side")
    # The networks of the domain papers take 256 pixels.
    return f"{title} ({', '.join(parts)})" if parts and name not in DOMAINS else title


def _method(result: Result) -> str:
    name = result.settings["method"]
    return METHODS[name].title if name in METHODS else CLASSIFIERS[name].title


def _system(result: Result) -> str:
    return _method(result) + " + FedDecorr" * (_term(result) == "feddecorr")


def _partition(result: Result) -> str:
    """Describe the partition of images among clients for classification."""
    if result.settings["partition.kind"] == "classes":
        return f"{result.settings['partition.classes_per_client']} classes a client"
    return f"alpha = {format_number(result.settings['partition.alpha'])}"


def _term(result: Result) -> str:
    return str(result.settings["decorrelation.kind"])


def _network(result: Result) -> str:
    name: str = result.settings["model.name"]
    return _NETWORKS.get(name, name)


NAMED: Mapping[str, Callable[[Result], str]] = {
    "images": images,
    "method": _method,
    "system": _system,
    "term or method": lambda result: TERMS.get(_term(result)) or _method(result),
    "network": _network,
    "partition": _partition,
}
"""Names that labels may use besides settings: ``system`` is a classifier with FedDecorr or
without."""
