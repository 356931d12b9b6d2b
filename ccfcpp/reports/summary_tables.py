"""Texts and tables of a report: settings, results, leakage and environment of runs."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ccfcpp.clustering.evaluation.summary_text import evaluation_rows, scores_caveat
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import sum_tables, table_scores
from ccfcpp.core.units import bytes_in_words, traffic_titles
from ccfcpp.privacy.trust_summary import trust_rows
from ccfcpp.reports.labels import differing_settings
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.runs.paths import Json

Table = list[dict[str, str]]
"""Rows of text, all with the same columns."""

_TITLES = {
    "nmi": "NMI",
    "kappa": "Kappa",
    "ari": "ARI",
    "effective_rank": "effective rank",
    "local_effective_rank": "effective rank of local models",
    "gap": "gap R",
    "tail_share": "share of the smaller half of singular values",
    "p": "degree of skew p",
    "classes_per_client": "classes a client",
    "alpha": "Dirichlet alpha",
    "beta": "weight beta",
    "samples": "images",
    "skipped": "files left out",
    "imbalance": "largest class over the smallest",
    "held": "images that clients hold",
    "sends": "leaves a client",
    "connected": "connected clients",
    "disconnected": "clients absent for the whole run",
    "cohort": "clients trained side by side",
    "pretrain_rounds": "pre-training rounds",
}
_BY_LABELS = ("nmi", "kappa", "accuracy", "ari")
_RESULTS = (*_BY_LABELS, "effective_rank", "local_effective_rank", "gap")
_NOT_OF_THE_SETTING = {"method", "device", "rounds", "unit"}
_NONE = "\N{EN DASH}"
_VERSIONS = ("ccfcpp", "python", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "faiss")


def heading(run: RecordedRun) -> str:
    """Return the heading of a run's report: its system and its data set."""
    return f"{run.title} on {Path(run.config.dataset).name}"


def note(run: RecordedRun) -> str | None:
    """Return a note that a run has not ended, or that an earlier version made it; else None."""
    name = f"The run {run.label}" if run.label else "This run"
    if run.summary is not None:
        if run.setting:
            return None
        return (
            f"{name} was made by an earlier version of ccfcpp, which recorded neither its setting "
            "nor its representations for a report: run it again to see them."
        )
    done = f"{name} has not ended: {len(run.log)} of {run.planned} rounds are done."
    if not run.images:
        return done
    return f"{done} Clusters and representations are those of when it was stopped."


def setting(run: RecordedRun) -> dict[str, str]:
    """Return facts on a run's method, data, clients and protection as text, by their titles."""
    facts = {"method": run.title, "rounds": f"{len(run.log)} of {run.planned}"}
    of = f"{run.facts.get('unit', 'image')}s"
    facts |= {
        title(key).replace("images", of): readable(value, key)
        for key, value in run.facts.items()
        if value is not None and key not in _NOT_OF_THE_SETTING
    }
    return facts | trust_rows(run.summary or {})


def results(run: RecordedRun) -> dict[str, str]:
    """Return scores and costs as text, by their titles.

    An unfinished run has the scores of the last round that was scored.
    """
    scored = [row["scores"] for row in run.log if row.get("scores")]
    values: Json = run.summary or (scored[-1] if scored else {})
    up, down = traffic_titles(deployed=run.remote)
    costs = {
        up: bytes_in_words(sum(row["bytes_up"] for row in run.log)),
        down: bytes_in_words(sum(row["bytes_down"] for row in run.log)),
        "time of the rounds": f"{sum(row['seconds'] for row in run.log):,.1f} s",
    }
    over = scores_caveat(values)
    scores = {
        title(key): f"{values[key]:.4g}{over * (key in _BY_LABELS)}"
        for key in _RESULTS
        if values.get(key) is not None
    }
    return scores | evaluation_rows(values) | _scores_by_presence(values) | costs


def _scores_by_presence(summary: Json) -> dict[str, str]:
    """Return scores of connected and of absent clients' images; {} if no client was absent."""
    if summary.get("scores_absent") is None:
        return {}
    return {
        f"{title(score)}, {who} clients": f"{summary[f'scores_{who}'][score]:.4g}"
        for score in ("nmi", "kappa")
        for who in ("connected", "absent")
    }


