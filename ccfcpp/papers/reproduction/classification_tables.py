"""The FedDecorr paper (TPAMI), Tables 1 to 8: accuracies, and the time of a round."""

import math
import statistics
from collections.abc import Sequence
from functools import partial

from ccfcpp.papers.reproduction.claims import (
    Claim,
    Pairs,
    claim,
    ends_higher,
    ends_lower,
    everywhere,
    falls,
    gains,
    higher,
    highest,
    led_by,
    rises,
)
from ccfcpp.papers.reproduction.drawing import draw_scores
from ccfcpp.papers.reproduction.findings import Findings
from ccfcpp.papers.reproduction.labels import (
    classification_system,
    constant,
    decorrelation_term,
    images,
    images_and,
    network,
)
from ccfcpp.papers.reproduction.published import (
    ACCURACY,
    accuracy_table,
    iclr_table,
    minutes_table,
    with_term,
)
from ccfcpp.papers.reproduction.results import (
    Label,
    Result,
    ScoreTable,
    plain,
    setting,
    summarised,
    tabulate,
)

_AVERAGED = ("FedAvg", "FedProx", "FedAvgM", "MOON", "FedBN")
_PAIRS: Pairs = [(with_term(method, feddecorr=True), method) for method in _AVERAGED]
_WITH = [system for system, _ in _PAIRS]
PAIR: Pairs = _PAIRS[:1]
"""FedAvg with FedDecorr and without."""
RAISES = "FedDecorr raises accuracy"

accuracy = summarised("accuracy", factor=100)
alpha = setting("partition.alpha")
by_images_and_alpha = images_and("partition.alpha", "alpha")


def _compared(
    paper: ScoreTable, results: Sequence[Result], panel: Label, place: Label, system: Label
) -> tuple[ScoreTable, ScoreTable]:
    """Accuracies, and those of one of the papers' tables."""
    ours = tabulate(
        results, ACCURACY, accuracy, axis=paper.axis, panel=panel, place=place, system=system
    )
    return ours, paper


def _shown(ours: ScoreTable, paper: ScoreTable, claims: Sequence[Claim]) -> Findings:
    return Findings([(ours, paper)], claims, draw_scores(ours, paper))


_STRONG = {1: ("0.05", "0.1"), 2: ("3", "20", "80")}
"""Where Tables 1 and 2 have strong skew: by alpha, and by the fewest classes of each data set."""


def heterogeneity(number: int, place: Label, results: Sequence[Result]) -> Findings:
    """Tables 1 and 2: methods by the degree of label skew."""
    ours, paper = _compared(accuracy_table(number), results, images, place, classification_system)
    gained, published = (gains(table, _PAIRS) for table in (ours, paper))
    strong, even = _STRONG[number], plain(math.inf)
    # "Around": what rounds to 2 to 9.
    two_to_nine = everywhere(lambda gain: 1.5 <= gain < 9.5)
    on_a_par = everywhere(lambda gain: abs(gain) < 1)
    skewed = ours.without(even), paper.without(even)
    claims = [
        claim(f"{RAISES} where clients differ", higher(_PAIRS), *skewed),
        claim(
            "its gain is smaller with the weakest skew than with the strongest",
            ends_lower(_WITH),
            gained,
            published,
        ),
        claim("the highest accuracy is one with FedDecorr", led_by(_WITH), *skewed),
        claim(
            "under strong skew its gain is around 2 to 9 percentage points",
            two_to_nine,
            gained.at(*strong),
            published.at(*strong),
        ),
    ]
    if number == 1:
        par = "without skew it is on a par (within one percentage point, our bound)"
        claims.append(claim(par, on_a_par, gained.at(even), published.at(even)))
    return _shown(ours, paper, claims)


def few_classes(results: Sequence[Result]) -> Findings:
    """Table 10 of the ICLR paper: the pathological partition of CIFAR-10."""
    place = setting("partition.classes_per_client")
    ours, paper = _compared(iclr_table(10), results, images, place, classification_system)
    return _shown(ours, paper, [claim(RAISES, higher(PAIR), ours, paper)])


