"""Figures of spectra, the singular values of the representations' covariance, and their metrics.

Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
(TPAMI), Sections 3.1 and 3.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ccfcpp.core.metrics import above_rounding, effective_rank, spectral_gap
from ccfcpp.reports.drawing import (
    DrawnFigure,
    Rows,
    axis_number,
    legend_above,
    new_figure,
    power,
    short,
    with_minus,
)
from ccfcpp.reports.labels import Gathered, run_column
from ccfcpp.reports.palette import CATEGORIES, MUTED, line_style
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError

_MAIN = {"global model", "representations", "mean"}
"""Names of the bars that stand out."""


@dataclass(frozen=True, eq=False)
class Spectra:
    """Spectra of a run: singular values of covariance matrices, descending, of shape (dimensions,).

    Attributes:
        of_all: Spectrum of the global model; or of the clustered points, if there is no model.
        local: Spectrum of each local model compared with the global one, by the client's number.
    """

    of_all: Tensor
    local: Mapping[int, Tensor]


def read_spectra(run: RecordedRun) -> Spectra:
    """Return the spectra of a run's last round; without any, that of its representations."""
    if "global" not in run.spectra:
        return Spectra(run.representations("singular_values"), {})
    of_all = run.spectra["global"]
    if not torch.isfinite(of_all).all():
        raise CannotDrawError("the model has diverged: its representations hold NaN or Inf")
    local = zip(run.spectra["client"].tolist(), run.spectra["local"], strict=True)
    return Spectra(of_all, {c: values for c, values in local if torch.isfinite(values).all()})


def local_spectra(run: RecordedRun) -> Spectra:
    """Return the spectra of a run; ``CannotDrawError`` if there are none of local models."""
    spectra = read_spectra(run)
    if spectra.local:
        return spectra
    if run.summary is None:
        raise CannotDrawError("local models are compared after the last round, which was not run")
    raise CannotDrawError("clients send no models that could be compared")


def draw_gathered_spectra(gathered: Gathered[Spectra]) -> list[DrawnFigure]:
    """Draw some runs' singular values in descending order, in one figure."""
    rows: list[Mapping[str, object]] = []
    with new_figure() as (figure, axes):
        for number, (run, spectra) in enumerate(gathered):
            local = spectra.local if len(gathered) == 1 else {}
            for client, values in local.items():
                axes.plot(*_curve(values), color=MUTED, linewidth=0.6, zorder=3)
                rows += _rows(run, run.client_name(client), values)
            look = line_style(number) | {"marker": ""}
            name = "global model" if local else "representations"
            label = short(run.label, 32) or name
            axes.plot(*_curve(spectra.of_all), linewidth=3.2 if local else 1.8, label=label, **look)
            rows += _rows(run, name, spectra.of_all)
        if len(gathered) == 1 and local:
            axes.plot([], [], color=MUTED, linewidth=0.6, label=f"{len(local)} local models")
        axes.set(xlabel="dimension, by size", ylabel="singular value", yscale="log")
        axes.yaxis.set_major_formatter(power)
        legend_above(axes, columns=2)
    caption = (
        "Singular values of the covariance of the representations, on a logarithmic scale. A curve "
        "that drops early shows that few dimensions carry the variance: dimensional collapse."
    )
    return [DrawnFigure("spectra", "Singular values", caption, figure, rows)]


def draw_ranks(gathered: Gathered[Spectra]) -> list[DrawnFigure]:
    """Draw the effective rank of each global and local model as bars."""
    values = []
    for run, spectra in gathered:
        ranks = {client: effective_rank(values) for client, values in spectra.local.items()}
        own = {"global model" if ranks else "representations": effective_rank(spectra.of_all)}
        if len(gathered) > 1 and ranks:
            own["mean of local models"] = fmean(ranks.values())
        values.append((run, own, ranks))
    dimensions = " or ".join(map(str, sorted({len(spectra.of_all) for _, spectra in gathered})))
    caption = (
        "Effective rank of the covariance, exp of the entropy of its singular values' shares: the "
        f"number of dimensions in use, of {dimensions}."
    )
    figure, rows = _draw_bars(values, "effective rank", "{:.1f}")
    return [DrawnFigure("effective-rank", "Effective rank", caption, figure, rows)]


def draw_gaps(gathered: Gathered[Spectra]) -> list[DrawnFigure]:
    """Draw the gap R between local and global spectra, Eq. (1) of Shi et al. (TPAMI), as bars."""
    values = []
    for run, spectra in gathered:
        gaps = {c: spectral_gap(values, spectra.of_all) for c, values in spectra.local.items()}
        values.append((run, {"mean": fmean(gaps.values())}, gaps))
    caption = (
        "R of Eq. (1) of the TPAMI paper: the mean logarithm of a local model's singular values "
        "over the global model's, on the same images. Above 0, averaging has reduced them."
    )
    figure, rows = _draw_bars(values, "R", "{:.3f}")
    return [DrawnFigure("gap", "Gap between local and global spectra", caption, figure, rows)]


def _curve(values: Tensor) -> tuple[range, list[float]]:
    return range(1, len(values) + 1), above_rounding(values).tolist()


def _rows(run: RecordedRun, model: str, values: Tensor) -> Rows:
    return [
        run_column(run) | {"model": model, "dimension": place, "singular value": value}
        for place, value in zip(*_curve(values), strict=True)
    ]


def _draw_bars(
    values: Sequence[tuple[RecordedRun, dict[str, float], dict[int, float]]],
    unit: str,
    number_format: str,
) -> tuple[Figure, Rows]:
    """Draw horizontal bars of a metric, with ``unit`` as the axis's label, and list their values.

    ``values`` has a metric's values for each run: by model, and, drawn only of a single run, by
    client.
    """
    bars = [(run, model, value) for run, own, _ in values for model, value in own.items()]
    if len(values) == 1:
        ((run, _, local),) = values
        bars += [(run, run.client_name(client), value) for client, value in local.items()]
    rows = [run_column(run) | {"model": model, unit: value} for run, model, value in bars]
    names = [
        f"{short(run.label, 22)}\n{model}" if run.label else short(model, 22)
        for run, model, _ in bars
    ]
    inks = [CATEGORIES[0 if model in _MAIN else 3] for _, model, _ in bars]
    lengths = [value for *_, value in bars]
    lines = sum(1.6 if "\n" in name else 1 for name in names)
    with new_figure(max(1.6, 0.9 + 0.26 * lines)) as (figure, axes):
        drawn = axes.barh(range(len(bars)), lengths, color=inks, height=0.68)
        texts = [with_minus(number_format.format(value)) for value in lengths]
        axes.bar_label(drawn, texts, padding=3, fontsize=9)
        axes.set_yticks(range(len(bars)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.16)
        axes.xaxis.set_major_formatter(axis_number)
        axes.set(xlabel=unit)
        if min(lengths) < 0:
            axes.axvline(0, color=MUTED, linewidth=0.8)
    return figure, rows
