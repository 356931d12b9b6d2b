"""Federated classification on ccfcpp's engine: FedDecorr and the methods it is compared with.

``FederatedClassifier`` has scikit-learn's interface, ``run`` makes one run as ``ccfcpp classify``
does, and ``CLASSIFIERS`` maps names to methods. Each is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

import ccfcpp  # noqa: F401 - sets how OpenMP threads wait, before torch is imported

if TYPE_CHECKING:
    from supervised.api import run
    from supervised.classifiers import CLASSIFIERS
    from supervised.estimator import FederatedClassifier

__all__ = ["CLASSIFIERS", "FederatedClassifier", "run"]

_PLACES = {
    "CLASSIFIERS": "supervised.classifiers",
    "FederatedClassifier": "supervised.estimator",
    "run": "supervised.api",
}


def __getattr__(name: str) -> object:
    """Import a name of ``__all__`` when it is first used (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
