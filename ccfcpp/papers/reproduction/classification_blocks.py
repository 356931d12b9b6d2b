"""The runs behind the tables and figures of the FedDecorr papers, at full size and in minutes."""

import math

from ccfcpp.papers.reproduction import digit_domains
from ccfcpp.papers.reproduction.plan import Block, Cells, ImageFolder, data_folder

_PLAIN, _BOTH = ("none",), ("none", "feddecorr")
_DIGITS = ("reproduce/digits",)
_COLLAPSE_ALPHAS = (0.01, 0.05, 0.25, math.inf)


def _all_methods(cells: Cells) -> Block:
    """The six methods of Tables 1 and 2, four of them with FedDecorr and without, on the digits."""
    averaged = ("fedavg", "fedprox", "fedavgm", "moon")
    return Block(
        _DIGITS,
        (
            {**cells, "method": ("scaffold", "fednova"), "decorrelation.kind": _PLAIN},
            {**cells, "method": averaged, "decorrelation.kind": _BOTH},
        ),
        seeds=3,
    )


TABLE_1 = (Block(("feddecorr/table1",), seeds=3),)
TABLE_1_QUICK = (_all_methods({"partition.alpha": (0.05, 0.1, 0.5, math.inf)}),)

_PATHOLOGICAL: Cells = {
    "partition.kind": ("pathological",),
    "partition.classes_per_client": (3, 4, 5),
}
TABLE_2 = (Block(("feddecorr/table2",), seeds=3),)
TABLE_2_QUICK = (_all_methods(_PATHOLOGICAL),)

TABLE_3 = tuple(
    Block((f"classify/{name}", "feddecorr/table3"), seeds=3, images=data_folder(name))
    for name in ("office-caltech10", "domainnet")
)
_DIGIT_DOMAINS = ImageFolder(
    digit_domains.NAME, lambda made, data_root: digit_domains.write_digit_domains(made)
)
TABLE_3_QUICK = (
    Block(("reproduce/digit-domains", "feddecorr/table3"), seeds=3, images=_DIGIT_DOMAINS),
)

TABLE_4 = (Block(("feddecorr/table4",), seeds=3),)
TABLE_4_QUICK = (
    Block(
        _DIGITS,
        (
            {
                "partition.clients": (10, 20),
                "partition.alpha": (0.1, 0.5),
                "decorrelation.kind": _BOTH,
            },
            {
                "partition.clients": (40,),
                "partition.alpha": (0.1, 0.5),
                "decorrelation.kind": _BOTH,
                "availability.sample_fraction": (0.2,),
                "training.rounds": (40,),
            },
        ),
        seeds=3,
    ),
)

TABLE_5 = (Block(("feddecorr/table5",), seeds=3),)
TABLE_5_QUICK = (
    Block(
        _DIGITS,
        (
            {
                "training.local_epochs": (1, 5, 10, 20),
                "partition.alpha": (0.05, 0.1),
                "decorrelation.kind": _BOTH,
            },
        ),
    ),
)

TABLE_6 = (Block(("feddecorr/table6",)),)
TABLE_6_QUICK = (
    Block(
        (*_DIGITS, "feddecorr/table6"),
        (
            {
                "dataset": ("digits",),
                "method": ("fedavg", "fedprox", "moon"),
                "decorrelation.kind": _PLAIN,
            },
            {"dataset": ("digits",), "method": ("fedavg",), "decorrelation.kind": ("feddecorr",)},
        ),
        seeds=3,
    ),
)

TABLE_7 = (Block(("feddecorr/table7",), seeds=3),)
TABLE_7_QUICK = (
    Block(
        _DIGITS,
        (
            {
                "partition.alpha": (0.05, 0.1, 0.5),
                "decorrelation.kind": ("none", "decov", "structured-decov", "feddecorr"),
            },
        ),
        seeds=3,
    ),
)

TABLE_8 = (Block(("feddecorr/table8",), seeds=3),)
# These networks take minutes; in fewer steps, or with more skew, they stay at chance.
TABLE_8_QUICK = (
    Block(
        _DIGITS,
        (
            {
                "model.name": ("mobilenetv2", "resnet18", "resnet32"),
                "partition.alpha": (0.5,),
                "decorrelation.kind": _BOTH,
                "training.rounds": (5,),
                "training.local_epochs": (5,),
            },
        ),
    ),
)

COLLAPSE = (
    Block(
        grid=(
            {
                "dataset": ("cifar100",),
                "partition.alpha": _COLLAPSE_ALPHAS,
                "decorrelation.kind": _PLAIN,
            },
        )
    ),
)
COLLAPSE_QUICK = (
    Block(
        _DIGITS,
        ({"partition.alpha": _COLLAPSE_ALPHAS, "decorrelation.kind": _PLAIN},),
        seeds=3,
    ),
)

