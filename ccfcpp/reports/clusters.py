"""Figures of clusters that need no labels: their quality, and how clients share in them."""

import statistics

import torch
from matplotlib.ticker import MaxNLocator

from ccfcpp.clustering.evaluation.words import MEASURES
from ccfcpp.reports.classes import of_clients
from ccfcpp.reports.drawing import Drawn, legend_above, paper, plain
from ccfcpp.reports.examination import Run
from ccfcpp.reports.numbers import CannotDrawError
from ccfcpp.reports.palette import line_style
from ccfcpp.reports.runs import Gathered, slug
from ccfcpp.runs.run import LocalRun

Measured = dict[str, float]
"""Values by key of ``MEASURES``."""


def judged(run: Run) -> Measured:
    """Collect what is measured without labels."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    if run.summary is None:
        raise CannotDrawError("the run has not ended")
    found = {key: run.summary[key] for key in MEASURES if run.summary.get(key) is not None}
    if not found:
        private = run.summary.get("privacy", {}).get("level", "none") != "none"
        raise CannotDrawError(
            "under differential privacy each sum would cost a part of the budget"
            if private
            else "an earlier version made the run, or there is one cluster"
        )
    return found


def draw_judged(gathered: Gathered[Measured]) -> list[Drawn]:
    """Draw each measure by the number of clusters, a line for each system.

    There is nothing to draw where all runs have the same number.
    """
    if len({run.groups_asked for run, _ in gathered}) == 1:
        return []
    known = {key for _, found in gathered for key in found}
    return [_by_number(gathered, key) for key in MEASURES if key in known]


def _by_number(gathered: Gathered[Measured], key: str) -> Drawn:
    title, span = MEASURES[key]
    values: dict[str, dict[int, list[float]]] = {}
    for run, found in gathered:
        if key in found:
            of_system = values.setdefault(run.title, {})
            of_system.setdefault(run.groups_asked, []).append(found[key])
    rows: list[dict[str, object]] = []
    with paper() as (figure, axes):
        for number, (system, by_k) in enumerate(values.items()):
            line = {k: statistics.fmean(own) for k, own in sorted(by_k.items())}
            axes.plot([*line], [*line.values()], label=system, markersize=5, **line_style(number))
            rows += [{"system": system, "clusters": k, title: value} for k, value in line.items()]
        axes.set(xlabel="number of clusters k", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(plain)
        legend_above(axes)
    several = any(len(own) > 1 for by_k in values.values() for own in by_k.values())
    mean = ", means of runs with the same k" if several else ""
    begun = title[0].upper() + title[1:]
    caption = f"{begun} by the number of clusters{mean}; {span}."
    return Drawn(slug(f"{title} by k"), f"{begun} by k", caption, figure, rows)


def sizes(run: Run) -> Drawn:
    """Draw the table of the numbers of images by client and cluster."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    if not (isinstance(run.experiment, LocalRun) and run.clusters_images):
        raise CannotDrawError("clients on other machines keep the clusters of their images")
    k, parts = run.groups_asked, run.experiment.parts
    counts = torch.stack([run.found[part].bincount(minlength=k) for part in parts])
    return of_clients(run, counts, ("cluster", "clusters"), range(counts.shape[1]))
