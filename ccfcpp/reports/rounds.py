"""Figures of scores, losses, bytes and participation by round."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from ccfcpp.reports.drawing import (
    Curve,
    DrawnFigure,
    line_chart,
    new_picture,
    thin_ticks,
    whole_numbers,
)
from ccfcpp.reports.labels import Gathered, slug
from ccfcpp.reports.palette import CATEGORIES, MUTED
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError
from ccfcpp.runs.paths import Json

Curves = dict[str, Curve]
"""Pairs of a round, counted from 1, and a value, by the name of the value."""

_SCORES = {"nmi": "NMI", "kappa": "Kappa", "accuracy": "accuracy", "ari": "ARI"}
_MOST_CURVES = 10


def scores_by_round(run: RecordedRun) -> Curves:
    """Return a curve over the rounds for each score of a run."""
    logged = {str(key) for row in run.log for key in row.get("scores", {})}
    single = sorted(key for key in logged if key.startswith("accuracy "))
    # The curves of many domains, or of many clients' own models, would hide each other.
    keys = [*_SCORES, *(single if len(single) < _MOST_CURVES else [])]
    curves = {_SCORES.get(key, key): _logged(run, "scores", key) for key in keys if key in logged}
    if not curves:
        labelled = run.setting is None or run.setting.classes
        raise CannotDrawError(
            "no round was scored" if labelled else "the images have no labels to score against"
        )
    return curves


def ranks_by_round(run: RecordedRun) -> Curves:
    """Return a curve of the effective rank of the global model's representations over rounds."""
    curve = _logged(run, "scores", "effective_rank")
    if not curve:
        raise CannotDrawError("the rounds of this system have none")
    return {"effective rank": curve}


def losses_by_round(run: RecordedRun) -> Curves:
    """Return a curve over the rounds for each logged loss or progress, without single clients'."""
    reported = (key for row in run.log for key in row.get("figures", {}))
    keys = dict.fromkeys(key for key in reported if "/" not in key)
    curves = {key.replace("_", " "): _logged(run, "figures", key) for key in keys}
    if not curves:
        raise CannotDrawError("no round reported a loss")
    return curves


def _logged(run: RecordedRun, kind: str, key: str) -> Curve:
    return [(row["round"] + 1, row[kind][key]) for row in run.log if key in row[kind]]


def traffic_by_round(run: RecordedRun) -> Curves:
    """Return curves of the megabytes that all clients together had received and sent so far."""
    if not run.log:
        raise CannotDrawError("no round was run")
    numbers = [row["round"] + 1 for row in run.log]
    directions = {"to clients": "bytes_down", "to the server": "bytes_up"}
    return {
        name: list(zip(numbers, np.cumsum([row[key] for row in run.log]) / 1e6, strict=True))
        for name, key in directions.items()
    }


def _draw(
    name: str, title: str, unit: str, caption: str, gathered: Gathered[Curves]
) -> list[DrawnFigure]:
    """Draw a single run's curves in one figure; or, for each curve, all runs in one figure.

    ``name``, ``title`` and ``caption`` are those of the figures; ``unit`` labels the y axis.
    """
    if len(gathered) == 1:
        ((run, curves),) = gathered
        return [_draw_curves(name, title, unit, caption, curves, _last_pretraining_round(run))]
    keys = dict.fromkeys(key for _, curves in gathered for key in curves)
    names = {key: (f"{name}-{slug(key)}", f"{title}: {key}") for key in keys}
    if len(keys) == 1:
        names = dict.fromkeys(keys, (name, title))
    lines = {key: {run.label: own[key] for run, own in gathered if key in own} for key in keys}
    return [_draw_curves(*names[key], unit, caption, lines[key]) for key in keys]


def _draw_curves(
    name: str, title: str, unit: str, caption: str, curves: Curves, phase: int | None = None
) -> DrawnFigure:
    with line_chart(curves, "round", unit) as (figure, axes):
        if phase is not None:
            axes.axvline(phase + 0.5, color=MUTED, linewidth=1, linestyle=":")
            caption += f" Dotted: pre-training ends after round {phase}."
    rows = [
        {"series": series, "round": number, "value": value}
        for series, curve in curves.items()
        for number, value in curve
    ]
    return DrawnFigure(name, title, caption, figure, rows)


draw_scores = partial(
    _draw,
    "scores",
    "Scores by round",
    "score",
    "Agreement of the global model with the true classes, round by round; 1 is best.",
)
draw_ranks = partial(
    _draw,
    "rank",
    "Effective rank by round",
    "effective rank",
    "About so many directions of the global model's representations are in use.",
)
draw_losses = partial(
    _draw,
    "loss",
    "Loss and progress by round",
    "value",
    "Mean loss over the clients that took part in a round, or the movement of the centroids.",
)
draw_traffic = partial(
    _draw,
    "bytes",
    "Bytes by round",
    "MB so far",
    "Bytes between the server and all clients together so far. Those of a run in one process would "
    "travel if its clients were on other machines.",
)


def _last_pretraining_round(run: RecordedRun) -> int | None:
    """Return the last round of pre-training; None for a run without it, or with no other round."""
    rounds: int = run.facts.get("pretrain_rounds", 0)
    return rounds if 0 < rounds < len(run.log) else None


STATES: Mapping[str, str | None] = {
    "took part": CATEGORIES[0],
    "missed a part": CATEGORIES[1],
    "absent": None,
    "refused": CATEGORIES[2],
    "never there": CATEGORIES[3],
}
"""States of a client in a round, with their colours; None is the background's."""


def participation(run: RecordedRun) -> DrawnFigure:
    """Draw which clients took part in which round."""
    if not run.log:
        raise CannotDrawError("no round was run")
    states = np.array([[_state(run, row, n) for row in run.log] for n in run.clients])
    with new_picture(min(6.5, max(2.2, 1.2 + 0.2 * len(run.clients)))) as (figure, axes):
        inks = [to_rgba(colour or (0, 0, 0, 0)) for colour in STATES.values()]
        span = (0.5, len(run.log) + 0.5, len(run.clients) - 0.5, -0.5)
        axes.imshow(np.array(inks)[states], aspect="auto", extent=span)
        axes.set_yticks(*thin_ticks([*run.clients.values()]))
        axes.set(xlabel="round")
        axes.xaxis.set_major_locator(whole_numbers())
        axes.spines[:].set_visible(True)
        patches = [
            Patch(facecolor=colour or "none", edgecolor=MUTED, linewidth=0.6, label=state)
            for number, (state, colour) in enumerate(STATES.items())
            if (states == number).any()
        ]
        figure.legend(
            handles=patches, loc="outside upper left", ncols=4, frameon=False, handlelength=1.2
        )
    names = list(STATES)
    rows = [
        {"client": client, "name": name, "round": row["round"] + 1, "state": names[state]}
        for (client, name), own in zip(run.clients.items(), states, strict=True)
        for row, state in zip(run.log, own, strict=True)
    ]
    caption = (
        "Clients (rows) by round (columns). Marked are those whose update the server refused, and "
        "those that were absent from some of a round's exchanges."
    )
    return DrawnFigure("participation", "Who took part", caption, figure, rows)


def _state(run: RecordedRun, row: Json, client: int) -> int:
    if client not in run.connected:
        state = "never there"
    elif str(client) in row["refused"]:
        state = "refused"
    elif client not in row["clients"]:
        state = "absent"
    else:
        state = "missed a part" if str(client) in row.get("absent", {}) else "took part"
    return list(STATES).index(state)
