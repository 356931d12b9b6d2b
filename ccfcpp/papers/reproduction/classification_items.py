"""The FedDecorr papers: TPAMI, Tables 1 to 8, Figures 1 to 9; ICLR, what only that one has."""

from collections.abc import Callable, Sequence
from functools import partial

from ccfcpp.papers.reproduction import classification_blocks as blocks
from ccfcpp.papers.reproduction import classification_figures as figures
from ccfcpp.papers.reproduction import classification_tables as tables
from ccfcpp.papers.reproduction.findings import Findings, global_spectrum, local_spectrum
from ccfcpp.papers.reproduction.items import CLASSIFY, Item
from ccfcpp.papers.reproduction.labels import images_and_method, images_and_network
from ccfcpp.papers.reproduction.plan import Block
from ccfcpp.papers.reproduction.published import accuracy_table, iclr_table
from ccfcpp.papers.reproduction.results import Result, setting


def _item(
    title: str,
    runs: tuple[Sequence[Block], Sequence[Block]],
    find: Callable[[Sequence[Result]], Findings],
    timed: bool = False,
) -> Item:
    return Item(f"FedDecorr, {title}", CLASSIFY, *runs, find, timed)


_global_collapse = partial(figures.collapse, "effective_rank", global_spectrum)
_COLLAPSE = blocks.COLLAPSE, blocks.COLLAPSE_QUICK
_REGULARISER = blocks.REGULARISER, blocks.REGULARISER_QUICK

ITEMS = {
    "feddecorr-table1": _item(
        "Table 1: Dirichlet partition",
        (blocks.TABLE_1, blocks.TABLE_1_QUICK),
        partial(tables.heterogeneity, 1, tables.alpha),
    ),
    "feddecorr-table2": _item(
        "Table 2: pathological partition",
        (blocks.TABLE_2, blocks.TABLE_2_QUICK),
        partial(tables.heterogeneity, 2, setting("partition.classes_per_client")),
    ),
    "feddecorr-table3": _item(
        "Table 3: domains", (blocks.TABLE_3, blocks.TABLE_3_QUICK), tables.domains
    ),
    "feddecorr-table4": _item(
        "Table 4: number of clients",
        (blocks.TABLE_4, blocks.TABLE_4_QUICK),
        partial(tables.clients, accuracy_table(4)),
    ),
    "feddecorr-table5": _item(
        "Table 5: local epochs", (blocks.TABLE_5, blocks.TABLE_5_QUICK), tables.epochs
    ),
    "feddecorr-table6": _item(
        "Table 6: time of a round", (blocks.TABLE_6, blocks.TABLE_6_QUICK), tables.times, timed=True
    ),
    "feddecorr-table7": _item(
        "Table 7: decorrelation terms", (blocks.TABLE_7, blocks.TABLE_7_QUICK), tables.terms
    ),
    "feddecorr-table8": _item(
        "Table 8: networks", (blocks.TABLE_8, blocks.TABLE_8_QUICK), tables.networks
    ),
    "feddecorr-figure1": _item(
        "Figure 1: collapse at a glance",
        (blocks.AT_A_GLANCE, blocks.AT_A_GLANCE_QUICK),
        figures.at_a_glance,
    ),
    "feddecorr-figure2": _item(
        "Figure 2: collapse of the global model",
        _COLLAPSE,
        _global_collapse,
    ),
    "feddecorr-figure3": _item(
        "Figure 3: collapse of the local models",
        _COLLAPSE,
        partial(figures.collapse, "local_effective_rank", local_spectrum),
    ),
    "feddecorr-figure4": _item("Figure 4: local and global spectra", _COLLAPSE, figures.gap),
    "feddecorr-figure5": _item(
        "Figure 5: FedDecorr on local models",
        _REGULARISER,
        partial(figures.regulariser, "local models", "local_effective_rank", local_spectrum),
    ),
    "feddecorr-figure6": _item("Figure 6: FedDecorr on the gap", _REGULARISER, figures.closed_gap),
    "feddecorr-figure7": _item(
        "Figure 7: FedDecorr on the global model",
        _REGULARISER,
        partial(figures.regulariser, "the global model", "effective_rank", global_spectrum),
    ),
    "feddecorr-figure8": _item(
        "Figure 8: accuracy by round", (blocks.CURVES, blocks.CURVES_QUICK), figures.learning_curves
    ),
    "feddecorr-figure9": _item(
        "Figure 9: the weight beta", (blocks.BETA, blocks.BETA_QUICK), figures.beta
    ),
    "feddecorr-iclr-table3": _item(
        "ICLR, Table 3: number of clients",
        (blocks.ICLR_TABLE_3, blocks.TABLE_4_QUICK),
        partial(tables.clients, iclr_table(3)),
    ),
    "feddecorr-iclr-table10": _item(
        "ICLR, Table 10: pathological partition",
        (blocks.ICLR_TABLE_10, blocks.ICLR_TABLE_10_QUICK),
        tables.few_classes,
    ),
    "feddecorr-iclr-figure7": _item(
        "ICLR, Figure 7: collapse with other methods",
        (blocks.OTHER_METHODS, blocks.OTHER_METHODS_QUICK),
        partial(_global_collapse, panel=images_and_method),
    ),
    "feddecorr-iclr-figure8": _item(
        "ICLR, Figure 8: collapse of other networks",
        (blocks.OTHER_NETWORKS, blocks.OTHER_NETWORKS_QUICK),
        partial(_global_collapse, panel=images_and_network),
    ),
    "feddecorr-iclr-figure9": _item(
        "ICLR, Figure 9: collapse on other images",
        (blocks.OTHER_IMAGES, blocks.OTHER_IMAGES_QUICK),
        _global_collapse,
    ),
    "feddecorr-iclr-figure10": _item(
        "ICLR, Figure 10: collapse of the other clients' models", _COLLAPSE, figures.other_clients
    ),
    "feddecorr-iclr-figure11": _item(
        "ICLR, Figure 11: the term by local epoch",
        (blocks.TERM_BY_EPOCH, blocks.TERM_BY_EPOCH_QUICK),
        figures.term_by_epoch,
    ),
}
"""By name, in the papers' order."""
