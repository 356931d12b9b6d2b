"""Figures of the singular values of the representations' covariance, and of their measures.

Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
(TPAMI), Sections 3.1 and 3.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ccfcpp.core.metrics import above_rounding, effective_rank, spectral_gap
from ccfcpp.report.drawing import Drawn, Rows, legend_above, paper, plain, power, short, with_minus
from ccfcpp.report.errors import CannotDrawError
from ccfcpp.report.examination import Run
from ccfcpp.report.palette import CATEGORIES, MUTED, line_style
from ccfcpp.report.runs import Gathered, of_run


@dataclass(frozen=True, eq=False)
class Spectra:
    """Singular values of covariances, descending.

    Attributes:
        of_all: Those of the global model, or of the points themselves; shape (dimensions,).
        local: Those of each local model that was compared with the global one, by client.
    """

    of_all: Tensor
    local: Mapping[int, Tensor]

    @property
    def ranks(self) -> dict[int, float]:
        """Effective rank of each local model."""
        return {client: effective_rank(values) for client, values in self.local.items()}

    @property
    def gaps(self) -> dict[int, float]:
        """Gap R (Eq. 1) of each local model."""
        return {client: spectral_gap(own, self.of_all) for client, own in self.local.items()}


def spectra(run: Run) -> Spectra:
    """Read the spectra of the last round, or compute them from the last checkpoint.

    Raises:
        CannotDrawError: There are no representations, or they are not finite.
    """
    if "global" not in run.spectra:
        return Spectra(torch.linalg.eigvalsh(run.covariance).flip(0).clamp(min=0), {})
    of_all = run.spectra["global"]
    if not torch.isfinite(of_all).all():
        raise CannotDrawError("the model has diverged: its representations hold NaN or Inf")
    local = zip(run.spectra["client"].tolist(), run.spectra["local"], strict=True)
    return Spectra(of_all, {c: values for c, values in local if torch.isfinite(values).all()})


def local_spectra(run: Run) -> Spectra:
    """Read the spectra of a run whose local models were compared with the global one.

    Raises:
        CannotDrawError: No local models were compared.
    """
    found = spectra(run)
    if found.local:
        return found
    if run.summary is None:
        raise CannotDrawError("local models are compared after the last round, which was not run")
    raise CannotDrawError("clients send no models that could be compared")


def draw_spectra(gathered: Gathered[Spectra]) -> list[Drawn]:
    """Draw the singular values in descending order."""
    rows: list[Mapping[str, object]] = []
    with paper() as (figure, axes):
        for number, (run, found) in enumerate(gathered):
            local = found.local if len(gathered) == 1 else {}
            for client, values in local.items():
                axes.plot(*_curve(values), color=MUTED, linewidth=0.6, zorder=3)
                rows += _rows(run, run.clients[client], values)
            look = line_style(number) | {"marker": ""}
            name = "global model" if local else "representations"
            label = short(run.label, 32) or name
            axes.plot(*_curve(found.of_all), linewidth=3.2 if local else 1.8, label=label, **look)
            rows += _rows(run, name, found.of_all)
        if len(gathered) == 1 and local:
            axes.plot([], [], color=MUTED, linewidth=0.6, label=f"{len(local)} local models")
        axes.set(xlabel="dimension, by size", ylabel="singular value", yscale="log")
        axes.yaxis.set_major_formatter(power)
        legend_above(axes, columns=2)
    caption = (
        "Singular values of the covariance of the representations, on a logarithmic scale. A curve "
        "that drops early shows that few dimensions carry the variance: dimensional collapse."
    )
    return [Drawn("spectra", "Singular values", caption, figure, rows)]


def draw_ranks(gathered: Gathered[Spectra]) -> list[Drawn]:
    """Draw the effective ranks as bars."""
    bars, rows = [], []
    for run, found in gathered:
        ranks = found.ranks
        own = {"global model" if ranks else "representations": effective_rank(found.of_all)}
        if len(gathered) == 1:
            own |= {run.clients[client]: rank for client, rank in ranks.items()}
        elif ranks:
            own["mean of local models"] = sum(ranks.values()) / len(ranks)
        rows += [of_run(run) | {"model": m, "effective rank": rank} for m, rank in own.items()]
        bars += [(_bar_name(run, model), rank) for model, rank in own.items()]
    caption = (
        "Effective rank of the covariance, exp of the entropy of its singular values' shares: the "
        f"number of dimensions in use, of {_dimensions(gathered)}."
    )
    figure = _bars(bars, "effective rank", "{:.1f}", wide=[_is_global(n) for n, _ in bars])
    return [Drawn("effective-rank", "Effective rank", caption, figure, rows)]


def draw_gaps(gathered: Gathered[Spectra]) -> list[Drawn]:
    """Draw the gap R of local models as bars."""
    bars, rows = [], []
    for run, found in gathered:
        gaps = found.gaps
        mean = sum(gaps.values()) / len(gaps)
        own = {"mean": mean}
        if len(gathered) == 1:
            own |= {run.clients[client]: gap for client, gap in gaps.items()}
        rows += [of_run(run) | {"model": model, "R": gap} for model, gap in own.items()]
        bars += [(_bar_name(run, model), gap) for model, gap in own.items()]
    caption = (
        "R of Eq. (1) of the TPAMI paper: the mean logarithm of a local model's singular values "
        "over the global model's, on the same images. Above 0, averaging has reduced them."
    )
    figure = _bars(bars, "R", "{:.3f}", wide=[len(gathered) > 1 or n == "mean" for n, _ in bars])
    return [Drawn("gap", "Gap between local and global spectra", caption, figure, rows)]


def _curve(values: Tensor) -> tuple[range, list[float]]:
    return range(1, len(values) + 1), _drawable(values)


def _drawable(values: Tensor) -> list[float]:
    """Prepare values for a logarithmic scale."""
    found: list[float] = above_rounding(values).tolist()
    return found


def _rows(run: Run, model: str, values: Tensor) -> Rows:
    return [
        of_run(run) | {"model": model, "dimension": place + 1, "singular value": value}
        for place, value in enumerate(_drawable(values))
    ]


def _dimensions(gathered: Gathered[Spectra]) -> str:
    return " or ".join(str(d) for d in sorted({len(found.of_all) for _, found in gathered}))


def _bar_name(run: Run, model: str) -> str:
    return f"{short(run.label, 22)}\n{model}" if run.label else short(model, 22)


def _is_global(name: str) -> bool:
    return name.splitlines()[-1] in {"global model", "representations"}


def _bars(bars: Sequence[tuple[str, float]], unit: str, form: str, wide: Sequence[bool]) -> Figure:
    """Draw horizontal bars, so that their names can be read; the main ones in full colour."""
    lines = sum(1.6 if "\n" in name else 1 for name, _ in bars)
    with paper(max(1.6, 0.9 + 0.26 * lines)) as (figure, axes):
        places = range(len(bars))
        inks = [CATEGORIES[0] if main else CATEGORIES[3] for main in wide]
        drawn = axes.barh(places, [value for _, value in bars], color=inks, height=0.68)
        axes.bar_label(
            drawn,
            [with_minus(form.format(value)) for _, value in bars],
            padding=3,
            fontsize=9,
        )
        axes.set_yticks(places, [name for name, _ in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.16)
        axes.xaxis.set_major_formatter(plain)
        axes.set(xlabel=unit)
        if any(value < 0 for _, value in bars):
            axes.axvline(0, color=MUTED, linewidth=0.8)
    return figure