def scored_by(run: RecordedRun) -> Table:
    """Tabulate scores of each client's own images by its labels, and of all images together.

    The table is empty unless clients on other machines have reported such scores.
    """
    if not run.tables or not run.setting:
        return []
    tables = {name: run.tables.get(number) for number, name in run.clients.items()}
    tables["all together"] = sum_tables(run.tables)
    scores = {
        name: {} if table is None or not table.sum() else _scores(run, table)
        for name, table in tables.items()
    }
    columns = dict.fromkeys(column for own in scores.values() for column in own)
    return [
        {"labels of": name} | {column: own.get(column, _NONE) for column in columns}
        for name, own in scores.items()
    ]


def _scores(run: RecordedRun, table: Tensor) -> dict[str, str]:
    scores = table_scores(table, run.clusters_images)
    images = {"images": f"{int(table.sum()):,}"}
    return images | {title(key): f"{scores[key]:.4g}" for key in _RESULTS if key in scores}


def results_table(runs: Sequence[RecordedRun]) -> Table:
    """Tabulate results with one row for each run."""
    of_runs = [{"run": run.label} | results(run) for run in runs]
    columns = dict.fromkeys(column for row in of_runs for column in row)
    return [{column: row.get(column, _NONE) for column in columns} for row in of_runs]


def differences_table(runs: Sequence[RecordedRun]) -> Table:
    """Tabulate the settings in which runs differ, one row for each."""
    return [
        {
            column: _NONE if value is None else readable(value, row["setting"])
            for column, value in row.items()
        }
        for row in differing_settings(runs)
    ]


_ATTACKED = {
    "membership": "{members:,} {whose} distinguished from {others:,} others by their loss",
    "decoders": "{members:,} training images distinguished from {others:,} others by the client's "
    "decoder. Of what it draws {nearer:.0%} is nearer to the former; 50% if nothing is memorised",
    "graphs": "{members:,} pairs of {unit}s of one class distinguished from {others:,} others by "
    "the client's graph. Of pairs that it links {linked:.0%} are of one class, of all {alike:.0%}",
}
"""Captions of attacks, by their names in ``leakage.json``."""


def leakage_tables(leakage: Json) -> dict[str, Table]:
    """Tabulate the results of attacks on a run, by caption; empty if there were none.

    Raises:
        UsageError: Entries are missing or have other types.
    """
    if not leakage:
        return {}
    try:
        client, unit = leakage["membership"].get("client"), leakage.get("unit", "image")
        whose = f"training {unit}s" if client is None else f"{unit}s of client {client}"
        tables = {
            f"Leakage: {caption.format(**leakage[attacked], whose=whose, unit=unit)}": [
                {
                    "loss": name,
                    "advantage": f"{row['advantage']:.3f} ± {row['error']:.3f}",
                    "AUC": f"{row['auc']:.3f}",
                    "found at 1% false alarms": f"{row['found']:.1%}",
                }
                for name, row in leakage[attacked]["attacks"].items()
            ]
            for attacked, caption in _ATTACKED.items()
            if leakage.get(attacked)
        }
        if leakage["inversion"]:
            caption = f"Leakage: averages of {unit}s that clients sent in the last round"
            tables[caption] = [
                {
                    f"{unit}s in an average": _range(row["least"], row["most"]),
                    "averages": f"{row['averages']:,}",
                    f"that are one {unit}": f"{row['exact']:,}",
                    f"median distance to nearest {unit}": f"{row['distance']:.1%} of its length",
                }
                for row in leakage["inversion"]
            ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"leakage.json is damaged ({error}): run ccfcpp leakage again") from error
    return tables


def _range(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def environment(session: Json) -> dict[str, str]:
    """Return command, versions and machine of a session of a run as text, by their titles."""
    command = session.get("command", [])
    versions = [f"{name} {session[name]}" for name in _VERSIONS if session.get(name)]
    facts: Mapping[str, object] = {
        "command": shlex.join(["ccfcpp", *map(str, command[1:])]),
        "versions": ", ".join(versions),
        "source revision": session.get("revision"),
        "processor": session.get("processor"),
        "threads": session.get("threads"),
        "device": session.get("cuda_device") or session.get("device"),
        "platform": session.get("platform"),
    }
    return {key: str(value) for key, value in facts.items() if value}


def title(key: str) -> str:
    """Return the name of a summary's key for readers, such as ``degree of skew p`` for ``p``."""
    return _TITLES.get(key, key.replace("_", " "))


def readable(value: object, key: str = "") -> str:
    """Format a value for readers; if ``key`` is ``seed``, without commas between thousands."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key != "seed":
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
