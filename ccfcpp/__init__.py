"""Federated clustering of images, vectors and tables: CCFC++ and other systems, on one engine.

``FederatedClustering`` clusters images or vectors in memory with scikit-learn's interface. ``run``
does what ``ccfcpp cluster`` does, ``compare`` and ``report`` what the commands of these names do.
``load`` reads a data set of images, ``load_model`` a saved model; ``METHODS`` has the systems by
name. Each is imported when it is first used, so that importing this package takes almost no time.
"""

import importlib
import os
from typing import TYPE_CHECKING

from ccfcpp.core.version import VERSION

if TYPE_CHECKING:
    from ccfcpp.clustering.api import run
    from ccfcpp.clustering.estimator import FederatedClustering
    from ccfcpp.clustering.methods import METHODS
    from ccfcpp.clustering.model import load_model
    from ccfcpp.data.open import load
    from ccfcpp.studies.compare import compare
    from ccfcpp.studies.report import report

# With other work beside, OpenMP threads that spin while they wait make a run take about twice as
# long (docs/performance.md). OpenMP reads this when torch is imported.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = VERSION

__all__ = [
    "METHODS",
    "FederatedClustering",
    "__version__",
    "compare",
    "load",
    "load_model",
    "report",
    "run",
]

_PLACES = {
    "METHODS": "ccfcpp.clustering.methods",
    "FederatedClustering": "ccfcpp.clustering.estimator",
    "compare": "ccfcpp.studies.compare",
    "load": "ccfcpp.data.open",
    "load_model": "ccfcpp.clustering.model",
    "report": "ccfcpp.studies.report",
    "run": "ccfcpp.clustering.api",
}


def __getattr__(name: str) -> object:
    """Import a name of ``__all__`` when it is first used (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """Return all public names, also those that are not imported yet."""
    return sorted([*globals(), *__all__])
