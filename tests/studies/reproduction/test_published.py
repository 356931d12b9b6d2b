"""The papers' tables, and the counts that follow from them."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from ccfcpp.clustering.methods import METHODS
from ccfcpp.studies.reproduction import published
from ccfcpp.studies.reproduction.claims import VIEWS, Count, Values, gains
from ccfcpp.studies.reproduction.published import SYSTEMS, published_score, published_scores
from ccfcpp.studies.reproduction.scores import ANY, Place, Score, ScoreTable
from tests.support.reproduction import (
    Counting,
    ends_higher,
    ends_lower,
    falls,
    higher,
    highest,
    rises,
)

TABLES = Path(published.__file__).parent.parent / "tables"


def rows_of(file: str) -> list[dict[str, str]]:
    """A table as its authors printed it."""
    with (TABLES / f"{file}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def accuracy_table(number: int) -> ScoreTable:
    return ScoreTable("accuracy in %", "", published_scores(f"tpami {number}"))


def iclr_table(number: int) -> ScoreTable:
    return ScoreTable("accuracy in %", "", published_scores(f"iclr {number}"))


def clustering_table(measure: str) -> ScoreTable:
    return ScoreTable(measure, "p", published_scores(measure))


def minutes_table() -> ScoreTable:
    return ScoreTable("minutes", "", published_scores("minutes"))


AVERAGED = ("FedAvg", "FedProx", "FedAvgM", "MOON")
PAIRS = [(f"{method} + FedDecorr", method) for method in (*AVERAGED, "FedBN")]
PAIR = PAIRS[:1]
WITH = [system for system, _ in PAIRS]


@pytest.mark.parametrize(
    ("number", "place", "score"),
    [
        (1, ("CIFAR10", "0.05", "FedAvg"), Score(64.85, 2.01)),
        (1, ("CIFAR10", "0.05", "FedAvg + FedDecorr"), Score(73.06, 0.81)),
        (1, ("CIFAR10", "∞", "SCAFFOLD"), Score(89.77, 0.24)),
        (1, ("CIFAR100", "0.5", "FedNova"), Score(71.79, 0.17)),
        (1, ("TinyImageNet", "∞", "MOON + FedDecorr"), Score(53.01, 0.45)),
        (2, ("CIFAR10", "3", "FedProx + FedDecorr"), Score(75.45, 0.62)),
        (2, ("CIFAR100", "30", "MOON"), Score(62.70, 0.21)),
        (2, ("TinyImageNet", "100", "FedAvgM + FedDecorr"), Score(48.41, 0.14)),
        (3, ("Office-Caltech10", "Avg", "FedBN + FedDecorr"), Score(74.00, 0.51)),
        (3, ("DomainNet", "Q", "FedAvgM"), Score(55.17, 2.28)),
        (4, ("TinyImageNet, alpha = 0.05", "100", "FedAvg"), Score(21.53)),
        (4, ("TinyImageNet, alpha = 0.05", "100", "FedAvg + FedDecorr"), Score(30.55)),
        (4, ("CIFAR100, alpha = 0.1", "20", "FedAvg"), Score(62.78)),
        (5, ("CIFAR100, alpha = 0.05", "1", "FedAvg"), Score(50.67)),
        (5, ("TinyImageNet, alpha = 0.1", "20", "FedAvg + FedDecorr"), Score(42.04)),
        (7, ("TinyImageNet", "0.05", "DeCov"), Score(32.88)),
        (7, ("TinyImageNet", "0.1", "Structured-DeCov"), Score(37.74)),
        (7, ("TinyImageNet", "0.5", "FedDecorr"), Score(50.01)),
        (7, ("TinyImageNet", "0.05", "FedAvg"), Score(35.02)),
        (8, ("CIFAR10, alpha = 0.05", "ResNet18", "FedAvg"), Score(71.51)),
        (8, ("CIFAR10, alpha = 0.1", "ResNet32", "FedAvg + FedDecorr"), Score(74.75)),
    ],
)
def test_accuracies_are_as_printed(number: int, place: Place, score: Score) -> None:
    assert accuracy_table(number).scores[place] == score


# Table 3 of the ICLR paper: a row a number of clients, without FedDecorr and with it.
ICLR_TABLE_3 = {
    "10": ([35.02, 39.30, 46.92], [40.29, 43.86, 50.01]),
    "20": ([31.21, 35.30, 43.64], [39.41, 41.27, 46.17]),
    "30": ([26.20, 30.88, 37.22], [36.50, 39.02, 44.38]),
    "50": ([25.70, 28.88, 34.89], [34.50, 36.67, 42.34]),
    "100": ([21.53, 24.69, 30.21], [30.55, 33.85, 38.65]),
}


def test_tables_of_the_iclr_paper_are_as_printed() -> None:
    clients = iclr_table(3)
    for number, rows in ICLR_TABLE_3.items():
        for system, row in zip(("FedAvg", "FedAvg + FedDecorr"), rows, strict=True):
            panels = [f"TinyImageNet, alpha = {alpha}" for alpha in ("0.05", "0.1", "0.5")]
            assert [clients.scores[panel, number, system].mean for panel in panels] == row
    assert len(clients.scores) == 30
    later = accuracy_table(4).scores
    assert all(score == later[place] for place, score in clients.scores.items() if place in later)
    assert {place: score.mean for place, score in iclr_table(10).scores.items()} == {
        ("CIFAR10", "2", "FedAvg"): 45.61,
        ("CIFAR10", "3", "FedAvg"): 67.53,
        ("CIFAR10", "2", "FedAvg + FedDecorr"): 47.63,
        ("CIFAR10", "3", "FedAvg + FedDecorr"): 74.51,
    }


# Rows of the paper's Table 1, in its columns' order: CIFAR10, CIFAR100, TinyImageNet.
TABLE_1 = {
    "FedAvg": [64.85, 76.28, 89.84, 92.39, 59.87, 66.46, 71.69, 74.54, 35.02, 39.30, 46.92, 49.33],
    "FedAvg + FedDecorr": [
        73.06, 80.60, 89.84, 92.19, 61.53, 67.12, 71.91, 73.87, 40.29, 43.86, 50.01, 52.63,
    ],
}  # fmt: skip


def test_rows_of_table_1_are_as_printed() -> None:
    table = accuracy_table(1)
    for system, row in TABLE_1.items():
        columns = [(data, a) for data in table.panels for a in ("0.05", "0.1", "0.5", "∞")]
        assert [table.scores[data, a, system].mean for data, a in columns] == row


@pytest.mark.parametrize(
    ("number", "entries"), [(1, 120), (2, 90), (3, 120), (4, 40), (5, 32), (7, 12), (8, 12)]
)
def test_tables_of_accuracies_are_whole(number: int, entries: int) -> None:
    table = accuracy_table(number)
    printed = [row for row in rows_of("feddecorr_accuracy") if row["table"] == str(number)]
    assert len(table.scores) == entries == len(printed)
    assert all(0 < score.mean < 100 for score in table.scores.values())
    # Deviations are printed in Tables 1 to 3.
    assert {score.deviation is None for score in table.scores.values()} == {number > 3}


def test_times_are_over_those_of_fedavg() -> None:
    table = minutes_table()
    (moon,) = (
        row["minutes_one_round"]
        for row in rows_of("feddecorr_minutes_per_round_v100")
        if (row["dataset"], row["method"]) == ("TinyImageNet", "MOON")
    )
    assert moon == "38.1"
    assert table.scores["CIFAR10", "a round", "FedProx"].mean == pytest.approx(12.1 / 6.7)
    assert table.scores["CIFAR100", "a round", "FedDecorr"].mean == pytest.approx(7.1 / 6.9)
    assert table.scores["TinyImageNet", "a round", "FedAvg"].mean == 1.0
    assert len(table.scores) == 12


# --- CCFC++, Tables I and II --------------------------------------------------------------------

MNIST_NMI = {
    "k-FED": [0.5081, 0.4879, 0.4515, 0.4552, 0.4142],
    "FFCM-avg": [0.5157, 0.5264, 0.4693, 0.4855, 0.5372],
    "FFCM-km": [0.5157, 0.5264, 0.4693, 0.4855, 0.5372],
    "SDA-FC-KM": [0.5133, 0.5033, 0.5118, 0.5196, 0.5273],
    "SDA-FC-FCM": [0.5141, 0.5063, 0.5055, 0.5143, 0.5140],
    "PPFC-GAN": [0.6582, 0.6392, 0.6721, 0.7433, 0.8353],
    "CCFC": [0.9236, 0.8152, 0.6718, 0.3611, 0.0766],
    "CCFC++": [0.9483, 0.9442, 0.9345, 0.6987, 0.1235],
}


def test_nmi_on_mnist_is_as_printed() -> None:
    table = clustering_table("nmi")
    for system, row in MNIST_NMI.items():
        assert [table.scores["MNIST", p, system].mean for p in table.places("MNIST")] == row
    assert table.places("MNIST") == ["0", "0.25", "0.5", "0.75", "1"]
    assert table.scores["MNIST", ANY, "KM"].mean == 0.5304
    assert table.scores["MNIST", ANY, "FCM"].mean == 0.5187


def test_kappas_are_as_printed() -> None:
    table = clustering_table("kappa")
    assert table.scores["MNIST", "0.75", "CCFC++"].mean == 0.6198
    assert table.scores["Fashion-MNIST", "1", "PPFC-GAN"].mean == 0.5745
    assert table.scores["CIFAR-10", "0.25", "FFCM-km"].mean == 0.1491
    assert table.scores["STL-10", ANY, "FCM"].mean == 0.1602


def test_tables_of_clustering_are_whole() -> None:
    for measure in ("nmi", "kappa"):
        table = clustering_table(measure)
        assert table.systems == [METHODS[name].title for name in SYSTEMS]
        assert len(table.scores) == 4 * (2 + 8 * 5)
        file = {"nmi": "ccfcpp_table1_nmi", "kappa": "ccfcpp_table2_kappa"}[measure]
        for row in rows_of(file):
            p, system, value = float(row["p"]) if row["p"] else None, row["method"], row[measure]
            name = {"MNIST": "mnist", "STL-10": "stl10"}.get(row["dataset"])
            ours = [method for method, column in SYSTEMS.items() if column == system]
            assert ours
            if name is not None:
                found = {published_score(measure, name, p, method) for method in ours}
                assert found == {float(value)}


def test_a_system_that_no_table_has_has_no_published_value() -> None:
    assert published_score("nmi", "mnist", 0.0, "fed-lloyd") is None
    assert published_score("nmi", "mnist", 0.0, "CCFC++") is None  # a title, not a name


# --- what the papers' own tables say ------------------------------------------------------------


@pytest.mark.parametrize("measure", ["nmi", "kappa"])
@pytest.mark.parametrize(
    ("count", "nmi", "kappa"),
    [
        # Each table ends with a row of counts, in which CCFC++ has 14 and PPFC-GAN 5.
        (highest(["CCFC++"]), (14, 20), (14, 20)),
        (highest(["PPFC-GAN"]), (5, 20), (5, 20)),
        (highest(["CCFC"]), (0, 20), (0, 20)),
        # Only on STL-10 at p = 1 CCFC is ahead.
        (higher([("CCFC++", "CCFC")]), (19, 20), (19, 20)),
        (ends_lower(["CCFC"]), (4, 4), (4, 4)),
        (falls(["CCFC"]), (14, 16), (15, 16)),
    ],
)
def test_counts_of_the_clustering_paper(
    measure: str, count: Counting, nmi: Count, kappa: Count
) -> None:
    table = clustering_table(measure).means
    assert count(table) == (nmi if measure == "nmi" else kappa)


def accuracy_counts(number: int, count: Counting, *places: str) -> Count:
    table = accuracy_table(number).means
    return count(at(table, *places) if places else table)


def test_with_feddecorr_accuracy_is_higher_under_skew() -> None:
    # At alpha = infinity the paper expects no more than a draw.
    assert accuracy_counts(1, higher(PAIRS)) == (38, 48)
    assert accuracy_counts(1, higher(PAIRS), "0.05", "0.1") == (24, 24)
    assert accuracy_counts(1, higher(PAIRS), "0.5") == (9, 12)
    assert accuracy_counts(1, higher(PAIRS), "∞") == (5, 12)
    assert accuracy_counts(2, higher(PAIRS)) == (36, 36)


def at(values: Values, *places: str) -> Values:
    return VIEWS["at"](values, places)


def highest_of_all(table: Values, systems: Sequence[str]) -> int:
    return sum(highest([system])(table)[0] for system in systems)


def test_under_skew_the_highest_accuracy_has_feddecorr() -> None:
    assert highest_of_all(at(accuracy_table(1).means, "0.05", "0.1", "0.5"), WITH) == 9
    assert highest_of_all(accuracy_table(2).means, WITH) == 9


def test_gains_are_smaller_with_the_weakest_skew() -> None:
    for number, expected in ((1, (12, 12)), (2, (11, 12))):
        table = accuracy_table(number).means
        assert ends_lower("all")(gains(table, PAIRS)) == expected
        steps = 9 if number == 1 else 6
        assert rises("all")(table) == (10 * steps, 10 * steps)


def test_counts_of_the_ablations() -> None:
    assert accuracy_counts(3, higher(PAIRS), "Avg") == (10, 10)
    assert accuracy_counts(3, higher(PAIRS)) == (49, 60)
    assert accuracy_counts(4, higher(PAIR)) == (20, 20)
    assert ends_higher("all")(gains(accuracy_table(4).means, PAIR)) == (4, 4)
    assert accuracy_counts(4, falls(["FedAvg"])) == (16, 16)
    assert accuracy_counts(5, higher(PAIR)) == (16, 16)
    assert accuracy_counts(5, rises(["FedAvg"]), "1", "5") == (4, 4)
    assert accuracy_counts(5, falls(["FedAvg"]), "10", "20") == (4, 4)
    assert accuracy_counts(7, highest(["FedDecorr"])) == (3, 3)
    others = [("FedAvg", "DeCov"), ("FedAvg", "Structured-DeCov")]
    assert accuracy_counts(7, higher(others)) == (6, 6)
    assert accuracy_counts(8, higher(PAIR)) == (6, 6)
    slower = [("FedProx", "FedDecorr"), ("MOON", "FedDecorr")]
    assert higher(slower)(minutes_table().means) == (6, 6)


def test_gains_are_larger_on_wide_networks_but_for_one() -> None:
    wide = [("MobileNetV2", "ResNet32"), ("ResNet18", "ResNet32")]
    gained = VIEWS["by_place"](gains(accuracy_table(8).means, PAIR), True)
    # At alpha = 0.1 it is 1.27 on ResNet18 and 1.53 on ResNet32.
    assert higher(wide)(gained) == (3, 4)
