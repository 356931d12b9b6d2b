"""What runs come to: tables are means of their numbers, and claims count what is in the tables."""

import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies.reproduction.claims import Claim, group_by_place
from ccfcpp.studies.reproduction.findings import Findings, compute_findings
from ccfcpp.studies.reproduction.measures import MEASURES
from ccfcpp.studies.reproduction.output import scale
from ccfcpp.studies.reproduction.paper_items import ITEMS
from ccfcpp.studies.results import Result
from ccfcpp.studies.score_tables import Place, ScoreTable
from tests.support.reproduction import ROUNDS, Fakes, chosen, score, spectrum, undrawn

Find = Callable[[str], Findings]
SHOWN = yaml.safe_load(Path(__file__).with_name("shown.yaml").read_text())
"""By item: of each table of the quick runs measure, panels, places, systems, and how many scores of
how many runs it has; and of each claim in how many places it could hold, in parentheses in how many
of the paper's own it does, and of how many. A star marks what the paper does not state."""
DOMAINS = ("plain", "inverted", "turned", "blurred")


@pytest.fixture(scope="module")
def find(fakes: Fakes) -> Find:
    @cache
    def find_undrawn(name: str) -> Findings:
        with undrawn():
            return compute_findings(ITEMS[name], fakes.of(name))

    return find_undrawn


def means(table: ScoreTable) -> Mapping[Place, float]:
    return {where: score.mean for where, score in table.scores.items()}


def described(table: ScoreTable) -> str:
    places = dict.fromkeys(place for panel in table.panels for place in table.places(panel))
    parts = (table.measure, "; ".join(table.panels), "; ".join(places), "; ".join(table.systems))
    return " | ".join([*parts, f"{len(table.scores)} scores of {max(table.runs, default=1)}"])


def counted(claims: Sequence[Claim]) -> str:
    found = []
    for each in claims:
        paper = " ({}/{})".format(*each.paper) if each.paper else ""
        found.append(f"{each.of}{paper}{'' if each.stated else '*'}")
    return ", ".join(found)


# --- tables and claims --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHOWN)
def test_tables_and_claims_have_every_place(find: Find, name: str) -> None:
    found = find(name)
    assert [described(table) for table, _ in found.tables] == SHOWN[name]["tables"]
    assert counted(found.claims) == SHOWN[name]["claims"]
    assert all(0 <= each.held <= each.of for each in found.claims)


def seconds_of_a_round(result: Result) -> float:
    """The median of all rounds but the first, of five."""
    lines = [json.loads(line) for line in result.folder.metrics.read_text().splitlines()]
    low, high = sorted(line["seconds"] for line in lines if line["round"] > 0)[1:3]
    return float(low + high) / 2


