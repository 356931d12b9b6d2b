"""Tables of finished runs: means over seeds, and what tables are made into."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.config import ClusterConfig, SkewPartition
from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies.reproduction.claims import VIEWS, below_best, group_by_place, losses_along
from ccfcpp.studies.reproduction.measures import MEASURES, Measure, measure_runs, read_summary_value
from ccfcpp.studies.results import Result, label
from ccfcpp.studies.score_tables import ANY, Place, Score, ScoreTable, mean_scores
from ccfcpp.studies.tables import format_number

PLACES, SYSTEMS = ("0", "0.5", "1"), ("a", "b")


def finished(folder: Path, p: float, seed: int, nmi: float | None) -> Result:
    path = folder / f"{p}-{seed}"
    path.mkdir()
    (path / "summary.json").write_text(json.dumps({"nmi": nmi, "rounds": 3}))
    config = ClusterConfig(method="ccfc++", seed=seed, partition=SkewPartition(p=p))
    return Result(config, RunFolder(path))


def by_p(runs: list[Result], title: str, measure: Measure) -> ScoreTable:
    def place(result: Result) -> Place:
        dataset, p, method = (label(t, result) for t in ("{dataset}", "{partition.p}", "{method}"))
        return dataset, p, method

    readings = measure_runs(runs, measure)
    return ScoreTable(title, "p", mean_scores((place(run), value) for run, _, value in readings))


def test_a_table_holds_means_and_sample_deviations_over_seeds(tmp_path: Path) -> None:
    values = {0.5: (0.2, 0.4, 0.9), 0.0: (0.3, 0.5)}
    runs = [
        finished(tmp_path, p, seed, nmi)
        for p, of_seeds in values.items()
        for seed, nmi in enumerate(of_seeds)
    ]
    table = by_p(runs, "NMI", MEASURES["nmi"])
    assert (table.measure, table.axis) == ("NMI", "p")
    # In the order of the runs, not of the numbers.
    assert list(table.scores) == [("digits", "0.5", "CCFC++"), ("digits", "0", "CCFC++")]
    first, second = table.scores.values()
    assert first.mean == pytest.approx(0.5)
    assert first.deviation == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2))
    assert second.deviation == pytest.approx(0.2 / math.sqrt(2))


def test_runs_without_the_measure_are_left_out(tmp_path: Path) -> None:
    runs = [finished(tmp_path, *run) for run in ((0.0, 0, 0.2), (0.0, 1, None), (1.0, 0, None))]
    table = by_p(runs, "NMI", MEASURES["nmi"])
    assert table.scores == {("digits", "0", "CCFC++"): Score(0.2)}
    assert by_p(runs, "gap", MEASURES["gap"]).scores == {}


def test_a_measure_may_be_in_percent(tmp_path: Path) -> None:
    run = finished(tmp_path, 0.0, 0, 0.25)
    assert read_summary_value("nmi", run, factor=100) == [({}, 25.0)]
    assert read_summary_value("nothing", run, factor=100) == [({}, None)]
    assert run.settings["partition.p"] == 0.0
    assert run.folder.path == tmp_path / "0.0-0"


def test_numbers_are_written_as_in_papers() -> None:
    shown = [format_number(value) for value in (0.05, 1.0, math.inf, 10, "adam", 0.001)]
    assert shown == ["0.05", "1", "∞", "10", "adam", "0.001"]
    assert [str(Score(0.12345)), str(Score(70, 1.5))] == ["0.123", "70.000 ± 1.500"]


VALUES = st.dictionaries(
    st.tuples(
        st.sampled_from(("x", "y")), st.sampled_from((*PLACES, ANY)), st.sampled_from(SYSTEMS)
    ),
    st.integers(1, 4).map(float),
)


@given(VALUES)
def test_parts_of_a_table(values: dict[Place, float]) -> None:
    assert VIEWS["of"](values, "a") == {k: v for k, v in values.items() if k[2] == "a"}
    assert VIEWS["at"](values, ("0", "1")) == {k: v for k, v in values.items() if k[1] in "01"}
    assert VIEWS["without"](values, ANY) == {k: v for k, v in values.items() if k[1] != ANY}
    assert sorted(group_by_place(values)) == sorted({k[:2] for k in values if k[1] != ANY})
    table = ScoreTable("NMI", "p", {place: Score(value) for place, value in values.items()})
    assert sorted(table.panels) == sorted({k[0] for k in values})
    assert sorted(table.systems) == sorted({k[2] for k in values})
    for (panel, place), of_systems in group_by_place(values).items():
        known = {k[2]: v for k, v in values.items() if k[0] == panel and k[1] in (place, ANY)}
        known |= {k[2]: v for k, v in values.items() if k[:2] == (panel, place)}
        assert of_systems == known


@given(VALUES)
def test_systems_and_places_are_exchanged(values: dict[Place, float]) -> None:
    turned = VIEWS["by_place"](values, True)
    assert turned == {(p, system, place): v for (p, place, system), v in values.items()}


@given(VALUES)
def test_losses_are_from_the_first_place_to_the_last(values: dict[Place, float]) -> None:
    expected = {}
    for panel in ("x", "y"):
        places = list(dict.fromkeys(k[1] for k in values if k[0] == panel and k[1] != ANY))
        for system in SYSTEMS:
            ends = [values.get((panel, place, system)) for place in (*places[:1], *places[-1:])]
            first, last = ends or (None, None)
            if len(places) > 1 and first is not None and last is not None:
                expected[panel, f"{places[0]} to {places[-1]}", system] = first - last
    assert losses_along(values) == expected


@given(VALUES)
def test_what_is_missing_to_the_best_place(values: dict[Place, float]) -> None:
    known = {place: value for place, value in values.items() if place[1] != ANY}
    expected = {}
    for (panel, place, system), value in known.items():
        if system == "a":
            best = max(v for k, v in known.items() if (k[0], k[2]) == (panel, "a"))
            expected[panel, place, "a"] = best - value
    assert below_best(known, "a") == expected
