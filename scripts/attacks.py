"""NMI of a system under each attack with each defence: ``python -m scripts.attacks --help``.

Each run is a line of a file, so that the script can be interrupted and continued. It prints a table
of the runs in the file.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, parse_assignments, resolve
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.hostility.config import AttackConfig, DefenceConfig

SMALL: dict[str, list[str]] = {
    "ccfc++": [
        # After neighbours the server needs sums, for which no rule but bound stands.
        "preset=published",
        "model.widths=[16, 32]", "model.latent=64", "model.projector_width=64",
        "training.pretrain_rounds=5", "training.rounds=1", "training.batch_size=16",
        "training.learning_rate=0.005", "centroids.restarts=2", "centroids.refine_steps=1",
    ],
    "fed-scan": [
        "scan.stem=16", "scan.widths=[32]", "scan.hidden=64", "scan.latent=64",
        "scan.batch=200", "scan.steps=60", "scan.mine_every=20", "scan.precision=full",
    ],
}  # fmt: skip
"""Settings of runs on the digits that take seconds."""
Row = dict[str, Any]


def kinds(section: type[AttackConfig] | type[DefenceConfig], field: str) -> list[str]:
    """Kinds that a section of the configuration knows; ``none`` is the first."""
    return list(get_args(section.model_fields[field].annotation))


def cells(attacks: list[str], shares: list[float], rules: list[str], seeds: int) -> Iterator[Row]:
    """Settings of all runs, seed by seed."""
    for seed in range(seeds):
        for attack in attacks:
            for share, rule in itertools.product([0.0] if attack == "none" else shares, rules):
                yield {"seed": seed, "attack": attack, "share": share, "rule": rule}


def nmi(method: str, settings: list[str], cell: Row) -> float | None:
    """NMI of a run over all images; None where the run failed."""
    tree: Tree = {
        "method": method,
        "seed": cell["seed"],
        "evaluate_every": 1000,
        "partition": {"clients": 20},
        "attack": {"kind": cell["attack"], "attackers": cell["share"]},
        "defence": {"rule": cell["rule"]},
    }
    small = parse_assignments([*SMALL.get(method, []), *settings])
    experiment = clustering_run(resolve(ClusterConfig, "cluster", merge(tree, small)))
    federation = experiment.federation()
    state = experiment.algorithm.initial_state(experiment.randomness)
    try:
        for after, _ in federation.run(state):
            state = after
        clusters = torch.full((len(experiment.data),), -1)
        for client in [*experiment.clients, experiment.evaluator.rest]:
            if len(client):
                part = (
                    experiment.parts[client.id] if client.id >= 0 else experiment.evaluator.unheld
                )
                clusters[part] = experiment.algorithm.assign(state, client).cpu()
    except FederationError as error:
        typer.echo(f"{cell}: {error}", err=True)
        return None
    assert experiment.data.labels is not None
    scores = clustering_scores(experiment.data.labels.cpu().numpy(), clusters.numpy())
    return scores["nmi"]


def table(rows: list[Row], rules: list[str]) -> list[str]:
    """Mean and standard deviation over the seeds, as Markdown; a failed run counts as 0."""
    lines = [f"| attack | attackers | {' | '.join(rules)} |", "|---" * (len(rules) + 2) + "|"]
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for row in rows:
        by_rule = found.setdefault((row["attack"], row["share"]), {})
        by_rule.setdefault(row["rule"], []).append(row["nmi"] or 0.0)
    for (attack, share), by_rule in found.items():
        values = [_shown(by_rule.get(rule, [])) for rule in rules]
        lines.append(f"| {attack} | {share:.0%} | {' | '.join(values)} |")
    return lines


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def measure(
    out: Annotated[Path, typer.Argument(help="File of the runs, .jsonl, new or existing.")],
    method: Annotated[str, typer.Option(help="System.")] = "ccfc++",
    seeds: Annotated[int, typer.Option(help="Seeds of each cell.")] = 3,
    attacks: Annotated[str, typer.Option(help="Attacks, by commas; all by default.")] = "",
    rules: Annotated[str, typer.Option(help="Defences, by commas; all by default.")] = "",
    shares: Annotated[str, typer.Option(help="Shares of attackers, by commas.")] = "0.1,0.3,0.45",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
) -> None:
    """Make the missing runs of a table of attacks and defences on the digits, and print the table.

    Attacks and defences that do not apply to the system are named and left out.
    """
    wanted = attacks.split(",") if attacks else kinds(AttackConfig, "kind")
    defences = rules.split(",") if rules else kinds(DefenceConfig, "rule")
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    keys = ("seed", "attack", "share", "rule")
    known = {tuple(row[key] for key in keys) for row in done}
    refused: set[str] = set()
    for cell in cells(wanted, [float(share) for share in shares.split(",")], defences, seeds):
        if tuple(cell.values()) in known:
            continue
        try:
            cell["nmi"] = nmi(method, settings or [], cell)
        except UsageError as error:
            if str(error) not in refused:
                typer.echo(f"left out: {error}", err=True)
            refused.add(str(error))
            continue
        done.append(cell)
        with out.open("a") as file:
            file.write(json.dumps(cell) + "\n")
    if not done:
        raise typer.Exit(2)
    typer.echo("\n".join(table(done, defences)))


if __name__ == "__main__":
    typer.run(measure)
