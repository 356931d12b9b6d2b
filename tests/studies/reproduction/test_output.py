"""What is written of a table or a figure."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from xml.parsers.expat import ParserCreate

import pytest
from PIL import Image

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.reports.figure_files import as_svg
from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies.paper_figures import draw_spectra
from ccfcpp.studies.reproduction.claims import Claim
from ccfcpp.studies.reproduction.findings import Findings, compute_findings
from ccfcpp.studies.reproduction.output import (
    findings_as_text,
    numbers,
    scale,
    shown_tables,
    write,
)
from ccfcpp.studies.reproduction.paper_items import ITEMS
from ccfcpp.studies.results import Result
from ccfcpp.studies.score_tables import ANY, Score, ScoreTable
from tests.support.reproduction import Fakes, undrawn

OURS = ScoreTable(
    "NMI",
    "p",
    {
        ("MNIST", ANY, "KM"): Score(0.5),
        ("MNIST", "0", "CCFC"): Score(0.25, 0.125),
        ("MNIST", "1", "CCFC"): Score(0.75),
        ("digits", "0", "k-FED"): Score(1.0),
    },
)
PAPER = ScoreTable(
    "NMI", "p", {("MNIST", ANY, "KM"): Score(0.4), ("MNIST", "1", "CCFC"): Score(0.3)}
)


def cells(rows: list[dict[str, str]]) -> list[list[str]]:
    return [list(row.values()) for row in rows]


def test_tables_for_people_have_a_row_a_system_and_the_papers_values() -> None:
    (first, mnist), (second, digits) = shown_tables(OURS, PAPER)
    assert (first, second) == ("NMI: MNIST", "NMI: digits")
    assert cells(mnist) == [
        ["KM", "0.500 (0.400)", "0.500 (0.400)"],
        ["CCFC", "0.250 ± 0.125", "0.750 (0.300)"],
    ]
    assert [str(key) for key in mnist[0]][1:] == ["0", "1"]
    assert cells(digits) == [["k-FED", "1.000"]]


def test_where_the_paper_has_other_images_its_tables_follow() -> None:
    ours = ScoreTable("NMI", "p", {("digits", "0", "k-FED"): Score(1.0)})
    shown = shown_tables(ours, PAPER)
    assert [title for title, _ in shown] == ["NMI: digits", "NMI in the paper: MNIST"]
    assert cells(shown[1][1]) == [["KM", "0.400"], ["CCFC", "0.300"]]


def test_numbers_are_all_of_ours_with_the_papers_beside_them() -> None:
    rows = [list(row.values()) for row in numbers(OURS, PAPER)]
    assert rows == [
        ["MNIST", ANY, "KM", 0.5, None, 0.4],
        ["MNIST", "0", "CCFC", 0.25, 0.125, None],
        ["MNIST", "1", "CCFC", 0.75, None, 0.3],
        ["digits", "0", "k-FED", 1.0, None, None],
    ]
    assert [row["the paper"] for row in numbers(OURS, None)] == [None] * 4


def test_the_scale_names_images_rounds_and_seeds(fakes: Fakes) -> None:
    many = scale(fakes.of("ccfcpp-figure3"))
    images = "digits, MNIST (2,000 images, 14 pixels a side)"
    assert many == f"30 runs on {images}; 5 rounds; seeds 0 to 2."
    assert scale(fakes.of("ccfcpp-table1")) == "42 runs on digits; 5 rounds; seed 0."
    one = replace(fakes.of("ccfcpp-table1")[0])
    vars(one)["summary"] = one.summary | {"rounds": 1}
    assert scale([one]) == "1 run on digits; 1 round; seed 0."


@pytest.mark.parametrize("name", ["ccfcpp-table1", "feddecorr-table3", "feddecorr-figure2"])
def test_a_page_has_title_command_verdict_tables_and_machines(fakes: Fakes, name: str) -> None:
    results = fakes.of(name)
    with undrawn():
        tables_of_item = compute_findings(ITEMS[name], results).tables
    found = Findings(tables_of_item, [Claim("it holds", 1, 2)], [])
    title = ITEMS[name].title
    text = findings_as_text(title, f"ccfcpp reproduce {name} --quick", results, found)
    assert text.startswith(f"# {title}\n\n`ccfcpp reproduce {name} --quick`\n\n{len(results)} runs")
    assert "It holds: 1 of 2." in text
    machine = "revision abc, processor Abacus, threads 2, device cpu"
    assert text.endswith(f"\nMade by:\n\n- {machine}\n")
    assert "Left out" not in text
    tables = [table for pair in found.tables for table in shown_tables(*pair)]
    for heading, rows in tables:
        assert f"\n{heading}\n\n| system" in text
        assert all(len(row) <= 13 for row in rows)
    separators = [line for line in text.splitlines() if line.startswith("| ---")]
    assert len(separators) == len(tables)


def test_a_page_names_all_machines_and_what_is_left_out(tmp_path: Path) -> None:
    sessions: list[dict[str, object]] = [
        {"revision": "b", "processor": "Xeon", "threads": 1, "device": "cuda", "command": ["x"],
         "cuda_device": "H100"},
        {"revision": None, "processor": "Xeon", "threads": 0, "device": "cpu", "cuda_device": None},
    ]  # fmt: skip
    results = []
    for number in range(3):
        folder = RunFolder.create(tmp_path / str(number), ClusterConfig())
        folder.summary.write_text(json.dumps({"rounds": 3}))
        for session in sessions[: number + 1]:
            folder.add_environment(session)
        results.append(Result(ClusterConfig(), folder))
    found = Findings([], [], [], ["digits, p = 0: too few", "digits, p = 1: too many"])
    assert findings_as_text("A title", "a command", results, found) == (
        "# A title\n\n`a command`\n\n3 runs on digits; 3 rounds; seed 0.\n\n"
        "Left out:\n\n- digits, p = 0: too few\n- digits, p = 1: too many\n\n"
        "Made by:\n\n- processor Xeon, threads 0, device cpu\n"
        "- revision b, processor Xeon, threads 1, device cuda, cuda_device H100\n"
    )


@pytest.mark.parametrize("name", ["feddecorr-figure2", "feddecorr-table6"])
def test_files_can_be_read(fakes: Fakes, tmp_path: Path, name: str) -> None:
    found = compute_findings(ITEMS[name], fakes.of(name))
    write(tmp_path, "the text", found)
    assert (tmp_path / "result.md").read_text() == "the text"
    for number, (ours, paper) in enumerate(found.tables, start=1):
        assert read_rows(tmp_path / f"table-{number}.csv") == as_strings(numbers(ours, paper))
    assert not (tmp_path / f"table-{len(found.tables) + 1}.csv").exists()
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {figure.name for figure in found.figures}
    for figure in found.figures:
        stem = tmp_path / "figures" / figure.name
        assert_svg(stem.with_suffix(".svg").read_text())
        with Image.open(stem.with_suffix(".png")) as picture:
            picture.verify()
        assert read_rows(stem.with_suffix(".csv")) == as_strings(figure.rows)


@pytest.mark.parametrize("lowest", [1e-9, 0.5])
def test_singular_values_stand_at_powers_of_ten(lowest: float) -> None:
    drawn = draw_spectra("digits", {"CCFC": [2.0, 1.0, lowest]})
    svg = as_svg(drawn)
    assert_svg(svg)
    assert ">10⁰<" in svg
    (axes,) = drawn.figure.axes
    # Labels that are too long leave no room for the curve.
    assert axes.get_position().width > 0.6


def assert_svg(text: str) -> None:
    """Well-formed, an SVG picture, and without the source of formulas."""
    elements: list[str] = []
    texts: list[str] = []
    parser = ParserCreate()
    parser.StartElementHandler = lambda name, attributes: elements.append(name)
    parser.CharacterDataHandler = texts.append
    parser.Parse(text, True)
    assert elements[0] == "svg"
    assert "path" in elements
    assert "$" not in "".join(texts)


def read_rows(path: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert all("" not in row for row in rows), "a column has no name"
    return rows


def as_strings(rows: object) -> list[dict[str, str]]:
    assert isinstance(rows, list | tuple)
    return [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in rows
    ]
