"""Measures of finished runs for tables and figures."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ccfcpp.core.metrics import ROUNDING, effective_rank
from ccfcpp.reports.statistics import CannotDrawError, pair_correlations
from ccfcpp.studies.results import DOMAINS, Facts, Result, dataset_name
from supervised.algorithm import TERM

T = TypeVar("T")
Readings = Sequence[tuple[Facts, T | None]]
"""Numbers of one run; None where it has none, as where it has diverged."""
Measure = Callable[[Result], Readings[float]]
Whose = Literal["global", "local", "both", "other clients"]
"""Whose singular values: the global model's, the first local model's, those of both, or those of
the local models of all clients but the first."""

_COLLAPSED = 0.01
"""Share of the largest singular value: a smaller one counts as collapsed."""
_SIGNIFICANT = math.exp(-2)
"""The FedDecorr paper's example of a threshold for singular values: its logarithm is -2."""


def measure_runs(
    results: Sequence[Result], measure: Callable[[Result], Readings[T]]
) -> list[tuple[Result, Facts, T | None]]:
    """Apply a measure to each run, and sort the readings so that those with equal facts adjoin."""
    found = [(result, *reading) for result in results for reading in measure(result)]
    kinds = dict.fromkeys(tuple(facts.items()) for _, facts, _ in found)
    order = {facts: number for number, facts in enumerate(kinds)}
    return sorted(found, key=lambda reading: order[tuple(reading[1].items())])


def measure_spectra(
    measure: Callable[[Tensor], float], whose: Whose, result: Result
) -> Readings[float]:
    """Measure singular values of a run."""
    found = read_spectra(whose, result)
    return [(facts, None if values is None else measure(values)) for facts, values in found]


# --- singular values ---


def read_spectra(whose: Whose, result: Result) -> Readings[Tensor]:
    """Return singular values of a run's models; None if they are not finite.

    They are in descending order, of shape (dimensions,).
    """
    arrays = result.folder.read_arrays("spectra")
    local: Sequence[Tensor] | Tensor = arrays.get("local", ())
    clients = arrays.get("client", torch.empty(0)).tolist()
    found: list[tuple[Facts, Tensor | None]] = []
    if whose in ("global", "both"):
        found.append(({"model": "global model"}, arrays.get("global")))
    if whose in ("local", "both"):
        found.append(({"model": "a local model"}, local[0] if len(local) else None))
    if whose == "other clients":
        names = (f"client {int(client) + 1}" for client in clients)
        found += [({"client": name}, own) for name, own in zip(names, local, strict=True)][1:]
    return [
        (facts, values if values is not None and torch.isfinite(values).all() else None)
        for facts, values in found
    ]


SPECTRUM_MEASURES: Mapping[str, Callable[[Tensor], float]] = {
    "collapsed_share": lambda values: float((values < _COLLAPSED * values[0]).double().mean()),
    "significant": lambda values: float((values > _SIGNIFICANT).sum()),
    # Mean logarithm of the smaller half, over the largest one.
    "log_tail": lambda values: float(
        (values[len(values) // 2 :] / values[0]).clamp(min=ROUNDING).log().mean()
    ),
    "effective_rank": effective_rank,
}
"""Measures of singular values."""

# --- runs ---


def read_summary_value(key: str, result: Result, factor: float = 1.0) -> Readings[float]:
    """Return the value of ``key`` in a run's summary, times a factor, such as 100 for percent."""
    value = result.summary.get(key)
    return [({}, None if value is None else factor * value)]


def _accuracy_by_domain(result: Result) -> Readings[float]:
    """Return the mean accuracy over the domains and that of each, in percent."""
    readings: list[tuple[Facts, float | None]] = []
    for key, value in result.summary.items():
        kind, _, name = key.partition(" ")
        if kind == "accuracy":
            # The paper names domains by their first letters.
            short = name[0].upper() if name and dataset_name(result.config) in DOMAINS else name
            facts = {"domain": short or "Avg", "whole name": name}
            readings.append((facts, None if value is None else 100 * value))
    return sorted(readings, key=lambda reading: reading[0]["whole name"] != "")


def _accuracy_by_round(result: Result) -> Readings[float]:
    """Return the accuracy after each scored round, in percent; the first round is round 1."""
    rows = [row for row in result.folder.read_log() if row["scores"]]
    return [({"round": str(row["round"] + 1)}, 100 * row["scores"]["accuracy"]) for row in rows]


def _seconds_of_a_round(result: Result) -> Readings[float]:
    """Return the median time of all rounds but the first, which also prepares."""
    seconds = [float(row["seconds"]) for row in result.folder.read_log()[1:]]
    return [({}, statistics.median(seconds) if seconds else None)]


def _term_by_epoch(result: Result) -> Readings[float]:
    """Return the term of each client in the first round, after each local epoch."""
    readings = []
    for key, value in result.folder.read_log()[0]["figures"].items():
        name, *numbers = key.split("/")
        if name == TERM:
            client, epoch = numbers
            readings.append(({"client": f"client {client}", "epoch": epoch}, value))
    return readings


def _correlation(result: Result) -> Readings[float]:
    """Return the mean |correlation| of two dimensions of the global model's representations."""
    with suppress(CannotDrawError):
        found = pair_correlations(result.recorded.representations("covariance"))
        return [({}, float(found.abs().mean()))]
    return [({}, None)]


_IN_SUMMARIES = (
    "nmi", "nmi_geometric", "kappa", "effective_rank", "local_effective_rank", "tail_share", "gap",
)  # fmt: skip
MEASURES: dict[str, Measure] = {
    **{key: partial(read_summary_value, key) for key in _IN_SUMMARIES},
    "accuracy": partial(read_summary_value, "accuracy", factor=100),
    "accuracy_by_domain": _accuracy_by_domain,
    "accuracy_by_round": _accuracy_by_round,
    "seconds_of_a_round": _seconds_of_a_round,
    "term_by_epoch": _term_by_epoch,
    "correlation": _correlation,
}
"""Measures of runs."""
