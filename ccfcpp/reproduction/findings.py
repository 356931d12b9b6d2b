"""What a table or a figure came to, and the numbers of single runs that several need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ccfcpp.report.drawing import Drawn
from ccfcpp.reproduction.claims import Claim
from ccfcpp.reproduction.drawing import draw_scores
from ccfcpp.reproduction.results import Label, Result, ScoreTable

_LEAST_SHARE = 1e-12
"""Of the largest singular value: what lies below is rounding."""
_COLLAPSED = 0.01
"""Of the largest singular value: what lies below counts as collapsed."""


@dataclass(frozen=True)
class Findings:
    """What runs came to.

    Attributes:
        tables: Our values, each with the paper's where they are published.
        claims: The paper's statements, and where they held.
        figures: The pictures.
    """

    tables: Sequence[tuple[ScoreTable, ScoreTable | None]]
    claims: Sequence[Claim]
    figures: Sequence[Drawn]

    def joined(self, other: "Findings") -> "Findings":
        """These and others."""
        return Findings(
            [*self.tables, *other.tables],
            [*self.claims, *other.claims],
            [*self.figures, *other.figures],
        )


def found(
    tables: Sequence[ScoreTable], claims: Sequence[Claim], figures: Sequence[Drawn]
) -> Findings:
    """Findings for which the paper has no numbers; the tables are drawn after the figures."""
    drawn = [figure for table in tables for figure in draw_scores(table)]
    return Findings([(table, None) for table in tables], claims, [*figures, *drawn])


def global_spectrum(result: Result) -> Tensor:
    """Singular values of the global model's representations, of shape (dimensions,)."""
    return _spectra(result, "global")


def local_spectrum(result: Result) -> Tensor:
    """The same of the local model of the first client that took part in the last round."""
    return _spectra(result, "local")[0]


def _spectra(result: Result, name: str) -> Tensor:
    with np.load(result.path / "spectra.npz", allow_pickle=False) as arrays:
        return torch.from_numpy(arrays[name])


def collapsed_share(result: Result) -> float:
    """Which share of the global model's singular values is below a hundredth of the largest."""
    values = global_spectrum(result)
    return float((values < _COLLAPSED * values[0]).double().mean())


def curves(
    results: Sequence[Result], label: Label, spectrum: Callable[[Result], Tensor]
) -> dict[str, list[float]]:
    """Singular values for a logarithmic scale, of the first seed under each label."""
    found: dict[str, list[float]] = {}
    for result in results:
        if label(result) not in found:
            values = spectrum(result)
            least = max(_LEAST_SHARE * float(values[0]), 1e-300)
            found[label(result)] = values.clamp(min=least).tolist()
    return found


def by_label(results: Sequence[Result], label: Label) -> dict[str, list[Result]]:
    """Results in groups."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(label(result), []).append(result)
    return groups


def first_seeds(results: Sequence[Result]) -> list[Result]:
    """Those with the lowest seed."""
    lowest = min(result.config.seed for result in results)
    return [result for result in results if result.config.seed == lowest]
