"""The systems of federated clustering, by name.

This module and those that describe a system import no network library: the command line can list,
configure and announce a system at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccfcpp.core.config import Section, Tree, fits_always
from ccfcpp.core.errors import UsageError
from ccfcpp.core.registry import Registry
from ccfcpp.core.sending import Kind

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem


@dataclass(frozen=True)
class System:
    """A system of federated clustering: all that has to be said to add one.

    Attributes:
        title: Its name in tables.
        sends: What leaves a client, in words.
        make: Makes the algorithm for a problem.
        sections: The parts of the configuration that it heeds, by name, beside those of every run.
        fixed: Settings that it brings where it is named.
        check: Raises ``ValueError`` with one line where a configuration does not fit it.
        centralised: Whether the division among clients means nothing to it.
        summary: What it does, in one line of help.
        kinds: What leaves a client, in kinds that its owner must allow. A system that does not say
            is taken to send images.
        rounds: The dotted key of its number of rounds, which ``--rounds`` sets; empty where that
            number is fixed.
        round_steps: The dotted key of the steps in a round, where ``rounds`` counts steps.
    """

    title: str
    sends: str
    make: Callable[[Problem], ClusteringAlgorithm[Any]]
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)
    check: Callable[[Any], None] = fits_always
    centralised: bool = False
    summary: str = ""
    kinds: tuple[Kind, ...] = ("images",)
    rounds: str = ""
    round_steps: str = ""


METHODS: Registry[System] = Registry(
    "ccfcpp.methods",
    "method",
    {
        "km": "ccfcpp.clustering.synthetic.systems:KM",
        "fcm": "ccfcpp.clustering.synthetic.systems:FCM",
        "k-fed": "ccfcpp.clustering.shallow.systems:K_FED",
        "ffcm-avg": "ccfcpp.clustering.shallow.systems:FFCM_AVG",
        "ffcm-km": "ccfcpp.clustering.shallow.systems:FFCM_KM",
        "sda-fc-km": "ccfcpp.clustering.synthetic.systems:SDA_FC_KM",
        "sda-fc-fcm": "ccfcpp.clustering.synthetic.systems:SDA_FC_FCM",
        "ppfc-gan": "ccfcpp.clustering.synthetic.systems:PPFC_GAN",
        "ccfc": "ccfcpp.clustering.ccfc.systems:CCFC",
        "ccfc++": "ccfcpp.clustering.ccfc.systems:CCFC_PLUS_PLUS",
        "fed-scan": "ccfcpp.clustering.scan.systems:FED_SCAN",
    },
    "ccfcpp.clustering.methods:System",
)
"""All of them: those of the CCFC++ paper's tables in their order, ours, and those of packages."""


def refuse_unused(keys: Sequence[str], methods: Sequence[str]) -> None:
    """Refuse settings that no system of a run heeds.

    Args:
        keys: Dotted keys that the user gave.
        methods: Names of the systems.

    Raises:
        UsageError: One of the keys has no effect.
    """
    known = {name: METHODS[name] for name in dict.fromkeys([*METHODS.own(), *methods])}
    special = {section for system in known.values() for section in system.sections}
    heeded = {section for name in methods for section in known[name].sections}
    for key in keys:
        part = key.partition(".")[0]
        if part in special - heeded:
            users = [name for name, system in known.items() if part in system.sections]
            raise UsageError(
                f"{key} has no effect on {', '.join(methods)}: leave it out, or take one of "
                f"{', '.join(users)}"
            )
