"""Finished runs, and the labels that they have in tables and figures of the papers."""

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
"""Keys that tell one measured number of a run from its others, such as ``{"round": "3"}``."""

_CLASSIFIED = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "tiny-imagenet": "TinyImageNet"}
DOMAINS = {"office-caltech10": "Office-Caltech10", "domainnet": "DomainNet"}
"""Titles of the data sets that consist of domains, each in a folder of its own."""
_NETWORKS = {"mobilenetv2": "MobileNetV2", "resnet18": "ResNet18", "resnet32": "ResNet32"}
_FACT = re.compile(r"{(.+?)}")


@dataclass(frozen=True)
class Result:
    """A finished run: its configuration and its folder."""

    config: RunConfig
    folder: RunFolder

    @cached_property
    def summary(self) -> Tree:
        """Content of ``summary.json``; raises ``UsageError`` if the file is damaged."""
        return self.folder.read_summary()

    @cached_property
    def settings(self) -> Tree:
        """All settings by dotted key; defaults for those that the configuration does not have."""
        known = self.config.known_fields(self.config.model_dump())
        return {key: field.default for key, field in known.items()} | values_of(self.config)

    @cached_property
    def recorded(self) -> RecordedRun:
        """Everything recorded in the run's folder, for reports."""
        return read_run(self.folder.path)


def label(template: str, result: Result, facts: Facts | None = None) -> str:
    """Fill in a label's template, such as ``{images}, p = {partition.p}``, for a run.

    A name in braces is looked up in ``facts``, then in ``NAMED``, then among the run's settings by
    dotted key.
    """

    def fact(match: re.Match[str]) -> str:
        name = match[1]
        if facts and name in facts:
            return facts[name]
        return NAMED[name](result) if name in NAMED else format_number(result.settings[name])

    return _FACT.sub(fact, template)


def group_by_label(results: Sequence[Result], template: str) -> dict[str, list[Result]]:
    """Group runs by their labels: ``template`` is filled in for each, see ``label``."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(label(template, result), []).append(result)
    return groups


def select_lowest_seed(results: Sequence[Result]) -> list[Result]:
    """Return the runs with the lowest seed."""
    lowest = min(result.config.seed for result in results)
    return [result for result in results if result.config.seed == lowest]


def dataset_name(config: RunConfig) -> str:
    """Return the name of the data set, or the last part of its path if it is a folder."""
    return Path(config.dataset).name


def images(result: Result) -> str:
    """Return the title of a run's data set; with number and size of its images if set."""
    name = dataset_name(result.config)
    clustered = result.settings["method"] in METHODS
    title = ((DATASETS if clustered else _CLASSIFIED) | DOMAINS).get(name, name)
    parts = []
    if count := result.settings.get("data.images"):
        parts.append(f"{count:,} images")
    if size := result.settings["data.image_size"]:
        parts.append(f"{size} pixels a side")
    # Domains always have their size changed, to 256 pixels.
    return f"{title} ({', '.join(parts)})" if parts and name not in DOMAINS else title


def _method(result: Result) -> str:
    name = result.settings["method"]
    return METHODS[name].title if name in METHODS else CLASSIFIERS[name].title


def _partition(result: Result) -> str:
    """Describe a classification run's partition: classes per client, or Dirichlet's alpha."""
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
    "system": lambda result: _method(result) + " + FedDecorr" * (_term(result) == "feddecorr"),
    "term or method": lambda result: TERMS.get(_term(result)) or _method(result),
    "network": _network,
    "partition": _partition,
}
"""Names that templates of labels may use besides settings, with functions of a run that return
the text. ``system`` is the method, with ``+ FedDecorr`` if its loss has that term."""