def log_tail(values: Sequence[float]) -> float:
    logarithms = [math.log(max(value / values[0], 1e-12)) for value in values]
    return statistics.fmean(logarithms[len(values) // 2 :])


SPECTRUM_MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "significant": lambda values: sum(math.log(value) > -2 for value in values),
    "log_tail": log_tail,
    "collapsed_share": lambda values: statistics.fmean(v < values[0] / 100 for v in values),
}


@pytest.mark.parametrize("name", SHOWN)
def test_scores_are_means_and_deviations_of_the_runs_numbers(
    fakes: Fakes, find: Find, name: str
) -> None:
    """Each run's number is behind one score, by what a summary, a log or a spectrum has."""
    specs = [spec for spec in ITEMS[name].tables.values() if spec.tabulated]
    for spec, (table, _) in zip(specs, find(name).tables, strict=True):
        if spec.over or spec.spectrum == "other clients" or "_by_" in spec.measure:
            continue
        of_spectrum = SPECTRUM_MEASURES.get(spec.measure)
        numbers = [
            of_spectrum(list(spectrum(result, str(spec.spectrum))))
            if of_spectrum
            else seconds_of_a_round(result)
            if spec.measure == "seconds_of_a_round"
            else score(spec.measure, 100 if spec.measure == "accuracy" else 1)(result)
            for result in fakes.of(name)
        ]
        squares = 0.0
        for own in table.scores.values():
            squares += own.runs * own.mean**2 + (own.runs - 1) * (own.deviation or 0) ** 2
        assert sum(own.runs for own in table.scores.values()) == len(numbers)
        total = sum(own.runs * own.mean for own in table.scores.values())
        assert total == pytest.approx(sum(numbers))
        assert squares == pytest.approx(sum(number**2 for number in numbers))


def test_a_score_is_of_the_runs_that_its_place_names(fakes: Fakes, find: Find) -> None:
    results = fakes.of("ccfcpp-figure7")
    (table, _), *_ = find("ccfcpp-figure7").tables
    for p, rate, method in ((0.75, 0.3, "ccfc++"), (0.75, 0.9, "ccfc")):
        settings = {"partition.p": p, "availability.disconnection_rate": rate}
        runs = chosen(results, settings | {"dataset": "digits", "method": method})
        values = list(map(score("nmi"), runs))
        found = table.scores[f"digits, p = {p}", str(rate), method.upper()]
        assert found.runs == len(values) > 1
        assert found.mean == pytest.approx(statistics.fmean(values))
        assert found.deviation == pytest.approx(statistics.stdev(values))


def test_table_3_has_the_mean_over_the_domains_and_each_of_them(fakes: Fakes, find: Find) -> None:
    ((table, _),) = find("feddecorr-table3").tables
    keys = {"Avg": "accuracy"} | {domain: f"accuracy {domain}" for domain in DOMAINS}
    runs = chosen(fakes.of("feddecorr-table3"), {"method": "fedbn", "decorrelation.kind": "none"})
    for place, key in keys.items():
        expected = statistics.fmean(map(score(key, 100), runs))
        assert table.scores["digit-domains", place, "FedBN"].mean == pytest.approx(expected)


def test_times_are_also_over_those_of_fedavg(find: Find) -> None:
    (seconds, nothing), (table, paper) = find("feddecorr-table6").tables
    assert (nothing is None, paper is None) == (True, False)
    times = {where[2]: own for where, own in means(seconds).items()}
    expected = {where: own / times["FedAvg"] for where, own in means(seconds).items()}
    assert means(table) == pytest.approx(expected)


@pytest.mark.parametrize("name", [name for name in SHOWN if name.startswith("ccfcpp-")])
def test_findings_do_not_depend_on_what_the_preset_is_called(fakes: Fakes, name: str) -> None:
    results = fakes.of(name)
    others = [
        replace(result, config=result.config.model_copy(update={"preset": "default"}))
        for result in results
    ]
    with undrawn():
        found, again = (compute_findings(ITEMS[name], runs) for runs in (results, others))
    assert found.tables == again.tables
    assert found.claims == again.claims
    titles, same_titles = ([figure.title for figure in each.figures] for each in (found, again))
    assert titles == same_titles


FULL_TABLES = [
    "ccfcpp-table1",
    "ccfcpp-table2",
    *(f"feddecorr-table{number}" for number in range(1, 9)),
    "feddecorr-iclr-table3",
    "feddecorr-iclr-table10",
]


@pytest.mark.parametrize("name", FULL_TABLES)
def test_at_full_size_every_place_of_the_papers_table_is_filled(fakes: Fakes, name: str) -> None:
    results = fakes.of(name, quick=False)
    with undrawn():
        found = compute_findings(ITEMS[name], results)
    ((ours, paper),) = [tables for tables in found.tables if tables[1] is not None]
    assert paper is not None
    assert set(ours.scores) == set(paper.scores)
    for panel in ours.panels:
        assert ours.places(panel) == paper.places(panel)
    assert not [figure for figure in found.figures if "the paper" in figure.title]
    rows = [row for figure in found.figures for row in figure.rows if ours.measure in row]
    assert rows
    assert all(row["the paper"] is not None for row in rows)


@pytest.mark.parametrize("rising", [None, "CCFC", "CCFC++"])
def test_failures_help_where_they_raise_the_nmi_of_either_system(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, rising: str | None
) -> None:
    def nmi(result: Result) -> list[tuple[dict[str, str], float]]:
        rate = float(result.settings["availability.disconnection_rate"])
        return [({}, rate if result.settings["method"].upper() == rising else -rate)]

    monkeypatch.setitem(MEASURES, "nmi", nmi)
    with undrawn():
        found = compute_findings(ITEMS["ccfcpp-figure7"], fakes.of("ccfcpp-figure7"))
    text = "occasionally more failures improve a system's NMI"
    assert found.claims[-1] == Claim(text, int(rising is not None), 1)


def test_the_other_clients_models_are_looked_at_one_by_one(fakes: Fakes) -> None:
    """Fakes keep the models of three clients, of which the first is in Figure 3."""
    results = fakes.of("feddecorr-iclr-figure10")
    with undrawn():
        found = compute_findings(ITEMS["feddecorr-iclr-figure10"], results)
    table, _ = found.tables[0]
    local = []
    for result in chosen(results, {"partition.alpha": 0.25}):
        with np.load(result.folder.path / "spectra.npz") as arrays:
            local.append(arrays["local"])
    for client in (2, 3):
        numbers = [SPECTRUM_MEASURES["significant"](list(of_run[client - 1])) for of_run in local]
        own = table.scores["digits", "0.25", f"client {client}"]
        assert own.mean == pytest.approx(statistics.fmean(numbers))
    spectra = [figure for figure in found.figures if figure.name.startswith("spectra")]
    assert [figure.title for figure in spectra] == ["digits, client 2", "digits, client 3"]


def test_terms_are_told_by_client_and_epoch(fakes: Fakes, tmp_path: Path) -> None:
    (result,) = fakes.of("feddecorr-iclr-figure11")
    terms = {"1": [2.0, 3.0, 5.0], "2": [4.0, 1.0, 1.5]}
    figures = {
        f"decorrelation/{n}/{e + 1}": t for n, own in terms.items() for e, t in enumerate(own)
    }
    folder = RunFolder(tmp_path)
    lines_ = [
        {"round": 0, "figures": {"loss": 9.0, **figures}},
        {"round": 1, "figures": {"loss": 8}},
    ]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines_))
    with undrawn():
        found = compute_findings(ITEMS["feddecorr-iclr-figure11"], [replace(result, folder=folder)])
    ((table, paper),) = found.tables
    assert paper is None
    assert means(table) == {
        ("digits, alpha = 0.5", str(epoch + 1), f"client {client}"): term
        for client, own in terms.items()
        for epoch, term in enumerate(own)
    }
    # 3/2 and 1/4, 3/2 are at most 1.5, 5/3 is more; the second client's last is below its first.
    assert [(each.held, each.of) for each in found.claims] == [(3, 4), (1, 2)]
    assert [each.stated for each in found.claims] == [True, False]


