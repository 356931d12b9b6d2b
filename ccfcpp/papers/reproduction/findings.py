"""What a table or a figure came to, and the numbers of single runs that several need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.core.metrics import above_rounding
from ccfcpp.papers.reproduction.claims import Claim
from ccfcpp.papers.reproduction.drawing import draw_scores
from ccfcpp.papers.reproduction.results import Label, Measure, Result, ScoreTable
from ccfcpp.report.drawing import Drawn
from ccfcpp.report.errors import CannotDrawError
from ccfcpp.report.runs import slug

_COLLAPSED = 0.01
"""Of the largest singular value: what lies below counts as collapsed."""


@dataclass(frozen=True)
class Findings:
    """What runs came to.

    Attributes:
        tables: Our values, each with the paper's where they are published.
        claims: The paper's statements, and where they held.
        figures: The pictures.
        left_out: Figures that could not be drawn, with the reasons.
    """

    tables: Sequence[tuple[ScoreTable, ScoreTable | None]]
    claims: Sequence[Claim]
    figures: Sequence[Drawn]
    left_out: Sequence[str] = ()

    def joined(self, other: "Findings") -> "Findings":
        """These and others."""
        return Findings(
            [*self.tables, *other.tables],
            [*self.claims, *other.claims],
            [*self.figures, *other.figures],
            [*self.left_out, *other.left_out],
        )


def found(
    tables: Sequence[ScoreTable], claims: Sequence[Claim], figures: Sequence[Drawn]
) -> Findings:
    """Findings for which the paper has no numbers; the tables are drawn after the figures."""
    drawn = [figure for table in tables for figure in draw_scores(table)]
    return Findings([(table, None) for table in tables], claims, [*figures, *drawn])


Spectrum = Callable[[Result], Tensor | None]
"""Singular values of a run's model, of shape (dimensions,); None where it has diverged."""


def global_spectrum(result: Result) -> Tensor | None:
    """Of the global model's representations."""
    return _finite(result.folder.read_arrays("spectra").get("global"))


def local_spectrum(result: Result, index: int = 0) -> Tensor | None:
    """Of one of the last round's local models, by the clients' numbers; of the first."""
    local = result.folder.read_arrays("spectra").get("local")
    return None if local is None or len(local) <= index else _finite(local[index])


def _finite(values: Tensor | None) -> Tensor | None:
    return None if values is None or not torch.isfinite(values).all() else values


def of_spectrum(spectrum: Spectrum, measure: Callable[[Tensor], float]) -> Measure:
    """A measure of a spectrum; None where there is none.

    Args:
        spectrum: Whose.
        measure: From singular values to a number.
    """

    def measured(result: Result) -> float | None:
        values = spectrum(result)
        return None if values is None else measure(values)

    return measured


def collapsed_share(values: Tensor) -> float:
    """Which share of singular values is below a hundredth of the largest."""
    return float((values < _COLLAPSED * values[0]).double().mean())


def curves(results: Sequence[Result], label: Label, spectrum: Spectrum) -> dict[str, list[float]]:
    """Singular values for a logarithmic scale, of the first seed under each label."""
    found: dict[str, list[float]] = {}
    for result in results:
        values = spectrum(result)
        if values is not None and label(result) not in found:
            found[label(result)] = above_rounding(values).tolist()
    return found


def drawn_of(draw: Callable[[], Drawn], labels: Sequence[str], left_out: list[str]) -> list[Drawn]:
    """A figure of a run, or a line on why there is none.

    Args:
        draw: Draws it.
        labels: What sets the run apart.
        left_out: Takes the line.
    """
    try:
        return [titled(draw(), *labels)]
    except CannotDrawError as error:
        left_out.append(f"{', '.join(labels)}: {error}")
        return []


def titled(drawn: Drawn, *labels: str) -> Drawn:
    """A figure with labels in its name and title."""
    text = ", ".join(labels)
    return replace(
        drawn, name=f"{drawn.name}-{slug(text.replace('+', 'p'))}", title=f"{drawn.title}: {text}"
    )


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
