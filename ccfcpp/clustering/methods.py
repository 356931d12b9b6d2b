"""The systems of federated clustering, by name.

This module and those that describe a system import no network library, so that the command line can
list, configure and announce a system at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccfcpp.core.config import (
    PrecisionConfig,
    RunConfig,
    Section,
    Tree,
    Unused,
    all_used,
    fits_always,
    require,
)
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.permissions import Kind
from ccfcpp.core.registry import Registry

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
    from ccfcpp.core.data_kinds import DataKind

    AnySystem = ClusteringAlgorithm[Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """A registered system of federated clustering: its algorithm, settings and description.

    Attributes:
        title: Its name in tables.
        sends: What leaves a client, in words.
        make: Makes the algorithm for a problem.
        sections: Its sections of the configuration by name, besides those of every run.
        fixed: Settings that its name implies.
        ignores: Keys that it never reads, of sections that it shares with others.
        unused: Yields the settings that have no effect besides others, and what these need.
        check: Raises ``ValueError`` with one line if a configuration does not fit it.
        counts: Whether it can choose the number of clusters from the data, with the settings of a
            configuration.
        centralised: Whether the division among clients has no effect on it.
        summary: What it does, in one line of help.
        kinds: Kinds of data that leave a client, which its owner must allow. By default, images.
        more_kinds: Further kinds that leave a client with some settings.
        rounds: The dotted key of its number of rounds, which ``--rounds`` sets; empty if that
            number is fixed.
        round_steps: The dotted key of the steps in a round, if ``rounds`` counts steps.
        takes: The kinds of data that it clusters.
        soft: Whether it has probabilities or memberships of clusters.
    """

    title: str
    sends: str
    make: Callable[[Problem], AnySystem]
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)
    ignores: tuple[str, ...] = ()
    unused: Callable[[Any], Unused] = all_used
    check: Callable[[RunConfig], None] = fits_always
    counts: Callable[[RunConfig], bool] = lambda config: False
    centralised: bool = False
    summary: str = ""
    kinds: tuple[Kind, ...] = ("images",)
    more_kinds: Callable[[Tree], tuple[Kind, ...]] = lambda settings: ()
    rounds: str = ""
    round_steps: str = ""
    takes: tuple[DataKind, ...] = ("images",)
    soft: bool = False


def methods_for(kind: DataKind) -> list[str]:
    """Return the names of the systems that cluster a kind of data."""
    return [name for name, system in METHODS.items() if kind in system.takes]


def check_takes(method: str, kind: DataKind) -> None:
    """Refuse data of a kind that a system does not cluster.

    Raises:
        UsageError: The message names the systems that do.
    """
    if kind not in METHODS[method].takes:
        raise UsageError(
            KeyValue("method", method),
            f" does not cluster {kind}, and the data are {kind}: take one of "
            f"{', '.join(methods_for(kind))}",
        )


def without_tf32(config: RunConfig) -> None:
    """Refuse ``tf32``, which networks of synchronised steps do not have.

    Raises:
        ValueError: ``compute.precision`` is ``tf32``.
    """
    if config.section(PrecisionConfig).precision == "tf32":
        raise UsageError(
            KeyValue("compute.precision", "tf32"),
            f" is refused for {config.method}: give float32 or bfloat16",
        )


def unused_if_absent(key: str) -> Callable[[Any], Unused]:
    """Return the rule that a tolerance has no effect if clients may be absent."""

    def unused(config: RunConfig) -> Unused:
        if config.availability.dropout_rate:
            yield key, [require("availability.dropout_rate", 0)]
        if config.availability.sample_fraction < 1:
            yield key, [require("availability.sample_fraction", 1)]

    return unused


def lazy(module: str, kind: str, *others: str) -> Callable[[Problem], AnySystem]:
    """Return a function that makes a system, and imports it when it is first called.

    Args:
        module: The module of its algorithm.
        kind: The name of the algorithm's class.
        others: Names in the module of further arguments, after the problem.
    """

    def make(problem: Problem) -> AnySystem:
        kinds = importlib.import_module(module)
        made: AnySystem = getattr(kinds, kind)(problem, *(getattr(kinds, name) for name in others))
        return made

    return make


METHODS: Registry[System] = Registry(
    "ccfcpp.methods",
    "method",
    {
        "km": "ccfcpp.clustering.systems.synthetic.systems:KM",
        "fcm": "ccfcpp.clustering.systems.synthetic.systems:FCM",
        "k-fed": "ccfcpp.clustering.systems.shallow.systems:K_FED",
        "ffcm-avg": "ccfcpp.clustering.systems.shallow.systems:FFCM_AVG",
        "ffcm-km": "ccfcpp.clustering.systems.shallow.systems:FFCM_KM",
        "feddp-kmeans": "ccfcpp.clustering.systems.shallow.systems:FEDDP_KMEANS",
        "sda-fc-km": "ccfcpp.clustering.systems.synthetic.systems:SDA_FC_KM",
        "sda-fc-fcm": "ccfcpp.clustering.systems.synthetic.systems:SDA_FC_FCM",
        "ppfc-gan": "ccfcpp.clustering.systems.synthetic.systems:PPFC_GAN",
        "ccfc": "ccfcpp.clustering.systems.ccfc.systems:CCFC",
        "ccfc++": "ccfcpp.clustering.systems.ccfc.systems:CCFC_PLUS_PLUS",
        "fed-scan": "ccfcpp.clustering.systems.fed_scan.systems:FED_SCAN",
        "fed-emp": "ccfcpp.clustering.systems.fed_emp.systems:FED_EMP",
        "fed-km": "ccfcpp.clustering.systems.pooled.systems:FED_KM",
        "fed-fcm": "ccfcpp.clustering.systems.pooled.systems:FED_FCM",
        "fed-em": "ccfcpp.clustering.systems.pooled.systems:FED_EM",
    },
    "ccfcpp.clustering.methods:System",
)
"""All of them: those of the CCFC++ paper's tables in their order, ours, and those of packages."""