# --- figures ------------------------------------------------------------------------------------

DRAWN = [name for name in SHOWN if name != "feddecorr-figure8"]


@pytest.mark.parametrize("name", DRAWN)
def test_figures_show_what_is_in_the_tables(find: Find, name: str) -> None:
    found = find(name)
    for table, _ in found.tables[-1:] if name == "feddecorr-table6" else found.tables:
        shown = {
            (figure.title, row[table.axis or "place"], row["system"]): row[table.measure]
            for figure in found.figures
            for row in figure.rows
            if table.measure in row and not figure.title.startswith("the paper: ")
        }
        everywhere = {
            (panel, place, system): score.mean
            for panel, place in group_by_place(table.means)
            for system in table.systems
            if (score := table.get(panel, place, system)) is not None
        }
        assert shown == everywhere


@pytest.mark.parametrize("name", SHOWN)
def test_figures_of_an_item_have_names_and_titles_of_their_own(find: Find, name: str) -> None:
    figures = find(name).figures
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(figure.rows and figure.caption.endswith(".") for figure in figures)


def test_curves_have_a_value_after_each_scored_round(fakes: Fakes, find: Find) -> None:
    (figure,) = [
        each for each in find("feddecorr-figure8").figures if each.title == "digits, alpha = 0.1"
    ]
    settings = {"partition.kind": "dirichlet", "partition.alpha": 0.1}
    plain = {"decorrelation.kind": "none"}
    runs = chosen(fakes.of("feddecorr-figure8"), settings | plain)
    logs = [run.folder.read_log() for run in runs]
    rows = {str(row["round"]): row for row in figure.rows if row["system"] == "FedAvg"}
    assert list(rows) == ["1", "3", "5"]
    for number, row in rows.items():
        of_runs = [100 * log[int(number) - 1]["scores"]["accuracy"] for log in logs]
        assert row["accuracy in %"] == pytest.approx(statistics.fmean(of_runs))
    assert ROUNDS == 5


