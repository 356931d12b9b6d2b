"""`ccfcpp report` as a user sees it: files, and one clear line where it does not fit."""

import csv
import json
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from ccfcpp import report as ccfcpp_report
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.engine.federation import RoundReport
from ccfcpp.reports.class_figures import heat_map
from ccfcpp.reports.drawing import DrawnFigure
from ccfcpp.reports.figure_files import as_svg
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths, RunSetting
from tests.support.clustering import tiny
from tests.support.command import ccfcpp, refused, succeeded


def begun(folder: Path, settings: str = "method: km\n") -> Path:
    """A run of one round that has not ended, on which a report is quick."""
    folder.mkdir()
    line = vars(RoundReport(0, [])) | {"scores": {}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "config.yaml").write_text(settings)
    setting = RunSetting(4, {}, {"0": "a", "1": "b"}, [0], ["x", "y"], [[1, 2], [3, 0]])
    RunPaths(folder).write_setting(setting)
    return folder


def complaint(*arguments: object) -> str:
    return refused("report", *arguments)


def test_every_figure_has_its_files(reported: Path) -> None:
    names = {path.stem for path in (reported / "figures").iterdir()}
    assert len(names) == 19
    for name in names:
        with Image.open(reported / "figures" / f"{name}.png") as picture:
            assert min(picture.size) > 200
        root = ElementTree.parse(reported / "figures" / f"{name}.svg").getroot()  # noqa: S314 - our own
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        with (reported / "figures" / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows
        assert all(None not in row.values() for row in rows)
    assert not list(reported.rglob("*.tmp"))


def test_a_report_does_not_change_the_run(digits_run: Path, reported: Path, tmp_path: Path) -> None:
    for path in digits_run.rglob("*"):
        copy = reported / path.relative_to(digits_run)
        assert path.is_dir() or copy.read_bytes() == path.read_bytes()
    shutil.copytree(reported, tmp_path / "run")
    resumed = ccfcpp("cluster", "--out", tmp_path / "run", "--resume", "--json")
    assert resumed.code == 0, resumed.stderr


@pytest.mark.usefixtures("unrendered")
def test_a_report_needs_no_data(digits_run: Path, tmp_path: Path) -> None:
    """The images may be gone, and the folder of the run on another machine."""
    run = tmp_path / "run"
    shutil.copytree(digits_run, run)
    settings = (run / "config.yaml").read_text().replace("digits", "/nowhere/digits", 1)
    (run / "config.yaml").write_text(settings)
    shutil.rmtree(run / "checkpoint")
    succeeded("report", run)
    assert len(list((run / "figures").glob("*.svg"))) == 19


def test_names_that_are_no_utf8_have_a_page(tmp_path: Path) -> None:
    name = os.fsdecode(b"r\xe9sultat")
    page = ccfcpp_report(begun(tmp_path / name), begun(tmp_path / "other"), out=tmp_path / "page")
    assert "r\ufffdsultat" in page.read_text()
    figure = heat_map(torch.ones(1, 1), torch.ones(1, 1), [name], ["a\x07"], ("", ""), "")
    drawn = as_svg(DrawnFigure("names", "", "", figure, [{"name": name}]))
    assert "r\ufffdsultat" in drawn
    assert "a\ufffd" in drawn


def test_the_same_run_gives_the_same_files(reported: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    assert succeeded("report", reported, "--out", out).stdout == f"{out / 'report.html'}\n"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 3 * 19 + 1
    for path in files:
        assert path.read_bytes() == (reported / path.relative_to(out)).read_bytes(), path


@pytest.mark.usefixtures("unrendered")
def test_several_runs_go_to_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [begun(tmp_path / name) for name in ("first", "<b>second")]
    monkeypatch.chdir(tmp_path)
    (line,) = succeeded("report", *runs).stdout.splitlines()
    assert Path(line).parts[0] == "reports"
    page = Path(line).read_text()
    # They differ in nothing but their folders.
    assert "Clients and classes: first" in page
    assert "Clients and classes: &lt;b&gt;second" in page
    assert "<b>second" not in page


@pytest.mark.usefixtures("unrendered")
def test_a_page_from_python_is_that_of_the_command(tmp_path: Path) -> None:
    runs = [begun(tmp_path / name) for name in ("first", "second")]
    succeeded("report", *runs, "--out", tmp_path / "there")
    page = ccfcpp_report(*runs, out=tmp_path / "here")
    assert page == tmp_path / "here" / "report.html"
    assert page.read_bytes() == (tmp_path / "there" / "report.html").read_bytes()
    with pytest.raises(UsageError, match="needs a run"):
        ccfcpp_report()


@pytest.mark.usefixtures("unrendered")
def test_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    first = begun(tmp_path / "a", "method: km\nseed: 1\n")
    second = begun(tmp_path / "b", "method: km\nseed: 2\n")
    succeeded("report", first, second, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Clients and classes: seed = 2" in page


def test_what_is_not_a_run_gives_one_line(digits_run: Path, tmp_path: Path) -> None:
    assert "holds no run (no config.yaml): give the folder of a run" in complaint(tmp_path)
    assert "holds no run" in complaint(tmp_path / "missing")
    assert "holds no run" in complaint(digits_run / "config.yaml")
    assert "named twice" in complaint(digits_run, digits_run)
    (tmp_path / "study.yaml").touch()
    assert "study.yaml is damaged" in complaint(tmp_path)
    assert "holds several runs: give the folders of runs inside" in complaint(tmp_path, digits_run)
    (tmp_path / "study.yaml").unlink()
    (tmp_path / "file").touch()
    assert "is not empty: give another --out" in complaint(digits_run, "--out", tmp_path)
    assert "cannot be written" in complaint(digits_run, "--out", "/proc/none/report")


@pytest.mark.usefixtures("unrendered")
def test_the_folder_above_runs_names_them_and_how_to_see_them(tmp_path: Path) -> None:
    runs = [begun(tmp_path / f"run {number}") for number in range(7)]
    said = complaint(tmp_path)
    assert "holds several runs: give the folders of runs inside (run 0, run 1, " in said
    assert "run 4 and 2 more), one or more, such as ccfcpp report '" in said
    succeeded("report", *runs[:2], "--out", tmp_path / "both")
    study = tmp_path / "study" / "p=0"
    study.mkdir(parents=True)
    begun(study / "seed-0")
    assert "runs inside (p=0/seed-0)" in complaint(study.parent)


def test_a_run_without_a_round_has_nothing_to_show(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"round": 0, "cli')
    assert "no round of the run in" in complaint(run)
    (run / "metrics.jsonl").unlink()
    assert "has ended yet" in complaint(run)
    assert {path.name for path in run.iterdir()} == {"config.yaml", "setting.json"}


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("config.yaml", "method: kmeans++\n", "names no known method"),
        ("config.yaml", "method: ccfc\ncolour: red\n", "unknown key 'colour'"),
        ("summary.json", "{", "summary.json is damaged"),
        ("environment.json", "[]", "environment.json is damaged"),
        ("spectra.npz", "x", "spectra.npz is damaged"),
        ("setting.json", "{}", "setting.json is damaged"),
        ("shown.npz", "x", "shown.npz is damaged"),
    ],
)
def test_a_damaged_run_gives_one_line(
    digits_run: Path, tmp_path: Path, file: str, content: str, part: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(digits_run, copy)
    (copy / file).write_text(content)
    assert part in complaint(copy)


@pytest.mark.parametrize("file", ["spectra.npz", "assignments.npz"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_arrays_give_one_line(
    digits_run: Path, tmp_path: Path, file: str, damage: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(digits_run, copy)
    content = (copy / file).read_bytes()
    half = len(content) // 2
    other = bytes([content[half] ^ 1])
    rest = b"" if damage == "cut" else other + content[half + 1 :]
    (copy / file).write_bytes(content[:half] + rest)
    said = complaint(copy)
    assert f"{copy / file} is damaged (" in said
    assert said.endswith("): delete it to run this again")
    assert not (copy / "report.html").exists()


@pytest.mark.usefixtures("unrendered")
def test_a_line_that_a_crash_cut_short_is_left_out(digits_run: Path, tmp_path: Path) -> None:
    copy = begun(tmp_path / "run", (digits_run / "config.yaml").read_text())
    lines = (digits_run / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    succeeded("report", copy)
    assert "3 of 4 rounds" in (copy / "report.html").read_text()


def test_a_run_of_steps_has_every_figure_but_that_of_local_models(
    scan_run: Path, reported: Path, tmp_path: Path
) -> None:
    """In synchronised steps no client ever has a model of its own."""
    succeeded("report", scan_run, "--out", tmp_path / "alone")
    assert "Fed-SCAN" in (tmp_path / "alone" / "report.html").read_text()
    local, drawn = (
        {path.stem for path in (report / "figures").iterdir()}
        for report in (reported, tmp_path / "alone")
    )
    assert local - drawn == {"gap", "rank"}
    assert drawn < local


@pytest.mark.usefixtures("unrendered")
def test_runs_of_two_systems_have_one_page(scan_run: Path, reported: Path, tmp_path: Path) -> None:
    succeeded("report", scan_run, reported, "--out", tmp_path / "both")
    page = (tmp_path / "both" / "report.html").read_text()
    assert "Clients and classes: Fed-SCAN" in page
    assert "Clients and classes: CCFC++" in page


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_was_stopped_before_it_had_centres_has_a_page(tmp_path: Path) -> None:
    """Where there are as many over-clusters as clusters, the head assigns from the first step."""
    config = tiny("fed-scan", {"scan": {"overclustering": 1, "steps": 30}})
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(StoppedError):
        clustering_run(config).run(folder, should_stop=lambda: True)
    (page,) = succeeded("report", folder.path).stdout.splitlines()
    assert Path(page).is_file()