REGULARISER = (
    Block(
        grid=(
            {
                "dataset": ("cifar100",),
                "partition.alpha": (0.01, 0.05),
                "decorrelation.kind": _BOTH,
            },
        )
    ),
)
REGULARISER_QUICK = (
    Block(
        _DIGITS,
        ({"partition.alpha": (0.01, 0.05), "decorrelation.kind": _BOTH},),
        seeds=3,
    ),
)

CURVES = (
    Block(
        grid=(
            {
                "dataset": ("tiny-imagenet",),
                "partition.alpha": (0.05, 0.1, 0.5),
                "decorrelation.kind": _BOTH,
            },
            {
                "dataset": ("tiny-imagenet",),
                "partition.kind": ("pathological",),
                "partition.classes_per_client": (80, 90, 100),
                "decorrelation.kind": _BOTH,
            },
        ),
        seeds=3,
    ),
)
CURVES_QUICK = (
    Block(
        _DIGITS,
        (
            {"partition.alpha": (0.05, 0.1, 0.5), "decorrelation.kind": _BOTH},
            {**_PATHOLOGICAL, "decorrelation.kind": _BOTH},
        ),
        seeds=3,
    ),
)

BETA = (Block(("feddecorr/figure9",), seeds=3),)
BETA_QUICK = (
    Block(
        _DIGITS,
        (
            {"partition.alpha": (0.05, 0.1), "decorrelation.kind": _PLAIN},
            {
                "partition.alpha": (0.05, 0.1),
                "decorrelation.kind": ("feddecorr",),
                "decorrelation.beta": (0.01, 0.05, 0.1, 0.2, 0.3),
            },
        ),
        seeds=3,
    ),
)

# --- the ICLR paper, where the later one has no such table or figure ---

ICLR_TABLE_3 = (Block(("feddecorr/iclr-table3",), seeds=3),)
ICLR_TABLE_10 = (Block(("feddecorr/iclr-table10",), seeds=3),)
ICLR_TABLE_10_QUICK = (
    Block(
        _DIGITS,
        (
            {
                "partition.kind": ("pathological",),
                "partition.classes_per_client": (2, 3),
                "decorrelation.kind": _BOTH,
            },
        ),
        seeds=3,
    ),
)

_OTHER_METHODS: Cells = {
    "method": ("fedavgm", "fedprox", "moon"),
    "partition.alpha": _COLLAPSE_ALPHAS,
    "decorrelation.kind": _PLAIN,
}
OTHER_METHODS = (Block(grid=({"dataset": ("cifar100",), **_OTHER_METHODS},)),)
OTHER_METHODS_QUICK = (Block(_DIGITS, (_OTHER_METHODS,), seeds=3),)

_OTHER_NETWORKS: Cells = {
    "model.name": ("resnet32", "resnet18"),
    "partition.alpha": _COLLAPSE_ALPHAS,
    "decorrelation.kind": _PLAIN,
}
OTHER_NETWORKS = (Block(grid=({"dataset": ("cifar100",), **_OTHER_NETWORKS},)),)
OTHER_NETWORKS_QUICK = (
    Block(
        _DIGITS,
        (
            {
                **_OTHER_NETWORKS,
                "partition.alpha": (0.05, math.inf),
                "training.rounds": (5,),
                "training.local_epochs": (2,),
            },
        ),
    ),
)

_OTHER_IMAGES: Cells = {"partition.alpha": _COLLAPSE_ALPHAS, "decorrelation.kind": _PLAIN}
OTHER_IMAGES = (Block(grid=({"dataset": ("cifar10", "tiny-imagenet"), **_OTHER_IMAGES},)),)
OTHER_IMAGES_QUICK = (
    *COLLAPSE_QUICK,
    Block(
        grid=(
            {
                "dataset": ("mnist",),
                "data.train_images": (2000,),
                "data.test_images": (1000,),
                "training.rounds": (10,),
                **_OTHER_IMAGES,
            },
        ),
        seeds=3,
    ),
)

_TERM_BY_EPOCH: Cells = {
    "partition.alpha": (0.5,),
    "decorrelation.kind": ("feddecorr",),
    "decorrelation.log_epochs": (True,),
    "training.local_epochs": (10,),
    "training.rounds": (1,),
}
TERM_BY_EPOCH = (Block(grid=({"dataset": ("cifar10",), **_TERM_BY_EPOCH},)),)
TERM_BY_EPOCH_QUICK = (Block(_DIGITS, (_TERM_BY_EPOCH,)),)

# --- Figure 1 of the TPAMI paper: its degree of skew is not printed ---

_GLANCE: tuple[Cells, ...] = (
    {"partition.alpha": (0.05,), "decorrelation.kind": _BOTH},
    {"partition.alpha": (math.inf,), "decorrelation.kind": _PLAIN},
)
AT_A_GLANCE = (
    Block(
        grid=tuple(
            {"dataset": ("cifar10",), "model.name": ("resnet20",), **cells} for cells in _GLANCE
        )
    ),
)
AT_A_GLANCE_QUICK = (Block(_DIGITS, _GLANCE, seeds=3),)
