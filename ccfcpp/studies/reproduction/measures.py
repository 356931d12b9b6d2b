"""Measures of finished runs, for the tables and figures of papers."""

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
"""Measured values of one run, each with what distinguishes it from the others; None if it has none,
for instance since it diverged."""
Measure = Callable[[Result], Readings[float]]
Whose = Literal["global", "local", "both", "other clients"]
"""Models whose singular values are taken: the global model, the first client's, both of these, or
those of all clients but the first."""

_COLLAPSED = 0.01
"""A singular value below this share of the largest one counts as collapsed."""
_SIGNIFICANT = math.exp(-2)
"""Threshold for singular values, a logarithm of -2: the FedDecorr paper's example."""


def measure_runs(
    results: Sequence[Result], measure: Callable[[Result], Readings[T]]
) -> list[tuple[Result, Facts, T | None]]:
    """Measure all runs; sort the values so that equal facts (such as the round) are adjacent."""
    readings = [(result, *reading) for result in results for reading in measure(result)]
    distinct = dict.fromkeys(tuple(facts.items()) for _, facts, _ in readings)
    order = {facts: number for number, facts in enumerate(distinct)}
    return sorted(readings, key=lambda reading: order[tuple(reading[1].items())])


def measure_spectra(
    measure: Callable[[Tensor], float], whose: Whose, result: Result
) -> Readings[float]:
    """Apply a function to the singular values of each chosen model (``whose``) of a run."""
    spectra = read_spectra(whose, result)
    return [(facts, None if values is None else measure(values)) for facts, values in spectra]


# --- singular values ---


def read_spectra(whose: Whose, result: Result) -> Readings[Tensor]:
    """Read the singular values of representations by a run's models; None if not all are finite.

    They are in descending order, of shape (dimensions,).
    """
    arrays = result.folder.read_arrays("spectra")
    local: Sequence[Tensor] | Tensor = arrays.get("local", ())
    clients = arrays.get("client", torch.empty(0)).tolist()
    spectra: list[tuple[Facts, Tensor | None]] = []
    if whose in ("global", "both"):
        spectra.append(({"model": "global model"}, arrays.get("global")))
    if whose in ("local", "both"):
        spectra.append(({"model": "a local model"}, local[0] if len(local) else None))
    if whose == "other clients":
        names = (f"client {int(client) + 1}" for client in clients)
        spectra += [({"client": name}, own) for name, own in zip(names, local, strict=True)][1:]
    return [
        (facts, values if values is not None and torch.isfinite(values).all() else None)
        for facts, values in spectra
    ]


SPECTRUM_MEASURES: Mapping[str, Callable[[Tensor], float]] = {
    "collapsed_share": lambda values: float((values < _COLLAPSED * values[0]).double().mean()),
    "significant": lambda values: float((values > _SIGNIFICANT).sum()),
    # Mean logarithm of the smaller half, relative to the largest one.
    "log_tail": lambda values: float(
        (values[len(values) // 2 :] / values[0]).clamp(min=ROUNDING).log().mean()
    ),
    "effective_rank": effective_rank,
}
"""Measures of one model's singular values, by name."""

# --- runs ---


def read_summary_value(key: str, result: Result, factor: float = 1.0) -> Readings[float]:
    """Read a value from a run's ``summary.json``, times a factor, such as 100 for percent."""
    value = result.summary.get(key)
    return [({}, None if value is None else factor * value)]


def _accuracy_by_domain(result: Result) -> Readings[float]:
    """Return the mean accuracy over domains, then that of each domain, in percent."""
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
    """Return the accuracy after each evaluated round, in percent; rounds count from 1."""
    rows = [row for row in result.folder.read_log() if row["scores"]]
    return [({"round": str(row["round"] + 1)}, 100 * row["scores"]["accuracy"]) for row in rows]


def _seconds_of_a_round(result: Result) -> Readings[float]:
    """Return the median seconds of a round, without the first, which includes preparations."""
    seconds = [float(row["seconds"]) for row in result.folder.read_log()[1:]]
    return [({}, statistics.median(seconds) if seconds else None)]


def _term_by_epoch(result: Result) -> Readings[float]:
    """Return each client's decorrelation term in the first round, for each local epoch."""
    readings = []
    for key, value in result.folder.read_log()[0]["figures"].items():
        name, *numbers = key.split("/")
        if name == TERM:
            client, epoch = numbers
            readings.append(({"client": f"client {client}", "epoch": epoch}, value))
    return readings


def _correlation(result: Result) -> Readings[float]:
    """Return the mean |correlation| between dimensions of the global model's representations."""
    with suppress(CannotDrawError):
        correlations = pair_correlations(result.recorded.representations("covariance"))
        return [({}, float(correlations.abs().mean()))]
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
"""Measures of a run, by name."""
