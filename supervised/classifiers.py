"""Registry of the methods of federated classification."""

from typing import TYPE_CHECKING

from ccfcpp.core.registry import Registry

if TYPE_CHECKING:
    from supervised.methods.method import Method

CLASSIFIERS: "Registry[Method]" = Registry(
    "ccfcpp.classifiers",
    "method",
    {
        "fedavg": "supervised.methods.method:FEDAVG",
        "fedprox": "supervised.methods.fedprox:FEDPROX",
        "fedavgm": "supervised.methods.fedavgm:FEDAVGM",
        "moon": "supervised.methods.moon:MOON",
        "scaffold": "supervised.methods.scaffold:SCAFFOLD",
        "fednova": "supervised.methods.fednova:FEDNOVA",
        "fedbn": "supervised.methods.fedbn:FEDBN",
        "fedadam": "supervised.methods.adaptive:FEDADAM",
        "fedyogi": "supervised.methods.adaptive:FEDYOGI",
        "fedadagrad": "supervised.methods.adaptive:FEDADAGRAD",
        "fedrs": "supervised.methods.fedrs:FEDRS",
        "fedlc": "supervised.methods.fedlc:FEDLC",
        "fedsam": "supervised.methods.fedsam:FEDSAM",
        "fedexp": "supervised.methods.fedexp:FEDEXP",
    },
    "supervised.methods.method:Method",
)
"""All methods in the order of tables, followed by those of installed packages."""

_TERMS = {"feddecorr": "FedDecorr", "decov": "DeCov", "structured-decov": "Structured-DeCov"}
"""Names of the decorrelation terms."""


def title_of(method: str, decorrelation: str) -> str:
    """Title of a classifier: its method, and the decorrelation term in its loss.

    Args:
        method: A name in ``CLASSIFIERS``.
        decorrelation: Kind of the term, or ``none``.
    """
    term = "" if decorrelation == "none" else f" with {_TERMS[decorrelation]}"
    return CLASSIFIERS[method].title + term
