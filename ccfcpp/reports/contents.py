"""The figures of a report by section."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from ccfcpp.reports import (
    class_figures,
    clusters,
    confidence,
    pictures,
    representations,
    rounds,
    spectra,
)
from ccfcpp.reports.drawing import DrawnFigure, LeftOut
from ccfcpp.reports.labels import Gathered, T
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError


@dataclass(frozen=True)
class Overlaid(Generic[T]):
    """Figures of several runs together: ``gather`` reads a run's numbers, ``draw`` draws all."""

    title: str
    gather: Callable[[RecordedRun], T]
    draw: Callable[[Gathered[T]], list[DrawnFigure]]

    def draw_all(self, runs: Sequence[RecordedRun]) -> tuple[list[DrawnFigure], list[LeftOut]]:
        """Draw together the runs that have the needed numbers; list those left out, and why."""
        gathered, left_out = _read_all(self.title, runs, self.gather)
        return (self.draw([*gathered.values()]) if gathered else []), left_out


@dataclass(frozen=True)
class Single:
    """Figures that show one run each, drawn by ``draw``."""

    title: str
    draw: Callable[[RecordedRun], DrawnFigure]

    def draw_all(self, runs: Sequence[RecordedRun]) -> tuple[list[DrawnFigure], list[LeftOut]]:
        """Draw a figure of each run with the needed numbers; list those left out, and why."""
        gathered, left_out = _read_all(self.title, runs, self.draw)
        drawn = []
        for number, (run, figure) in gathered.items():
            name = f"{figure.name}-{number}" if run.label else figure.name
            drawn.append(replace(figure, name=name, title=_titled(figure.title, run)))
        return drawn, left_out


def _read_all(
    title: str, runs: Sequence[RecordedRun], read: Callable[[RecordedRun], T]
) -> tuple[dict[int, tuple[RecordedRun, T]], list[LeftOut]]:
    """Apply ``read`` to each run: results by the run's place, from 1, and runs that failed."""
    gathered, left_out = {}, []
    for number, run in enumerate(runs, start=1):
        try:
            gathered[number] = run, read(run)
        except CannotDrawError as error:
            left_out.append(LeftOut(_titled(title, run), str(error)))
    return gathered, left_out


def _titled(title: str, run: RecordedRun) -> str:
    return f"{title}: {run.label}" if run.label else title


_SECTIONS: dict[str, tuple[Overlaid[Any] | Single, ...]] = {
    "Rounds": (
        Overlaid("Scores by round", rounds.scores_by_round, rounds.draw_scores),
        Overlaid("Effective rank by round", rounds.ranks_by_round, rounds.draw_ranks),
        Overlaid("Loss and progress by round", rounds.losses_by_round, rounds.draw_losses),
        Overlaid("Bytes by round", rounds.traffic_by_round, rounds.draw_traffic),
        Single("Who took part", rounds.participation),
    ),
    "Clusters": (
        Overlaid(
            "Quality by the number of clusters",
            clusters.label_free_scores,
            clusters.draw_label_free_scores,
        ),
        Single("Clients and clusters", clusters.draw_sizes),
    ),
    "Classes": (
        Single("Confusion matrix", class_figures.confusion),
        Single("Clients and classes", class_figures.client_classes),
        Single("Confidence and errors", confidence.confidence),
        Single("Outliers and errors", confidence.outliers),
    ),
    "Images": (
        Single("Nearest to the centroids", pictures.nearest),
        Single("Farthest from the centroids", pictures.farthest),
    ),
    "Representations": (
        Single("t-SNE by cluster or predicted class", representations.by_cluster),
        Single("t-SNE by class", representations.by_class),
        Single("Covariance matrix", representations.draw_covariance),
        Overlaid(
            "Correlations between dimensions",
            representations.pairwise_correlations,
            representations.draw_correlations,
        ),
    ),
    "Spectra": (
        Overlaid("Singular values", spectra.read_spectra, spectra.draw_gathered_spectra),
        Overlaid("Effective rank", spectra.read_spectra, spectra.draw_ranks),
        Overlaid("Gap between local and global spectra", spectra.local_spectra, spectra.draw_gaps),
    ),
}


@dataclass(frozen=True)
class Contents:
    """Figures of a report by section, and figures that could not be drawn.

    Attributes:
        sections: Figures of each section that has any, in groups to be shown side by side.
        left_out: Figures that could not be drawn.
    """

    sections: dict[str, list[list[DrawnFigure]]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def figures(self) -> list[DrawnFigure]:
        """All figures, in their order."""
        return [figure for rows in self.sections.values() for row in rows for figure in row]


def contents(runs: Sequence[RecordedRun]) -> Contents:
    """Draw all figures of a report for which the runs have the numbers, and list the others."""
    figures, taken = Contents(), set[str]()
    for title, entries in _SECTIONS.items():
        rows: dict[int, list[DrawnFigure]] = {}
        for number, entry in enumerate(entries):
            drawn, left_out = entry.draw_all(runs)
            # If there are several runs, their figures of one kind are in a row of their own.
            alone = len(runs) > 1 and isinstance(entry, Single)
            named = [_with_unique_name(figure, taken) for figure in drawn]
            rows.setdefault(number if alone else -1, []).extend(named)
            figures.left_out.extend(left_out)
        if filled := [row for row in rows.values() if row]:
            figures.sections[title] = filled
    return figures


def _with_unique_name(figure: DrawnFigure, taken: set[str]) -> DrawnFigure:
    """Give a figure a name that is not in ``taken``, and add it there."""
    names = itertools.chain([figure.name], (f"{figure.name}-{n}" for n in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return replace(figure, name=name)
