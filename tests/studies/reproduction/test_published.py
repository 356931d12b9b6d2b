"""The papers' tables, and the counts that follow from them."""

import pytest

from ccfcpp.clustering.methods import METHODS
from ccfcpp.studies.score_tables import (
    ANY,
    Place,
    Score,
    ScoreTable,
    divide_by_system,
    published_score,
    published_scores,
)
from tests.support.reproduction import highest

TABLES_I_AND_II = (
    "km", "fcm", "k-fed", "ffcm-avg", "ffcm-km", "sda-fc-km", "sda-fc-fcm", "ppfc-gan", "ccfc",
    "ccfc++",
)  # fmt: skip


@pytest.mark.parametrize(
    ("table", "place", "score"),
    [
        ("tpami 1", ("CIFAR10", "0.05", "FedAvg"), Score(64.85, 2.01)),
        ("tpami 1", ("CIFAR10", "∞", "SCAFFOLD"), Score(89.77, 0.24)),
        ("tpami 1", ("TinyImageNet", "∞", "MOON + FedDecorr"), Score(53.01, 0.45)),
        ("tpami 2", ("CIFAR10", "3", "FedProx + FedDecorr"), Score(75.45, 0.62)),
        ("tpami 2", ("TinyImageNet", "100", "FedAvgM + FedDecorr"), Score(48.41, 0.14)),
        ("tpami 3", ("Office-Caltech10", "Avg", "FedBN + FedDecorr"), Score(74.00, 0.51)),
        ("tpami 3", ("DomainNet", "Q", "FedAvgM"), Score(55.17, 2.28)),
        ("tpami 4", ("TinyImageNet, alpha = 0.05", "100", "FedAvg + FedDecorr"), Score(30.55)),
        ("tpami 4", ("CIFAR100, alpha = 0.1", "20", "FedAvg"), Score(62.78)),
        ("tpami 5", ("TinyImageNet, alpha = 0.1", "20", "FedAvg + FedDecorr"), Score(42.04)),
        ("tpami 7", ("TinyImageNet", "0.1", "Structured-DeCov"), Score(37.74)),
        ("tpami 7", ("TinyImageNet", "0.05", "FedAvg"), Score(35.02)),
        ("tpami 8", ("CIFAR10, alpha = 0.1", "ResNet32", "FedAvg + FedDecorr"), Score(74.75)),
        ("iclr 3", ("TinyImageNet, alpha = 0.5", "30", "FedAvg"), Score(37.22)),
        ("iclr 3", ("TinyImageNet, alpha = 0.05", "10", "FedAvg + FedDecorr"), Score(40.29)),
        ("iclr 10", ("CIFAR10", "2", "FedAvg + FedDecorr"), Score(47.63)),
        ("minutes", ("TinyImageNet", "a round", "MOON"), Score(38.1)),
        ("nmi", ("MNIST", ANY, "KM"), Score(0.5304)),
        ("nmi", ("MNIST", "0.75", "CCFC++"), Score(0.6987)),
        ("nmi", ("MNIST", "0.25", "FFCM-avg"), Score(0.5264)),
        ("kappa", ("MNIST", "0.75", "CCFC++"), Score(0.6198)),
        ("kappa", ("Fashion-MNIST", "1", "PPFC-GAN"), Score(0.5745)),
        ("kappa", ("CIFAR-10", "0.25", "FFCM-km"), Score(0.1491)),
        ("kappa", ("STL-10", ANY, "FCM"), Score(0.1602)),
    ],
)
def test_scores_are_as_printed(table: str, place: Place, score: Score) -> None:
    assert published_scores(table)[place] == score


@pytest.mark.parametrize(
    ("table", "entries"),
    [
        *(("tpami 1", 120), ("tpami 2", 90), ("tpami 3", 120), ("tpami 4", 40), ("tpami 5", 32)),
        *(("tpami 7", 12), ("tpami 8", 12), ("iclr 3", 30), ("iclr 10", 4), ("minutes", 12)),
        *(("nmi", 4 * (2 + 8 * 5)), ("kappa", 4 * (2 + 8 * 5))),
    ],
)
def test_tables_are_whole(table: str, entries: int) -> None:
    scores = published_scores(table)
    assert len(scores) == entries
    assert all(0 < score.mean < 100 for score in scores.values())
    # Deviations are printed in Tables 1 to 3 of the journal's version.
    printed = table in ("tpami 1", "tpami 2", "tpami 3")
    assert {score.deviation is None for score in scores.values()} == {not printed}


def test_what_both_versions_of_a_paper_print_is_the_same() -> None:
    later, first = published_scores("tpami 4"), published_scores("iclr 3")
    shared = later.keys() & first.keys()
    assert len(shared) == 20
    assert all(first[place] == later[place] for place in shared)


def test_times_are_over_those_of_fedavg() -> None:
    times = divide_by_system(published_scores("minutes"), "FedAvg")
    assert times["CIFAR10", "a round", "FedProx"].mean == pytest.approx(12.1 / 6.7)
    assert times["TinyImageNet", "a round", "FedAvg"].mean == 1.0
    assert len(times) == 12


@pytest.mark.parametrize("measure", ["nmi", "kappa"])
def test_a_table_of_clustering_has_the_systems_by_our_names(measure: str) -> None:
    table = ScoreTable(measure, "p", published_scores(measure))
    assert table.systems == [METHODS[name].title for name in TABLES_I_AND_II]
    assert table.places("MNIST") == ["0", "0.25", "0.5", "0.75", "1"]
    for name in TABLES_I_AND_II:
        p = None if METHODS[name].centralised else 0.25
        printed = table.get("MNIST", "0.25", METHODS[name].title)
        assert printed is not None
        assert published_score(measure, "mnist", p, name) == printed.mean


def test_a_system_that_no_table_has_has_no_published_value() -> None:
    assert published_score("nmi", "mnist", 0.0, "fed-lloyd") is None
    assert published_score("nmi", "digits", 0.0, "ccfc") is None
    assert published_score("nmi", "mnist", 0.0, "CCFC++") is None  # a title, not a name


@pytest.mark.parametrize("measure", ["nmi", "kappa"])
@pytest.mark.parametrize(("system", "times"), [("CCFC++", 14), ("PPFC-GAN", 5), ("CCFC", 0)])
def test_counts_are_those_of_the_tables_last_row(measure: str, system: str, times: int) -> None:
    means = ScoreTable(measure, "p", published_scores(measure)).means
    assert highest([system])(means) == (times, 20)
