"""What stands where in our tables: the settings of the runs behind each place, by loops."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ccfcpp.studies.results import Result
from ccfcpp.studies.scores import ANY, Place
from tests.support.reproduction import Measure, score, spectrum

Settings = Mapping[str, Any]
Named = Mapping[str, Settings]
Places = Mapping[Place, Settings]
Shape = tuple[Measure, Places]


def places(panels: Named, axis: Named, systems: Named) -> Places:
    """All combinations."""
    return {
        (panel, place, system): {**of_panel, **of_place, **of_system}
        for panel, of_panel in panels.items()
        for place, of_place in axis.items()
        for system, of_system in systems.items()
    }


def along(key: str, **values: float) -> Named:
    """An axis: places by their names, each with a value of a setting."""
    return {name: {key: value} for name, value in values.items()}


def numbers(key: str, *values: float) -> Named:
    """An axis of numbers."""
    return {"∞" if v == math.inf else format(v, "g"): {key: v} for v in values}


def within(panel: str, name: str, axis: Named) -> Named:
    """Panels by the values of a setting."""
    return {f"{panel}, {name} = {value}": settings for value, settings in axis.items()}


def crossed(panels: Named, inner: Callable[[str], Named]) -> Named:
    """Panels of panels."""
    return {
        name: {**outer, **settings}
        for panel, outer in panels.items()
        for name, settings in inner(panel).items()
    }


# --- clustering ---------------------------------------------------------------------------------

PART_OF_MNIST = "MNIST (2,000 images, 14 pixels a side)"
DIGITS: Named = {"digits": {"dataset": "digits"}}
MNIST: Named = {PART_OF_MNIST: {"dataset": "mnist"}}
BOTH: Named = {**DIGITS, **MNIST}
P = numbers("partition.p", 0.0, 0.25, 0.5, 0.75, 1.0)
FEDERATED: Named = {
    "k-FED": {"method": "k-fed"},
    "FFCM-avg": {"method": "ffcm-avg"},
    "FFCM-km": {"method": "ffcm-km"},
    "SDA-FC-KM": {"method": "sda-fc-km"},
    "SDA-FC-FCM": {"method": "sda-fc-fcm"},
    "PPFC-GAN": {"method": "ppfc-gan"},
    "CCFC": {"method": "ccfc"},
    "CCFC++": {"method": "ccfc++"},
}
CENTRALISED: Named = {"KM": {"method": "km"}, "FCM": {"method": "fcm"}}
CCFC: Named = {"CCFC": {"method": "ccfc"}}
CCFC_PAIR: Named = {**CCFC, "CCFC++": {"method": "ccfc++"}}
ANYWHERE: Named = {ANY: {}}

ALL_SYSTEMS = {**places(DIGITS, ANYWHERE, CENTRALISED), **places(DIGITS, P, FEDERATED)}
BY_P = crossed(BOTH, lambda panel: within(panel, "p", P))
BY_ETA = {
    **places(BY_P, ANYWHERE, CCFC),
    **places(
        BY_P,
        numbers("loss.eta", 0.01, 0.1, 1.0, 10.0),
        {"CCFC++": {"method": "ccfc++"}},
    ),
}
BY_RATE = places(
    {
        **crossed(DIGITS, lambda panel: within(panel, "p", numbers("partition.p", 0.75))),
        **crossed(MNIST, lambda panel: within(panel, "p", numbers("partition.p", 0.0, 0.75))),
    },
    numbers("availability.disconnection_rate", 0.0, 0.3, 0.6, 0.9),
    CCFC_PAIR,
)


def share_of_collapsed(result: Result) -> float:
    values = list(map(float, spectrum(result, "global")))
    return sum(value < max(values) / 100 for value in values) / len(values)


# --- classification -----------------------------------------------------------------------------

ACCURACY = score("accuracy", 100)
ALPHA = "partition.alpha"
WITHOUT, WITH = {"decorrelation.kind": "none"}, {"decorrelation.kind": "feddecorr"}
AVERAGED = {"FedAvg": "fedavg", "FedProx": "fedprox", "FedAvgM": "fedavgm", "MOON": "moon"}


def with_and_without(methods: Mapping[str, str]) -> Named:
    return {
        title + suffix: {"method": method, **term}
        for title, method in methods.items()
        for suffix, term in (("", WITHOUT), (" + FedDecorr", WITH))
    }


SIX: Named = {
    "SCAFFOLD": {"method": "scaffold"},
    "FedNova": {"method": "fednova"},
    **with_and_without(AVERAGED),
}
FEDAVG: Named = {"FedAvg": {}}
FEDAVG_PAIR = with_and_without({"FedAvg": "fedavg"})
HERE: Named = {"digits": {}}
PATHOLOGICAL = {"partition.kind": "classes"}
DIRICHLET = {"partition.kind": "dirichlet"}


def by_alpha(*alphas: float) -> Named:
    return within("digits", "alpha", numbers(ALPHA, *alphas))


COLLAPSE = places(HERE, numbers(ALPHA, 0.01, 0.05, 0.25, math.inf), FEDAVG)
REGULARISER = places(HERE, numbers(ALPHA, 0.01, 0.05), FEDAVG_PAIR)
CURVES: Named = {
    **{name: {**DIRICHLET, **own} for name, own in by_alpha(0.05, 0.1, 0.5).items()},
    **{
        f"digits, {m} classes a client": {**PATHOLOGICAL, "partition.classes_per_client": m}
        for m in (3, 4, 5)
    },
}
DOMAINS = ("plain", "inverted", "turned", "blurred")
FIVE = with_and_without({**AVERAGED, "FedBN": "fedbn"})
TIMED: Named = {
    "FedAvg": {"method": "fedavg", **WITHOUT},
    "FedProx": {"method": "fedprox"},
    "MOON": {"method": "moon"},
    "FedDecorr": {"method": "fedavg", **WITH},
}
TERMS: Named = {
    "FedAvg": WITHOUT,
    "DeCov": {"decorrelation.kind": "decov"},
    "Structured-DeCov": {"decorrelation.kind": "structured-decov"},
    "FedDecorr": WITH,
}
NETWORKS: Named = {
    "MobileNetV2": {"model.name": "mobilenetv2"},
    "ResNet18": {"model.name": "resnet18"},
    "ResNet32": {"model.name": "resnet32"},
}
BY_BETA = {
    **places(by_alpha(0.05, 0.1), ANYWHERE, {"FedAvg": WITHOUT}),
    **places(
        by_alpha(0.05, 0.1),
        numbers("decorrelation.beta", 0.01, 0.05, 0.1, 0.2, 0.3),
        {"FedAvg + FedDecorr": WITH},
    ),
}


def seconds_of_a_round(result: Result) -> float:
    """The median of all rounds but the first."""
    lines = [json.loads(line) for line in result.folder.metrics.read_text().splitlines()]
    low, high = sorted(line["seconds"] for line in lines if line["round"] > 0)[1:3]
    assert len(lines) == 5
    return float(low + high) / 2


def significant(name: str) -> Measure:
    return lambda result: sum(math.log(value) > -2 for value in spectrum(result, name))


def log_tail(name: str) -> Measure:
    def measure(result: Result) -> float:
        values = list(spectrum(result, name))
        logarithms = [math.log(max(value / values[0], 1e-12)) for value in values]
        tail = logarithms[len(values) // 2 :]
        return sum(tail) / len(tail)

    return measure


def accuracy_after(number: int) -> Measure:
    """In percent, after a round, the first of which is number 1."""

    def measure(result: Result) -> float:
        lines = [json.loads(line) for line in result.folder.metrics.read_text().splitlines()]
        (scores,) = (line["scores"] for line in lines if line["round"] == number - 1)
        return 100 * float(scores["accuracy"])

    return measure


def collapse(behind: Places) -> list[Shape]:
    """Both tables of the collapse of the global model."""
    return [(significant("global"), behind), (score("effective_rank"), behind)]


OTHER_METHODS = {
    place: settings
    for title, method in AVERAGED.items()
    if title in ("FedAvgM", "FedProx", "MOON")
    for place, settings in places(
        {f"digits, {title}": {}},
        numbers(ALPHA, 0.01, 0.05, 0.25, math.inf),
        {title: {"method": method}},
    ).items()
}
OTHER_NETWORKS = places(
    {f"digits, {title}": NETWORKS[title] for title in ("ResNet32", "ResNet18")},
    numbers(ALPHA, 0.05, math.inf),
    FEDAVG,
)
OTHER_IMAGES = places(
    {name: {"dataset": name} for name in ("digits", "mnist")},
    numbers(ALPHA, 0.01, 0.05, 0.25, math.inf),
    FEDAVG,
)


SHAPES: Mapping[str, list[Shape]] = {
    "ccfcpp-table1": [(score("nmi"), ALL_SYSTEMS), (score("nmi_geometric"), ALL_SYSTEMS)],
    "ccfcpp-table2": [(score("kappa"), ALL_SYSTEMS)],
    "ccfcpp-figure3": [
        (score("effective_rank"), places(BOTH, P, CCFC)),
        (share_of_collapsed, places(BOTH, P, CCFC)),
    ],
    "ccfcpp-figure4": [(score("local_effective_rank"), places(BOTH, P, CCFC))],
    "ccfcpp-figure6": [(score("nmi"), BY_ETA), (score("kappa"), BY_ETA)],
    "ccfcpp-figure7": [(score("nmi"), BY_RATE), (score("kappa"), BY_RATE)],
    "feddecorr-table1": [(ACCURACY, places(HERE, numbers(ALPHA, 0.05, 0.1, 0.5, math.inf), SIX))],
    "feddecorr-table2": [
        (ACCURACY, places(HERE, numbers("partition.classes_per_client", 3, 4, 5), SIX))
    ],
    "feddecorr-table4": [
        (
            ACCURACY,
            places(by_alpha(0.1, 0.5), numbers("partition.clients", 10, 20, 40), FEDAVG_PAIR),
        )
    ],
    "feddecorr-table5": [
        (
            ACCURACY,
            places(
                by_alpha(0.05, 0.1), numbers("training.local_epochs", 1, 5, 10, 20), FEDAVG_PAIR
            ),
        )
    ],
    "feddecorr-table6": [(seconds_of_a_round, places(HERE, {"a round": {}}, TIMED))],
    "feddecorr-table7": [(ACCURACY, places(HERE, numbers(ALPHA, 0.05, 0.1, 0.5), TERMS))],
    "feddecorr-table8": [(ACCURACY, places(by_alpha(0.5), NETWORKS, FEDAVG_PAIR))],
    "feddecorr-figure2": [
        (significant("global"), COLLAPSE),
        (score("effective_rank"), COLLAPSE),
    ],
    "feddecorr-figure3": [
        (significant("local"), COLLAPSE),
        (score("local_effective_rank"), COLLAPSE),
    ],
    "feddecorr-figure4": [(score("gap"), COLLAPSE)],
    "feddecorr-figure5": [
        (score("local_effective_rank"), REGULARISER),
        (log_tail("local"), REGULARISER),
    ],
    "feddecorr-figure6": [(score("gap"), REGULARISER)],
    "feddecorr-figure7": [
        (score("effective_rank"), REGULARISER),
        (log_tail("global"), REGULARISER),
    ],
    "feddecorr-figure8": [(accuracy_after(5), places(CURVES, {"5": {}}, FEDAVG_PAIR))],
    "feddecorr-figure9": [(ACCURACY, BY_BETA)],
    "feddecorr-iclr-table3": [
        (
            ACCURACY,
            places(by_alpha(0.1, 0.5), numbers("partition.clients", 10, 20, 40), FEDAVG_PAIR),
        )
    ],
    "feddecorr-iclr-table10": [
        (ACCURACY, places(HERE, numbers("partition.classes_per_client", 2, 3), FEDAVG_PAIR))
    ],
    "feddecorr-iclr-figure7": collapse(OTHER_METHODS),
    "feddecorr-iclr-figure8": collapse(OTHER_NETWORKS),
    "feddecorr-iclr-figure9": collapse(OTHER_IMAGES),
}
"""By item: for each table a run's measure, and which runs are behind each place. Of Figures 2 and 5
of the CCFC++ paper and Figure 1 of FedDecorr's, which look at models, of Table 3, and of Figures 10
and 11 of the ICLR paper there are tests of their own."""
