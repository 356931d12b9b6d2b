"""The command ``ccfcpp cluster``: it parses, calls and prints."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.header import absence, chosen_by_default, protection, setting
from ccfcpp.cli.options import AsJson, Config, Out, Resume, Settings, ShowProfile
from ccfcpp.cli.terminal import (
    print_facts,
    printed_profile,
    progress_console,
    refuse_idle,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
    user_layers,
)
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, refuse_unused
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, resolve
from ccfcpp.privacy.in_words import trust_rows
from ccfcpp.runs.opening import Opening, new_path, required_out

if TYPE_CHECKING:
    from ccfcpp.clustering.experiment import ClusteringExperiment

_PRESETS = ("cluster",)
_FLAGS = (
    flags.DATASET,
    flags.CLUSTERING_METHOD,
    flags.PRESET,
    flags.PARTITION,
    flags.SKEW,
    flags.ALPHA,
    flags.CLIENTS,
    flags.CLUSTERS,
    flags.ROUNDS,
    flags.PRETRAIN_ROUNDS,
    flags.ETA,
    flags.LAM,
    *flags.ABSENCE,
    *flags.PRIVACY,
    *flags.HOSTILITY,
    flags.SEED,
    *flags.MACHINE,
    flags.TENSORBOARD,
)
_WORTH_NAMING = (
    flags.DATASET,
    flags.CLUSTERING_METHOD,
    flags.CLIENTS,
    flags.CLUSTERS,
    flags.SEED,
    flags.PARTITION,
)
"""Where the user did not choose them."""


def add_cluster(app: typer.Typer) -> None:
    """Give an application the command."""
    shown = flags.showing_defaults("cluster", lambda: ClusterConfig.kind_for({}), *_FLAGS)
    app.command(cls=shown)(cluster)


@flags.keyed(*_FLAGS)
def cluster(
    named: flags.Named,
    config: Config = None,
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    profile: ShowProfile = False,
    json_output: AsJson = False,
) -> None:
    """Cluster images that lie with several clients, by Fed-SCAN or another system."""
    flags.name_partition(named)
    with usage_errors():
        files, values = user_layers(config, named, settings, _PRESETS)
        opening = _opened(out, resume, files, values)
    progress_console().print(_header(opening))

    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.clustering.own_images import fitted, in_words
    from ccfcpp.runs.environment import keep_freed_memory, use_processors

    keep_freed_memory()
    use_processors()
    with usage_errors():
        opening, images = fitted(opening, *files, values)
        experiment, folder = opening.open(lambda config: ClusteringExperiment(config, images))
    by_images = images is not None and opening.config.method == "fed-scan"
    own = [in_words(opening.config)] if by_images else []
    _announce(opening, experiment, [*files, values], own)
    resumption = resume_command("cluster", folder.path)
    with (
        printed_profile() if profile else nullcontext(),
        resumable(resumption, checkpoint=folder.checkpoint) as should_stop,
    ):
        summary = run_to_end(experiment, folder, ("nmi", "NMI"), should_stop)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(opening.config, summary)


def _opened(
    out: Path | None, resume: bool, files: list[Tree], values: Tree
) -> Opening[ClusterConfig]:
    if resume:
        return Opening.going_on(required_out(out), ClusterConfig, *files, values)
    refuse_idle([*files, values])
    resolved = resolve(ClusterConfig, "cluster", *files, values)
    refuse_unused([key for key, _ in flatten(values)], [resolved.method])
    return Opening.new(out or new_path(resolved.method, resolved.dataset), resolved)


def _header(opening: Opening[ClusterConfig]) -> str:
    """What is about to be run, and where."""
    config = opening.config
    begun = "going on with " if opening.goes_on else ""
    return (
        f"{begun}{METHODS[config.method].title} on {config.dataset}, {config.preset} preset, "
        f"{config.partition.in_words}, seed {config.seed}: {opening.path}"
    )


def _announce(
    opening: Opening[ClusterConfig],
    experiment: "ClusteringExperiment",
    given: list[Tree],
    own_images: list[str],
) -> None:
    """What only the images show, before the first round."""
    lines = [setting(experiment), *protection(experiment), absence(experiment.absent_names)]
    if not opening.goes_on:
        found = {"partition.clients": len(experiment.parts), "clusters": experiment.clusters}
        kinds = {"skew": (flags.SKEW,), "dirichlet": (flags.ALPHA,)}
        partition = opening.config.partition.kind
        shown = (*_WORTH_NAMING, *kinds.get(partition, ()))
        lines += [chosen_by_default(shown, given, opening.config, found), *own_images]
    for line in filter(None, lines):
        progress_console().print(line)


def _print_summary(config: ClusterConfig, summary: dict[str, Any]) -> None:
    empty = summary["clients"] - summary["connected"] - summary["disconnected"]
    rows = {
        "images": f"{summary['samples']:,}, of which clients that take part hold "
        f"{summary['held']:,}",
        "clusters": str(summary["clusters"]),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected"
        + (f", {empty} without images" if empty else ""),
        "partition": config.partition.in_words,
        "rounds": _rounds(summary),
        "leaves a client": summary["sends"],
        **_scores(summary),
        **{
            title: f"NMI {scores['nmi']:.4f}, Kappa {scores['kappa']:.4f}"
            for title, scores in (
                ("connected clients", summary["scores_connected"]),
                ("absent clients", summary["scores_absent"]),
            )
            if summary["scores_absent"] is not None
        },
    }
    rows |= trust_rows(summary)
    title = f"{METHODS[summary['method']].title} on {summary['dataset']}"
    print_facts(title, rows | traffic_rows(summary))


def _scores(summary: dict[str, Any]) -> dict[str, str]:
    if summary["nmi"] is None:
        return {"scores": "none: the images have no labels"}
    titles = {"NMI": "nmi", "Kappa": "kappa", "accuracy": "accuracy", "ARI": "ari"}
    return {title: f"{summary[key]:.4f}" for title, key in titles.items()}


def _rounds(summary: dict[str, Any]) -> str:
    rounds = summary["rounds"]
    if "pretrain_rounds" in summary:
        first = min(rounds, summary["pretrain_rounds"])
        return f"{first} pre-training + {rounds - first}"
    return str(rounds)