def test_the_papers_other_images_have_figures_of_their_own(find: Find) -> None:
    titles = [figure.title for figure in find("ccfcpp-table1").figures]
    assert titles == [
        "digits",
        *(f"the paper: {images}" for images in ("MNIST", "Fashion-MNIST", "CIFAR-10", "STL-10")),
        "digits",  # NMI by the geometric mean
    ]


def test_lines_and_hollow_marks_are_drawn_where_the_rows_say(fakes: Fakes) -> None:
    found = compute_findings(ITEMS["feddecorr-table8"], fakes.of("feddecorr-table8", quick=False))
    figure = found.figures[0]
    (axes,) = figure.figure.axes
    # Of each system a line with its error bars' caps, and marks without a line.
    drawn = [line for line in axes.get_lines() if line.get_linestyle() != "None"]
    marks = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    for key, own in (("accuracy in %", drawn), ("the paper", marks)):
        rows = [
            [row[key] for row in figure.rows if row["system"] == name]
            for name in ("FedAvg", "FedAvg + FedDecorr")
        ]
        assert [list(np.asarray(line.get_ydata())) for line in own] == rows
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        "MobileNetV2", "ResNet18", "ResNet32",
    ]  # fmt: skip


def test_spectra_are_those_of_the_first_seed(fakes: Fakes, find: Find) -> None:
    first = find("feddecorr-figure4").figures[0]
    settings = {"partition.alpha": 0.01, "seed": 0}
    (result,) = chosen(fakes.of("feddecorr-figure4"), settings)
    assert first.title == "digits, alpha = 0.01"
    for curve, name in (("global model", "global"), ("a local model", "local")):
        values = [row["singular value"] for row in first.rows if row["curve"] == curve]
        assert values == pytest.approx(list(spectrum(result, name)), rel=1e-9)
    assert {row["curve"] for row in first.rows} == {"global model", "a local model"}


def diverged(result: Result, folder: Path) -> Result:
    """The same run, had its model come to NaN."""
    path = folder / result.folder.path.name
    shutil.copytree(result.folder.path, path)
    with np.load(path / "spectra.npz") as arrays:
        known = {name: arrays[name] for name in arrays.files}
    known["global"], known["local"] = (np.full_like(known[name], np.nan) for name in SPECTRA)
    np.savez(path / "spectra.npz", **known)
    numbers = dict.fromkeys(("effective_rank", "local_effective_rank", "tail_share", "gap"))
    (path / "summary.json").write_text(json.dumps(result.summary | numbers))
    return replace(result, folder=RunFolder(path))


SPECTRA = ("global", "local")


@pytest.mark.parametrize(
    "name",
    ["ccfcpp-figure3", "ccfcpp-figure4", *(f"feddecorr-figure{number}" for number in range(2, 8))],
)
def test_what_diverged_is_in_no_table_and_no_curve(fakes: Fakes, tmp_path: Path, name: str) -> None:
    """As if those runs had not been made: a whole cell, and the first seed of another."""
    results = fakes.of(name)
    keys = ("method", "dataset", "decorrelation.kind", "partition.p", "partition.alpha")
    cells = dict.fromkeys(tuple(each.settings.get(key) for key in keys) for each in results)
    first, second = list(cells)[:2]
    broken, sound = [], []
    for each in results:
        cell = tuple(each.settings.get(key) for key in keys)
        if cell == first or (cell == second and each.config.seed == 0):
            broken.append(diverged(each, tmp_path))
        else:
            broken.append(each)
            sound.append(each)
    assert len(sound) == len(results) - 4
    with undrawn():
        found, without = (compute_findings(ITEMS[name], runs) for runs in (broken, sound))
    assert [means(table) for table, _ in found.tables] == [means(t) for t, _ in without.tables]
    rows = {figure.title: figure.rows for figure in found.figures if figure.rows}
    assert rows == {figure.title: figure.rows for figure in without.figures if figure.rows}
    assert found.claims == without.claims
    assert "; 4 of them diverged and have no spectrum." in scale(broken)
    assert "diverged" not in scale(sound)
