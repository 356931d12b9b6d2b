"""The methods of federated classification, by name."""

from typing import TYPE_CHECKING

from ccfcpp.core.registry import Registry

if TYPE_CHECKING:
    from supervised.methods.method import Method

CLASSIFIERS: "Registry[Method]" = Registry(
    "ccfcpp.classifiers",
    "method",
    {
        "fedavg": "supervised.methods.fedavg:FEDAVG",
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
"""All of them, in the order of tables; then those that installed packages add."""

_TERMS = {"feddecorr": "FedDecorr", "decov": "DeCov", "structured-decov": "Structured-DeCov"}
"""Names of the decorrelation terms."""


def title_of(method: str, decorrelation: str) -> str:
    """What a classifier is called: its method, and the term that is added to the method's loss.

    Args:
        method: A name in ``CLASSIFIERS``.
        decorrelation: The kind of the term; ``none`` for none.
    """
    term = "" if decorrelation == "none" else f" with {_TERMS[decorrelation]}"
    return CLASSIFIERS[method].title + term
