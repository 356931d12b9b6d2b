"""Registry of the methods of federated classification, and titles for tables."""

from typing import TYPE_CHECKING

from ccfcpp.core.registry import Registry

if TYPE_CHECKING:
    from supervised.methods.method import Method

CLASSIFIERS: "Registry[Method]" = Registry(
    "ccfcpp.classifiers",
    "method",
    {
        "fedavg": "supervised.methods.method:FEDAVG",
        "fedprox": "supervised.methods.gradients:FEDPROX",
        "fedavgm": "supervised.methods.server_optimizers:FEDAVGM",
        "moon": "supervised.methods.moon:MOON",
        "scaffold": "supervised.methods.scaffold:SCAFFOLD",
        "fednova": "supervised.methods.step_lengths:FEDNOVA",
        "fedbn": "supervised.methods.fedbn:FEDBN",
        "fedadam": "supervised.methods.server_optimizers:FEDADAM",
        "fedyogi": "supervised.methods.server_optimizers:FEDYOGI",
        "fedadagrad": "supervised.methods.server_optimizers:FEDADAGRAD",
        "fedrs": "supervised.methods.class_logits:FEDRS",
        "fedlc": "supervised.methods.class_logits:FEDLC",
        "fedsam": "supervised.methods.gradients:FEDSAM",
        "fedexp": "supervised.methods.step_lengths:FEDEXP",
    },
    "supervised.methods.method:Method",
)
"""All methods by name, in the order of tables, followed by those of installed plugins."""

TERMS = {"feddecorr": "FedDecorr", "decov": "DeCov", "structured-decov": "Structured-DeCov"}
"""Titles of the decorrelation terms, by ``decorrelation.kind``."""


def title_of(method: str, decorrelation: str) -> str:
    """Return a title such as ``FedAvg with FedDecorr`` from a method and ``decorrelation.kind``."""
    term = "" if decorrelation == "none" else f" with {TERMS[decorrelation]}"
    return CLASSIFIERS[method].title + term
