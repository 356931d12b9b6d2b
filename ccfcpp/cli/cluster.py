"""The command ``ccfcpp cluster``, which clusters the samples of several clients."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ccfcpp.cli import flags
from ccfcpp.cli.options import From, RunOptions, ShowProfile, continuation_settings
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.single_run import Rows, RunDisplay
from ccfcpp.cli.terminal import score_rows, usage_errors
from ccfcpp.clustering.api import CLUSTERING, has_preset
from ccfcpp.clustering.auto_settings import describe_settings
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.summary_text import evaluation_rows, sizes_table
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config_layers import Layers
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import Summary

_SHOWN_BESIDE = 4
"""Numbers of clusters that are shown on either side of the chosen one."""

_BAR = 30
"""Characters of the longest bar."""

FLAGS = (
    flags.DATASET,
    flags.METHOD,
    flags.PRESET,
    flags.PARTITION,
    flags.SKEW,
    flags.CLASSES_PER_CLIENT,
    flags.ALPHA,
    flags.CLIENTS,
    flags.CLUSTERS,
    *flags.VECTORS,
    flags.ROUNDS,
    flags.Flag("training.pretrain_rounds"),
    flags.Flag("loss.eta"),
    flags.Flag("loss.lam"),
    *flags.IMAGES,
    *flags.ABSENCE,
    *flags.PRIVACY,
    *flags.HOSTILITY,
    flags.SEED,
    *flags.MACHINE,
    flags.TRACK,
)

_MOST_ROWS = 12
"""Most rows and columns of a printed table of clients."""


@with_flags(FLAGS, ClusterConfig)
def cluster(options: RunOptions, run: From = None, profile: ShowProfile = False) -> None:
    """Cluster images, vectors or tables that several clients hold.

    Defaults below are those of the data set digits; other data have other presets.
    """
    layers = options.layers("cluster")
    if run is not None:
        with usage_errors():
            place = _continue_run(run, options, layers)
        options, layers = replace(options, out=place, resume=True), []
    DISPLAY.run(options, layers, profile)


def _continue_run(run: Path, options: RunOptions, layers: Layers) -> Path:
    """Make the folder of a run that continues the finished ``run`` with new clients; return it."""
    values = continuation_settings(options, layers)
    newcomers = values.pop("dataset", None)
    if newcomers is None:
        raise UsageError(
            "--from needs --dataset: where the newcomers' images or vectors lie, a folder for each"
        )
    if "partition" in values:
        raise UsageError(
            "--from takes each folder of --dataset for a new client, or the whole where it has "
            "none: leave the partition out"
        )
    from ccfcpp.clustering.follow_up import run_with

    return run_with(run, newcomers, values, options.out)


def _worth_naming(config: ClusterConfig) -> Iterable[flags.Flag]:
    degrees = {
        "skew": (flags.SKEW,),
        "classes": (flags.CLASSES_PER_CLIENT,),
        "dirichlet": (flags.ALPHA,),
    }
    named = (flags.DATASET, flags.METHOD, flags.CLIENTS, flags.CLUSTERS, flags.SEED)
    return (*named, flags.PARTITION, *degrees.get(config.partition.kind, ()))


def _notes(config: ClusterConfig) -> list[str]:
    notes = []
    if name := config.data.encoder_name:
        content = (config.data.encoder_hash or "")[:12]
        notes.append(f"vectors are those of {name.called}, content hash {content}")
    if not has_preset(config) and config.method in ("fed-scan", "fed-em", "fed-emp"):
        notes.append(describe_settings(config))
    if config.fewest_clusters:
        notes.append(f"the number of clusters is to be found: clusters {config.clusters}")
    return notes


def _rows(config: ClusterConfig, summary: Summary) -> Rows:
    samples = f"{summary['unit']}s"
    labelled = summary["nmi"] is not None
    empty = summary["clients"] - summary["connected"] - summary["disconnected"]
    apart = {"connected clients": "scores_connected", "absent clients": "scores_absent"}
    return {
        samples: f"{summary['samples']:,}, of which clients that take part hold "
        f"{summary['held']:,}",
        "clusters": str(summary["clusters"]),
        **_found_rows(summary),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected"
        + (f", {empty} without {samples}" if empty else ""),
        "partition": config.partition.in_words,
        "rounds": _rounds(summary),
        "leaves a client": summary["sends"],
        **(score_rows(summary) if labelled else {"scores": f"none: the {samples} have no labels"}),
        **evaluation_rows(summary),
        **{
            title: f"NMI {summary[key]['nmi']:.4f}, Kappa {summary[key]['kappa']:.4f}"
            for title, key in apart.items()
            if summary["scores_absent"] is not None
        },
    }


def _found_rows(summary: Summary) -> Rows:
    """Return rows on how the number of clusters was chosen: runner-up, and evidence as bars.

    Without a choice there are none.
    """
    if "clusters_evidence" not in summary:
        return {}
    evidence = {int(k): value for k, value in summary["clusters_evidence"].items()}
    near = [k for k in evidence if abs(k - summary["clusters"]) <= _SHOWN_BESIDE]
    most = max(evidence.values()) or 1.0  # if all are 0, no bars
    bars = [f"{k:3} {'█' * round(_BAR * max(0, evidence[k]) / most)}" for k in near]
    return {
        "found, runner-up": f"{summary['clusters']}, {summary['clusters_runner_up']}",
        "evidence": "\n".join(bars),
    }


def _tables(summary: Summary) -> dict[str, list[Rows]]:
    sizes = summary.get("client_cluster_sizes", ())
    is_small = 0 < len(sizes) <= _MOST_ROWS and len(sizes[0]) < _MOST_ROWS
    title = f"{summary.get('unit', 'image').capitalize()}s of each client in each cluster"
    return {title: sizes_table(summary)} if is_small else {}


def _rounds(summary: Summary) -> str:
    rounds = summary["rounds"]
    if "pretrain_rounds" in summary:
        first = min(rounds, summary["pretrain_rounds"])
        return f"{first} pre-training + {rounds - first}"
    return str(rounds)


DISPLAY = RunDisplay(
    pipeline=CLUSTERING,
    headline=("nmi", "NMI"),
    system=lambda config: METHODS[config.method].title,
    details=lambda config: (
        f"{config.preset} preset, {config.partition.in_words}, seed {config.seed}"
    ),
    worth_naming=_worth_naming,
    found=lambda experiment: {
        "partition.clients": len(experiment.parts),
        "clusters": experiment.evaluator.clusters,
    },
    rows=_rows,
    notes=_notes,
    tables=_tables,
)
