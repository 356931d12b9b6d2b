"""The FedDecorr paper's figures: TPAMI 1 to 9, ICLR 7 to 11."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ccfcpp.core.metrics import ROUNDING, effective_rank
from ccfcpp.papers.reproduction.claims import (
    Claim,
    claim,
    ends_lower,
    everywhere,
    falls,
    gains,
    higher,
    rises,
)
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
    drawn_of,
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
from ccfcpp.report import classes, planes
from ccfcpp.report.drawing import Drawn
from ccfcpp.report.examination import examine
from supervised.algorithm import TERM

_SIGNIFICANT = math.exp(-2)
"""The paper's example of a threshold for singular values: its logarithm is -2."""
_WITH, _WITHOUT = PAIR[0]

Logs = dict[Path, dict[int, float]]
"""Accuracy after each round, by the run's folder."""

_by_alpha = partial(tabulate, axis="alpha", panel=images, place=alpha, system=classification_system)


def collapse(
    rank: str, spectrum: Spectrum, results: Sequence[Result], panel: Label = images
) -> Findings:
    """Figures 2 and 3: singular values by the degree of skew, of the global or of local models.

    So are Figures 7 to 9 of the ICLR paper, of other methods, networks and images.
    """
    ranks = _by_alpha(results, "effective rank", summarised(rank), panel=panel)
    counts = _by_alpha(
        results,
        "singular values above exp(-2)",
        of_spectrum(spectrum, _significant),
        panel=panel,
    )
    figures = [
        draw_spectra(name, curves(group, _labelled_alpha, spectrum))
        for name, group in by_label(results, panel).items()
    ]
    return found([counts, ranks], _collapses(counts, ranks), figures)


def _collapses(counts: ScoreTable, ranks: ScoreTable) -> list[Claim]:
    """Both rise with each weaker skew."""
    fewer = "fewer singular values are significant with each stronger skew"
    falling = "the effective rank falls with each stronger skew"
    return [
        claim(fewer, rises(counts.systems), counts),
        claim(falling, rises(ranks.systems), ranks, stated=False),
    ]


def other_clients(results: Sequence[Result]) -> Findings:
    """Figure 10 of the ICLR paper: the local models of all clients but the first, one by one."""
    clients = sorted({client for each in results for client in _clients(each)})[1:]
    ranks: dict[Place, Score] = {}
    counts: dict[Place, Score] = {}
    figures = []
    for client in clients:
        of_client, system = partial(_spectrum_of, client), constant(f"client {client + 1}")
        for scores, measure in ((counts, _significant), (ranks, effective_rank)):
            own = of_spectrum(of_client, measure)
            scores |= _by_alpha(results, "", own, system=system).scores
        figures += [
            draw_spectra(f"{panel}, client {client + 1}", curves(group, _labelled_alpha, of_client))
            for panel, group in by_label(results, images).items()
        ]
    tables = (
        ScoreTable("singular values above exp(-2)", "alpha", counts),
        ScoreTable("effective rank", "alpha", ranks),
    )
    return found(tables, _collapses(*tables), figures)


def _clients(result: Result) -> list[int]:
    """Whose local models were kept."""
    known = result.folder.read_arrays("spectra").get("client")
    return [] if known is None else [int(client) for client in known]


def _spectrum_of(client: int, result: Result) -> Tensor | None:
    clients = _clients(result)
    return local_spectrum(result, clients.index(client)) if client in clients else None


def at_a_glance(results: Sequence[Result]) -> Findings:
    """Figure 1: who holds what, and representations without skew, with skew, with FedDecorr.

    In the paper representations are on the unit sphere; here they are in the plane, by t-SNE. The
    degree of skew is not printed.
    """
    ranks = _by_alpha(results, "effective rank", summarised("effective_rank"))
    figures: list[Drawn] = []
    left_out: list[str] = []
    for result in first_seeds(results):
        run = examine(result.path, result.settings["data.root"])
        labels = images(result), _labelled_alpha(result), classification_system(result)
        draws = [classes.holdings] if labels[-1] == _WITHOUT else []
        for draw in (*draws, planes.by_class):
            figures += drawn_of(partial(draw, run), labels, left_out)
    claims = [
        claim("skew makes the effective rank smaller", rises([_WITHOUT]), ranks),
        claim("FedDecorr raises it again", higher(PAIR), ranks),
    ]
    return replace(found([ranks], claims, figures), left_out=left_out)


_STABLE = 1.5
"""How many times as high as in the epoch before a term may be that evolves stably: our bound."""


def term_by_epoch(results: Sequence[Result]) -> Findings:
    """Figure 11 of the ICLR paper: the decorrelation term of each client within a round.

    Which round it shows is not printed: here it is the first. Clients are numbered by their size,
    the largest first.
    """
    terms: dict[Place, Score] = {}
    steps: dict[Place, Score] = {}
    for name, group in by_label(first_seeds(results), by_images_and_alpha).items():
        for client, line in _terms(group[0]).items():
            system = f"client {client}"
            terms |= {(name, str(epoch), system): Score(term) for epoch, term in line.items()}
            steps |= {
                (name, f"{first} to {second}", system): Score(line[second] / line[first])
                for first, second in itertools.pairwise(line)
            }
    table = ScoreTable("FedDecorr's term", "local epoch", terms)
    stable = f"the term is stable: at most {_STABLE} times that of the epoch before (our bound)"
    lower = "it is lower after the last local epoch than after the first"
    of_steps = ScoreTable("term over that of the epoch before", "local epochs", steps)
    claims = [
        claim(stable, everywhere(lambda step: step <= _STABLE), of_steps),
        claim(lower, ends_lower(table.systems), table, stated=False),
    ]
    return found([table], claims, [])


def _terms(result: Result) -> dict[int, dict[int, float]]:
    """The terms of the first round by client and local epoch, both from 1 on."""
    terms: dict[int, dict[int, float]] = {}
    for key, value in result.folder.read_log()[0]["figures"].items():
        name, *numbers = key.split("/")
        if name == TERM:
            client, epoch = map(int, numbers)
            terms.setdefault(client, {})[epoch] = value
    return terms


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
