"""The registry of federated clustering systems, by name.

This module, and the modules that describe a system, do not import PyTorch, so that the command line
can list and configure systems without delay.
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
    from ccfcpp.clustering.config import ClusterConfig
    from ccfcpp.core.data_kinds import DataKind

    AnyAlgorithm = ClusteringAlgorithm[Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """A registered system of federated clustering: its algorithm, settings and description.

    Attributes:
        title: Name of the system in tables.
        sends: What leaves a client, in words.
        make: Function that makes the algorithm from a ``Problem``.
        sections: Classes of the groups of settings (sections) that the system adds, by name.
        fixed: Settings that the system's name implies.
        ignores: Dotted keys of settings that the system never reads, in sections that it shares.
        unused: Function that yields the settings that have no effect in a configuration, with the
            settings that they would need.
        check: Function that raises ``ValueError``, with a message of one line, if a configuration
            does not fit the system.
        counts: Function that returns whether the system, with some configuration, can choose the
            number of clusters from the data.
        centralised: Whether the division among clients has no effect on the result.
        summary: What the system does, in one line of help.
        kinds: Kinds of data that leave a client, which its owner must allow; by default images.
        more_kinds: Function that returns further such kinds for some settings.
        rounds: Dotted key of the number of rounds, which ``--rounds`` sets; empty if it is fixed.
        round_steps: Dotted key of the steps in a round, if ``rounds`` counts steps.
        takes: Kinds of data that the system clusters.
        soft: Whether the system gives probabilities of clusters, or memberships in them.
    """

    title: str
    sends: str
    make: Callable[[Problem], AnyAlgorithm]
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
    """Return the names of the systems that can cluster a kind of data."""
    return [name for name, system in METHODS.items() if kind in system.takes]


def check_takes(method: str, kind: DataKind) -> None:
    """Check that a system can cluster a kind of data.

    Raises:
        UsageError: It cannot; the message names the systems that can.
    """
    if kind not in METHODS[method].takes:
        raise UsageError(
            KeyValue("method", method),
            f" does not cluster {kind}, and the data are {kind}: take one of "
            f"{', '.join(methods_for(kind))}",
        )


def without_tf32(config: RunConfig) -> None:
    """Check that the precision is not ``tf32``, which synchronised steps do not support.

    Raises:
        UsageError: ``compute.precision`` is ``tf32``.
    """
    if config.section(PrecisionConfig).precision == "tf32":
        raise UsageError(
            KeyValue("compute.precision", "tf32"),
            f" is refused for {config.method}: give float32 or bfloat16",
        )


def unused_if_absent(key: str) -> Callable[[Any], Unused]:
    """Return a function for ``System.unused`` that yields ``key`` if clients may be absent."""

    def unused(config: RunConfig) -> Unused:
        if config.availability.dropout_rate:
            yield key, [require("availability.dropout_rate", 0)]
        if config.availability.sample_fraction < 1:
            yield key, [require("availability.sample_fraction", 1)]

    return unused


def leaves_client(config: ClusterConfig, vectors: bool) -> str:
    """Return what leaves a client in a run, in words."""
    counts = ", counts of frequent categories" if config.vectors.categories else ""
    sends = METHODS[config.method].sends
    return (sends.replace("images", "vectors") if vectors else sends) + counts


def lazy(module: str, kind: str, *others: str) -> Callable[[Problem], AnyAlgorithm]:
    """Return a function that makes an algorithm and imports its module only when it is called.

    Args:
        module: Name of the module.
        kind: Name of the algorithm's class in the module.
        others: Names of objects in the module that the class is given after the problem.
    """

    def make(problem: Problem) -> AnyAlgorithm:
        loaded = importlib.import_module(module)
        arguments = (getattr(loaded, name) for name in others)
        algorithm: AnyAlgorithm = getattr(loaded, kind)(problem, *arguments)
        return algorithm

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
        "fed-dcn": "ccfcpp.clustering.systems.fed_dcn.systems:FED_DCN",
        "orchestra": "ccfcpp.clustering.systems.orchestra.systems:ORCHESTRA",
        "ccfc": "ccfcpp.clustering.systems.ccfc.systems:CCFC",
        "ccfc++": "ccfcpp.clustering.systems.ccfc.systems:CCFC_PLUS_PLUS",
        "fed-scan": "ccfcpp.clustering.systems.fed_scan.systems:FED_SCAN",
        "fed-emp": "ccfcpp.clustering.systems.fed_emp.systems:FED_EMP",
        "fed-km": "ccfcpp.clustering.systems.pooled.systems:FED_KM",
        "fed-fcm": "ccfcpp.clustering.systems.pooled.systems:FED_FCM",
        "fed-em": "ccfcpp.clustering.systems.pooled.systems:FED_EM",
        "spp-fgc": "ccfcpp.clustering.systems.spp_fgc.systems:SPP_FGC",
    },
    "ccfcpp.clustering.methods:System",
)
"""All systems: those in the CCFC++ paper's tables, our own, and those of installed packages."""
