"""Grids of runs: which cells there are, and in which order."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import nest
from ccfcpp.core.errors import UsageError
from ccfcpp.core.tables import as_csv
from ccfcpp.runs.paths import Json
from ccfcpp.studies.grids import Axes, PlannedRun, study_spec
from ccfcpp.studies.study import Study
from ccfcpp.studies.tables import as_markdown, cell_rows, describe_seeds, display


def grid_cells(grid: object, values: Tree) -> list[Axes]:
    return study_spec(ClusterConfig, [{"grid": grid}, values], 1).cells


VALUES = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)
GRIDS = st.dictionaries(st.sampled_from(["seed", "loss.lam", "partition.p"]), VALUES, max_size=3)


@given(GRIDS)
def test_every_combination_comes_once_in_the_files_order(grid: dict[str, list[int]]) -> None:
    expected: list[dict[str, int]] = [{}]
    for key, values in grid.items():
        expected = [cell | {key: value} for cell in expected for value in values]
    assert grid_cells(grid, {}) == expected


def test_several_grids_follow_each_other_without_repeats() -> None:
    grids = [{"method": ["b", "a"]}, {"method": ["a"], "seed": [1, 0]}, {"method": ["b"]}]
    cells = grid_cells(grids, {})
    assert cells == [
        {"method": "b"}, {"method": "a"}, {"method": "a", "seed": 1}, {"method": "a", "seed": 0},
    ]  # fmt: skip


def test_a_given_value_is_no_axis() -> None:
    grid = {"method": ["a", "b"], "partition.p": [0.0, 1.0]}
    cells = grid_cells(grid, nest("partition.p", "0.5"))
    assert cells == [{"method": "a"}, {"method": "b"}]
    assert grid_cells({}, {}) == [{}]


def test_a_given_value_chooses_the_grids_that_have_it() -> None:
    grids = [{"m": ["a"], "k": [3, 4]}, {"m": ["b", "a"], "k": [20], "x": [0.5, 1]}]
    assert grid_cells(grids, {"k": "20"}) == [
        {"m": "b", "x": 0.5}, {"m": "b", "x": 1}, {"m": "a", "x": 0.5}, {"m": "a", "x": 1},
    ]  # fmt: skip
    assert grid_cells(grids, {"m": "b", "x": "1.0"}) == [{"k": 20}]
    # Where no grid has it, it goes with all.
    assert grid_cells(grids, {"k": "5", "x": 1}) == [{"m": "a"}, {"m": "b"}]


def test_equal_values_are_one() -> None:
    assert grid_cells({"p": [0.1, 0.1]}, {}) == [{"p": 0.1}]
    assert grid_cells({"p": [float("inf"), 1]}, {"p": "inf"}) == [{}]


@pytest.mark.parametrize("grid", [{"p": 3}, {"p": []}, [{"p": "abc"}], "p", [3], [], {1: [2]}])
def test_what_is_no_grid_is_refused(grid: object) -> None:
    with pytest.raises(UsageError, match="grid must hold lists"):
        grid_cells(grid, {})


def test_folders_of_runs_name_cell_and_seed() -> None:
    run = PlannedRun({"partition.p": 0.5, "dataset": "/data/x"}, ClusterConfig(seed=3))
    assert run.folder == Path("partition.p=0.5,dataset=_data_x/seed-3")


def test_the_table_leaves_out_what_a_run_does_not_have() -> None:
    a, b = {"method": "a"}, {"method": "b"}
    results: list[tuple[Axes, Json]]
    results = [(a, {"nmi": 0.2}), (a, {"nmi": 0.4}), (b, {"nmi": None}), (b, {"nmi": 0.5})]
    rows = cell_rows(results, ["nmi"])
    assert rows[0]["nmi"] == pytest.approx(0.3)
    assert rows[0]["nmi deviation"] == pytest.approx(0.1 * 2**0.5)
    assert (rows[1]["nmi"], rows[1]["nmi deviation"]) == (0.5, None)
    assert display(rows[0], ["nmi"]) == {"method": "a", "runs": "2", "nmi": "0.3 ± 0.14"}
    assert display(rows[1], ["nmi"])["nmi"] == "0.5"


def test_captions_tell_the_smallest_and_largest_number_of_seeds() -> None:
    assert describe_seeds([4, 2, 3]) == "mean ± deviation over 2 to 4 seeds"
    assert describe_seeds([2, 2]) == "mean ± deviation over 2 seeds"
    assert describe_seeds([1]) == describe_seeds([]) == "one seed"


def test_tables_are_written_for_programs_and_for_people(tmp_path: Path) -> None:
    rows: list[Json] = [{"method": "a", "nmi": 0.25}, {"method": "b", "nmi": None}]
    Study[ClusterConfig](tmp_path, []).write_table(rows, as_markdown([{"method": "a"}]), "")
    assert (tmp_path / "table.csv").read_text() == "method,nmi\na,0.25\nb,\n"
    assert (tmp_path / "table.md").read_text() == "| method |\n| --- |\n| a |\n"


def test_close_values_have_folders_of_their_own() -> None:
    close = [PlannedRun({"p": value}, ClusterConfig()).folder for value in (0.1234567, 0.1234568)]
    assert len(set(close)) == 2


def test_a_folder_without_a_plan_is_told_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no study to resume in {tmp_path} \(no study.yaml\)"):
        Study.reopen(tmp_path, ClusterConfig, {})


@pytest.mark.parametrize(
    "plan", ["runs: [{axes: {}}]", "runs: 3", "runs: []", "a: b", "runs: [{axes: abc, config: {}}]"]
)
def test_a_damaged_plan_is_said_to_be_damaged(plan: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(plan)
    with pytest.raises(UsageError, match="is damaged"):
        Study.reopen(tmp_path, ClusterConfig, {})


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_summary_is_said_to_be_damaged(content: str, tmp_path: Path) -> None:
    study = Study(tmp_path, [PlannedRun({}, ClusterConfig())])
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "summary.json").write_text(content)

    with pytest.raises(UsageError, match=r"summary.json is damaged .* delete it to run this again"):
        study.results()


def test_no_cell_of_a_table_is_a_formula() -> None:
    names = ["=cmd()", "+1", "-x.png", "@a", "\tb", "plain=1.png"]
    cells = list(csv.reader(as_csv([{"file": name, "n": -1} for name in names]).splitlines()))
    assert [row[0] for row in cells[1:]] == [*("'" + name for name in names[:5]), names[5]]
    assert {row[1] for row in cells[1:]} == {"-1"}
