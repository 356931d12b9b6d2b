"""The FedDecorr paper (TPAMI), Figures 2 to 9: spectra, curves and the weight beta."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from ccfcpp.core.metrics import ROUNDING
from ccfcpp.papers.reproduction.claims import claim, everywhere, falls, gains, higher, rises
from ccfcpp.papers.reproduction.classification_tables import (
    PAIR,
    RAISES,
    accuracy,
    alpha,
    by_images_and_alpha,
)
from ccfcpp.papers.reproduction.drawing import draw_scores, draw_spectra
from ccfcpp.papers.reproduction.findings import (
    Findings,
    Spectrum,
    by_label,
    curves,
    first_seeds,
    found,
    global_spectrum,
    local_spectrum,
    of_spectrum,
)
from ccfcpp.papers.reproduction.labels import classification_system, constant, images, partition
from ccfcpp.papers.reproduction.published import ACCURACY
from ccfcpp.papers.reproduction.results import (
    ANY,
    Label,
    Place,
    Result,
    Score,
    ScoreTable,
    plain,
    summarised,
    tabulate,
)
from ccfcpp.report.drawing import Drawn

_SIGNIFICANT = math.exp(-2)
"""The paper's example of a threshold for singular values: its logarithm is -2."""
_WITH, _WITHOUT = PAIR[0]

Logs = dict[Path, dict[int, float]]
"""Accuracy after each round, by the run's folder."""

_by_alpha = partial(tabulate, axis="alpha", panel=images, place=alpha, system=classification_system)


def collapse(rank: str, spectrum: Spectrum, results: Sequence[Result]) -> Findings:
    """Figures 2 and 3: singular values by the degree of skew, of the global or of local models."""
    ranks = _by_alpha(results, "effective rank", summarised(rank))
    counts = _by_alpha(
        results, "singular values above exp(-2)", of_spectrum(spectrum, _significant)
    )
    figures = [
        draw_spectra(panel, curves(group, _labelled_alpha, spectrum))
        for panel, group in by_label(results, images).items()
    ]
    fewer = "fewer singular values are significant with each stronger skew"
    falling = "the effective rank falls with each stronger skew"
    claims = [
        claim(fewer, rises([_WITHOUT]), counts),
        claim(falling, rises([_WITHOUT]), ranks, stated=False),
    ]
    return found([counts, ranks], claims, figures)


def _significant(values: Tensor) -> float:
    return float((values > _SIGNIFICANT).sum())


def _labelled_alpha(result: Result) -> str:
    return f"alpha = {alpha(result)}"


def gap(results: Sequence[Result]) -> Findings:
    """Figure 4: local spectra beside the global one."""
    gaps = _by_alpha(results, "gap R", summarised("gap"))
    skewed = gaps.at(*(place for _, place in gaps.conditions if place != plain(math.inf)))
    lowers = "averaging lowers singular values under skew (R above 0)"
    claims = [
        claim(lowers, everywhere(lambda value: value > 0), skewed),
        claim("R is smaller with each weaker skew", falls([_WITHOUT]), gaps),
        claim(
            "without skew the curves are almost the same (R within 0.1 of 0)",
            everywhere(lambda value: abs(value) < 0.1),
            gaps.at(plain(math.inf)),
        ),
    ]
    return found([gaps], claims, _local_beside_global(results, by_images_and_alpha))


def closed_gap(results: Sequence[Result]) -> Findings:
    """Figure 6: the gap between local and global spectra, with FedDecorr and without."""
    gaps = _by_alpha(results, "gap R", summarised("gap"))

    def label(result: Result) -> str:
        return f"{by_images_and_alpha(result)}, {classification_system(result)}"

    claims = [claim("FedDecorr makes R smaller", higher([(_WITHOUT, _WITH)]), gaps)]
    return found([gaps], claims, _local_beside_global(results, label))


def _local_beside_global(results: Sequence[Result], label: Label) -> list[Drawn]:
    figures = []
    for name, group in by_label(first_seeds(results), label).items():
        ends = {"global model": global_spectrum, "a local model": local_spectrum}
        both = {
            whose: values
            for whose, spectrum in ends.items()
            if (values := curves(group, label, spectrum).get(name))
        }
        figures.append(draw_spectra(name, both))
    return figures


