"""Figures of clusters that need no labels: their quality, and their sizes by client."""

import statistics

from ccfcpp.clustering.evaluation.summary_text import MEASURES
from ccfcpp.core.metrics import contingency_table
from ccfcpp.reports.class_figures import draw_client_table
from ccfcpp.reports.drawing import DrawnFigure, line_chart
from ccfcpp.reports.labels import Gathered, slug
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError

Measured = dict[str, float]
"""Scores by their keys in ``MEASURES``."""


def label_free_scores(run: RecordedRun) -> Measured:
    """Return a run's clustering scores that need no labels; ``CannotDrawError`` without any."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    if run.summary is None:
        raise CannotDrawError("the run has not ended")
    scores = {key: run.summary[key] for key in MEASURES if run.summary.get(key) is not None}
    if not scores:
        private = run.summary.get("privacy", {}).get("level", "none") != "none"
        raise CannotDrawError(
            "under differential privacy each sum would cost a part of the budget"
            if private
            else "an earlier version made the run, or there is one cluster"
        )
    return scores


def draw_label_free_scores(gathered: Gathered[Measured]) -> list[DrawnFigure]:
    """Draw each score over the number of clusters k of the runs, with a line for each system.

    If all runs have the same k, nothing is drawn.
    """
    if len({run.clusters for run, _ in gathered}) == 1:
        return []
    known = {key for _, scores in gathered for key in scores}
    return [_by_number(gathered, key) for key in MEASURES if key in known]


def _by_number(gathered: Gathered[Measured], key: str) -> DrawnFigure:
    title, span = MEASURES[key]
    values: dict[str, dict[int, list[float]]] = {}
    for run, scores in gathered:
        if key in scores:
            of_system = values.setdefault(run.title, {})
            of_system.setdefault(run.clusters, []).append(scores[key])
    curves = {
        system: [(k, statistics.fmean(own)) for k, own in sorted(by_k.items())]
        for system, by_k in values.items()
    }
    with line_chart(curves, "number of clusters k", title) as (figure, _):
        pass
    rows = [
        {"system": system, "clusters": k, title: value}
        for system, curve in curves.items()
        for k, value in curve
    ]
    several = any(len(own) > 1 for by_k in values.values() for own in by_k.values())
    mean = ", means of runs with the same k" if several else ""
    begun = title[0].upper() + title[1:]
    caption = f"{begun} by the number of clusters{mean}; {span}."
    return DrawnFigure(slug(f"{title} by k"), f"{begun} by k", caption, figure, rows)


def draw_sizes(run: RecordedRun) -> DrawnFigure:
    """Draw the number of images by client and cluster as a heat map."""
    if not run.clusters_images:
        raise CannotDrawError("the run classifies images")
    owners = run.values_of_images("client", "no client is known")
    held = owners >= 0
    counts = contingency_table(owners[held], run.labels[held], len(run.clients), run.groups)
    return draw_client_table(run, counts, ("cluster", "clusters"), range(run.groups))
