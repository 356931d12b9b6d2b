"""The runs behind the tables and figures of the CCFC++ paper, at full size and in minutes."""

from ccfcpp.clustering.methods import METHODS
from ccfcpp.papers.reproduction.plan import Block, Cells, Grid
from ccfcpp.papers.tables import SYSTEMS

SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
_PAIR = ("ccfc", "ccfc++")
_FEDERATED = tuple(name for name in SYSTEMS if not METHODS[name].centralised)
_CENTRALISED = tuple(name for name in SYSTEMS if METHODS[name].centralised)

_MNIST_PART = ("reproduce/mnist-part",)


def _all_systems(*datasets: str) -> Block:
    """Every system at every p; a centralised one once."""
    return Block(
        grid=(
            {"dataset": datasets, "method": _CENTRALISED},
            {"dataset": datasets, "method": _FEDERATED, "partition.p": SKEWS},
        )
    )


TABLES = (_all_systems("mnist", "fashion-mnist", "cifar10", "stl10"),)
TABLES_QUICK = (_all_systems("digits"),)

COLLAPSE = (Block(grid=({"dataset": ("mnist",), "method": ("ccfc",), "partition.p": SKEWS},)),)
COLLAPSE_QUICK = (
    Block(grid=({"dataset": ("digits",), "method": ("ccfc",), "partition.p": SKEWS},), seeds=3),
    Block(_MNIST_PART, ({"method": ("ccfc",), "partition.p": SKEWS},), seeds=3),
)

REGULARISER = (Block(grid=({"dataset": ("mnist",), "method": _PAIR, "partition.p": SKEWS},)),)
REGULARISER_QUICK = (
    Block(grid=({"dataset": ("digits",), "method": _PAIR, "partition.p": SKEWS},), seeds=3),
    Block(_MNIST_PART, ({"method": _PAIR, "partition.p": SKEWS},), seeds=3),
)

ETA = (
    Block(
        grid=(
            {"dataset": ("mnist",), "method": ("ccfc",), "partition.p": SKEWS},
            {
                "dataset": ("mnist",),
                "method": ("ccfc++",),
                "partition.p": SKEWS,
                "loss.eta": (0.001, 0.01, 0.1, 1.0),
            },
        )
    ),
)


def _eta_in_both_phases(eta: float) -> Cells:
    """Our presets for little data have the term in the pre-training rounds as well."""
    return {
        "method": ("ccfc++",),
        "partition.p": SKEWS,
        "loss.eta": (eta,),
        "loss.pretrain_eta": (eta,),
    }


_ETA_GRID: Grid = (
    {"method": ("ccfc",), "partition.p": SKEWS},
    *(_eta_in_both_phases(eta) for eta in (0.01, 0.1, 1.0, 10.0)),
)
ETA_QUICK = (
    Block(grid=tuple({"dataset": ("digits",), **grid} for grid in _ETA_GRID)),
    Block(_MNIST_PART, _ETA_GRID),
)

FAILURES = (
    Block(
        grid=(
            {
                "dataset": ("mnist",),
                "method": _PAIR,
                "partition.p": SKEWS,
                "availability.disconnection_rate": tuple(tenth / 10 for tenth in range(10)),
            },
        ),
        seeds=3,
    ),
)
_FAILURE_GRID: Cells = {
    "method": _PAIR,
    "availability.disconnection_rate": (0.0, 0.3, 0.6, 0.9),
}
FAILURES_QUICK = (
    Block(grid=({"dataset": ("digits",), "partition.p": (0.75,), **_FAILURE_GRID},), seeds=3),
    Block(_MNIST_PART, ({"partition.p": (0.0, 0.75), **_FAILURE_GRID},), seeds=3),
)