def regulariser(title: str, rank: str, spectrum: Spectrum, results: Sequence[Result]) -> Findings:
    """Figures 5 and 7: with FedDecorr and without, of local models or the global one."""
    ranks = _by_alpha(results, "effective rank", summarised(rank))
    tails = _by_alpha(results, "logarithm of the tail", of_spectrum(spectrum, _log_tail))
    figures = [
        draw_spectra(name, curves(group, classification_system, spectrum))
        for name, group in by_label(results, by_images_and_alpha).items()
    ]
    claims = [
        claim(f"FedDecorr raises the effective rank of {title}", higher(PAIR), ranks),
        claim("it keeps the tail of the spectrum from dropping", higher(PAIR), tails),
    ]
    return found([ranks, tails], claims, figures)


def _log_tail(values: Tensor) -> float:
    """Mean logarithm of the smaller half of the singular values, over the largest one."""
    tail = (values[len(values) // 2 :] / values[0]).clamp(min=ROUNDING)
    return float(tail.log().mean())


def learning_curves(results: Sequence[Result]) -> Findings:
    """Figure 8: accuracy after each round."""
    table = _by_round(results)
    sooner = gains(_rounds_needed(table), PAIR)
    claims = [
        claim("with FedDecorr accuracy is higher after a round", higher(PAIR), table),
        claim(
            "it takes fewer rounds to FedAvg's last accuracy",
            everywhere(lambda rounds: rounds < 0),
            sooner,
        ),
    ]
    ends = table.at(table.places(table.panels[0])[-1])
    return Findings([(ends, None)], claims, draw_scores(table))


def _by_round(results: Sequence[Result]) -> ScoreTable:
    logs = {result.path: _accuracies(result) for result in results}
    by_round = partial(tabulate, axis="round", panel=partition, system=classification_system)
    scores: dict[Place, Score] = {}
    for number in sorted({number for log in logs.values() for number in log}):
        after = partial(_after, logs, number)
        scores |= by_round(results, ACCURACY, after, place=constant(str(number))).scores
    return ScoreTable(ACCURACY, "round", scores)


def _after(logs: Logs, number: int, result: Result) -> float | None:
    return logs[result.path].get(number)


def _accuracies(result: Result) -> dict[int, float]:
    """Accuracy in percent after each round, the first of which is round 1."""
    rows = result.folder.read_log()
    return {row["round"] + 1: 100 * row["scores"]["accuracy"] for row in rows if row["scores"]}


def _rounds_needed(table: ScoreTable) -> ScoreTable:
    """After how many rounds the mean accuracy is FedAvg's last one; one more where it never is."""
    scores: dict[Place, Score] = {}
    for panel in table.panels:
        rounds = table.places(panel)
        goal = table.scores[panel, rounds[-1], _WITHOUT].mean
        for system in table.systems:
            means = [table.scores[panel, number, system].mean for number in rounds]
            reached = [int(n) for n, mean in zip(rounds, means, strict=True) if mean >= goal]
            needed = reached[0] if reached else int(rounds[-1]) + 1
            scores[panel, "rounds", system] = Score(needed)
    return ScoreTable("rounds", "", scores)


def beta(results: Sequence[Result]) -> Findings:
    """Figure 9: the weight beta."""

    def place(result: Result) -> str:
        has_none = result.settings["decorrelation.kind"] == "none"
        return ANY if has_none else plain(result.settings["decorrelation.beta"])

    ours = tabulate(
        results,
        ACCURACY,
        accuracy,
        axis="beta",
        panel=by_images_and_alpha,
        place=place,
        system=classification_system,
    )
    missing = ours.below_best(_WITH).at("0.1")
    near = "beta = 0.1 is within a percentage point of the best"
    claims = [
        claim(f"{RAISES}, whatever beta", higher(PAIR), ours),
        claim(near, everywhere(lambda missing: missing <= 1), missing, stated=False),
    ]
    return found([ours], claims, [])