def domains(results: Sequence[Result]) -> Findings:
    """Table 3: a domain a client; the mean over the domains, and each of them."""
    paper = accuracy_table(3)
    by_domain = partial(tabulate, axis=paper.axis, panel=images, system=classification_system)
    # The paper names domains by their first letters.
    in_paper = bool({images(result) for result in results} & set(paper.panels))
    scores = dict(by_domain(results, ACCURACY, accuracy, place=constant("Avg")).scores)
    for key in dict.fromkeys(key for result in results for key in result.summary):
        kind, _, name = key.partition(" ")
        if kind == "accuracy" and name:
            place = constant(name[0].upper() if in_paper else name)
            of_domain = summarised(key, factor=100)
            scores |= by_domain(results, ACCURACY, of_domain, place=place).scores
    ours = ScoreTable(ACCURACY, paper.axis, scores)
    mean = "FedDecorr raises the mean accuracy over the domains"
    each = "it raises the accuracy in a single domain"
    claims = [
        claim(mean, higher(_PAIRS), ours.at("Avg"), paper.at("Avg")),
        claim(each, higher(_PAIRS), ours.without("Avg"), paper.without("Avg"), stated=False),
    ]
    return _shown(ours, paper, claims)


def clients(published: ScoreTable, results: Sequence[Result]) -> Findings:
    """Table 4, and Table 3 of the ICLR paper: the number of clients."""
    place = setting("partition.clients")
    ours, paper = _compared(published, results, by_images_and_alpha, place, classification_system)
    larger = "its gain is larger with the most clients than with the fewest"
    step = "FedAvg's accuracy falls with each step to more clients"
    claims = [
        claim(RAISES, higher(PAIR), ours, paper),
        claim(larger, ends_higher(_WITH), gains(ours, PAIR), gains(paper, PAIR)),
        claim(step, falls(["FedAvg"]), ours, paper, stated=False),
    ]
    return _shown(ours, paper, claims)


def epochs(results: Sequence[Result]) -> Findings:
    """Table 5: the number of local epochs."""
    place = setting("training.local_epochs")
    ours, paper = _compared(
        accuracy_table(5), results, by_images_and_alpha, place, classification_system
    )
    first = "FedAvg's accuracy rises from 1 local epoch to 5"
    last = "it falls from 10 to 20"
    claims = [
        claim(RAISES, higher(PAIR), ours, paper),
        claim(first, rises(["FedAvg"]), ours.at("1", "5"), paper.at("1", "5")),
        claim(last, falls(["FedAvg"]), ours.at("10", "20"), paper.at("10", "20")),
    ]
    return _shown(ours, paper, claims)


def times(results: Sequence[Result]) -> Findings:
    """Table 6: what a round takes, over FedAvg's."""
    seconds = tabulate(
        results,
        "seconds of a round",
        _seconds_of_a_round,
        axis="",
        panel=images,
        place=constant("a round"),
        system=_timed_system,
    )
    ours, paper = seconds.over("FedAvg", "time of a round over FedAvg's"), minutes_table()
    claims = [
        claim(
            "FedDecorr takes little more than FedAvg (at most a tenth)",
            everywhere(lambda quotient: quotient < 1.1),
            ours.of("FedDecorr"),
            paper.of("FedDecorr"),
        ),
        claim(
            "FedProx and MOON take more than FedDecorr",
            higher([("FedProx", "FedDecorr"), ("MOON", "FedDecorr")]),
            ours,
            paper,
        ),
    ]
    return Findings([(seconds, None), (ours, paper)], claims, draw_scores(ours, paper))


def _timed_system(result: Result) -> str:
    with_it = result.settings["decorrelation.kind"] == "feddecorr"
    return "FedDecorr" if with_it else classification_system(result)


def _seconds_of_a_round(result: Result) -> float | None:
    """The median of all rounds but the first, in which everything is done for the first time."""
    seconds = [float(row["seconds"]) for row in result.folder.read_log()[1:]]
    return statistics.median(seconds) if seconds else None


def terms(results: Sequence[Result]) -> Findings:
    """Table 7: other decorrelation terms."""
    ours, paper = _compared(accuracy_table(7), results, images, alpha, decorrelation_term)
    others = [("FedAvg", other) for other in ("DeCov", "Structured-DeCov")]
    best = "FedDecorr has the highest accuracy of all terms"
    claims = [
        claim(best, highest("FedDecorr"), ours, paper),
        claim("DeCov and Structured-DeCov lower the accuracy", higher(others), ours, paper),
    ]
    return _shown(ours, paper, claims)


def networks(results: Sequence[Result]) -> Findings:
    """Table 8: other networks."""
    ours, paper = _compared(
        accuracy_table(8), results, by_images_and_alpha, network, classification_system
    )
    wide = [(name, "ResNet32") for name in ("MobileNetV2", "ResNet18")]
    gained, published = (gains(table, PAIR).by_place() for table in (ours, paper))
    larger = "its gain is larger on a wide network than on ResNet32"
    claims = [
        claim(RAISES, higher(PAIR), ours, paper),
        claim(larger, higher(wide), gained, published),
    ]
    return _shown(ours, paper, claims)
