"""Figures of the covariance and correlations of the representations' dimensions."""

import numpy as np
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from ccfcpp.report.drawing import WIDTH, Drawn, colour_bar, legend_above, paper, plain, plate, short
from ccfcpp.report.errors import CannotDrawError
from ccfcpp.report.examination import Run
from ccfcpp.report.numbers import pair_correlations
from ccfcpp.report.palette import line_style
from ccfcpp.report.runs import Gathered, of_run

_BINS = 40
_QUANTILE = 0.995
"""Quantile of the entries at which the colour scale ends, since a few variances are very large."""


def covariance(run: Run) -> Drawn:
    """Draw the covariance matrix of the representations."""
    matrix = run.covariance
    limit = float(np.quantile(matrix.abs().numpy(), _QUANTILE)) or 1.0
    with plate(0.84 * WIDTH) as (figure, axes):
        picture = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set(xlabel="dimension", ylabel="dimension")
        bar = colour_bar(axes, picture, "covariance", {"extend": "both", "fraction": 0.05})
        bar.formatter = FuncFormatter(plain)
    rows = [
        {"dimension": number} | {str(j): value for j, value in enumerate(row)}
        for number, row in enumerate(matrix.tolist())
    ]
    caption = (
        "Covariance of each pair of dimensions of the representations; white is 0. Blocks off "
        f"the diagonal are redundant dimensions. Colours end at ±{limit:.2g}: {_QUANTILE:.1%} of "
        "the entries are within this range."
    )
    return Drawn("covariance", "Covariance matrix", caption, figure, rows)


def correlations(run: Run) -> Tensor:
    """Compute the correlations of all pairs of dimensions, of shape (pairs,)."""
    found = pair_correlations(run.covariance)
    if len(found) == 0:
        raise CannotDrawError("fewer than two dimensions vary")
    return found


def draw_correlations(gathered: Gathered[Tensor]) -> list[Drawn]:
    """Draw the histogram of the correlations."""
    edges = np.linspace(-1, 1, _BINS + 1)
    rows = []
    with paper() as (figure, axes):
        for number, (run, found) in enumerate(gathered):
            shares = np.histogram(found.numpy(), edges)[0] / len(found)
            look = line_style(number) | {"linewidth": 1.6, "fill": len(gathered) == 1}
            del look["marker"]
            axes.stairs(shares, edges, label=short(run.label, 32), **look)
            rows += [
                of_run(run) | {"from": float(low), "to": float(high), "share": float(share)}
                for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
            ]
        axes.set(xlabel="correlation of two dimensions", ylabel="share of the pairs", xlim=(-1, 1))
        axes.xaxis.set_major_formatter(plain)
        axes.yaxis.set_major_formatter(plain)
        if len(gathered) > 1:
            legend_above(axes)
    caption = (
        "Correlations between dimensions of the representations. The more of them are close to 0, "
        "the less redundant the dimensions are."
    )
    return [Drawn("correlations", "Correlations between dimensions", caption, figure, rows)]
