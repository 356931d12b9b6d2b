"""The HTML page as a file and in a browser."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from ccfcpp.reports.contents import contents
from ccfcpp.reports.drawing import DrawnFigure
from ccfcpp.reports.page import _numbers, page
from ccfcpp.reports.run_reader import read_run
from ccfcpp.reports.summary_tables import differences_table
from tests.support.browser import BROWSER, laid_out
from tests.support.clustering import tiny
from tests.support.command import report

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome is on PATH"
)
FIGURES = {
    "scores", "loss", "bytes", "participation", "confusion", "client-classes", "nearest",
    "farthest", "tsne-clusters", "tsne-classes", "covariance", "correlations", "spectra",
    "effective-rank", "gap", "rank", "client-clusters", "confidence", "outliers",
}  # fmt: skip


def text_of(page: str) -> str:
    """Text of the page without its figures."""
    return re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_every_figure_is_drawn_in_a_browser(reported: Path, tmp_path: Path, width: int) -> None:
    found = laid_out(reported / "report.html", width, tmp_path / "browser")
    assert found["complaints"] == []
    assert found["width"] <= width
    assert brightness(found) > 600
    assert {figure["name"] for figure in found["figures"]} == {f"figure-{n}" for n in FIGURES}
    for figure in found["figures"]:
        assert 200 < figure["width"] <= width, figure
        assert figure["height"] > 100, figure
        assert figure["shapes"] >= 3, figure
        assert figure["over"] <= 1, figure  # no text is cut off at a side
        assert figure["letters"] > 8, figure


@needs_browser
def test_a_report_of_several_runs_fits_a_phone(side_by_side: Path, tmp_path: Path) -> None:
    found = laid_out(side_by_side, 400, tmp_path / "browser")
    assert found["complaints"] == []
    assert found["width"] <= 400
    for figure in found["figures"]:
        assert 200 < figure["width"] <= 400, figure
        assert figure["over"] <= 1, figure


@needs_browser
def test_the_page_is_dark_where_the_system_is(reported: Path, tmp_path: Path) -> None:
    found = laid_out(reported / "report.html", 1280, tmp_path / "browser", dark=True)
    assert brightness(found) < 150


def brightness(found: dict[str, Any]) -> int:
    """Brightness of the page's background: the sum of red, green and blue."""
    return sum(map(int, re.findall(r"\d+", found["background"])[:3]))


def test_the_page_needs_nothing_else_and_runs_nothing(reported: Path) -> None:
    shown = (reported / "report.html").read_text()
    assert len(shown) < 3e6
    assert "<script" not in shown
    assert " on" not in "".join(re.findall(r"<[a-z][^>]*(?= on[a-z]+=)", shown))
    addresses = set(re.findall(r"https?://[^\s\"'<>)]*", shown))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    links = set(re.findall(r'(?:href|src)="([^"#][^"]*)"', shown))
    inside = ("data:image/png", "data:text/csv;base64,")
    assert all(link.startswith(inside) or (reported / link).is_file() for link in links)


def test_the_page_has_its_numbers_in_itself(reported: Path) -> None:
    shown = (reported / "report.html").read_text()
    found = dict(re.findall(r'href="data:text/csv;base64,([^"]*)" download="([^"]*)"', shown))
    numbers = {name: base64.b64decode(content) for content, name in found.items()}
    assert numbers.keys() == {f"{name}.csv" for name in FIGURES}
    for name, content in numbers.items():
        assert (reported / "figures" / name).read_bytes() == content


def test_many_numbers_stay_in_a_file_beside_the_page() -> None:
    rows: list[dict[str, object]] = [{"x": number} for number in range(50_000)]
    assert _numbers(DrawnFigure("many", "", "", Figure(), rows)) == "figures/many.csv"


def test_figures_on_the_page_take_its_inks_and_keep_their_parts_apart(reported: Path) -> None:
    shown = (reported / "report.html").read_text()
    assert "fill: var(--ink)" in shown
    assert ": #1d2127" not in re.sub(r"<style>.*?</style>", "", shown, flags=re.DOTALL)
    names = re.findall(r'\bid="([^"]+)"', shown)
    assert len(names) == len(set(names))
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', shown))
    assert {first or second for first, second in used} <= set(names)


def test_the_page_says_what_the_run_was(reported: Path) -> None:
    shown = text_of((reported / "report.html").read_text())
    for part in ("CCFC++ on digits", "<dt>images</dt><dd>160</dd>", "degree of skew p", "NMI",
                 "source revision", "scikit-learn", "4 of 4"):  # fmt: skip
        assert part in shown
    assert "Left out" not in shown
    assert "interrupted" not in shown


def test_the_page_scores_connected_and_absent_clients_apart(
    reported: Path, ccfc_run: Path, tmp_path: Path
) -> None:
    shown = text_of((reported / "report.html").read_text())
    summary = json.loads((reported / "summary.json").read_text())
    for score, title in (("nmi", "NMI"), ("kappa", "Kappa")):
        for who in ("connected", "absent"):
            value = summary[f"scores_{who}"][score]
            assert f"<dt>{title}, {who} clients</dt><dd>{value:.4g}</dd>" in shown
    report(ccfc_run, out=tmp_path / "out")
    assert ", absent clients" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.usefixtures("unrendered")
def test_unlabelled_images_have_no_figures_of_classes(unlabelled_run: Path, tmp_path: Path) -> None:
    found = report(unlabelled_run, out=tmp_path / "out")
    left_out = {each["figure"] for each in found["left_out"] if "no labels" in each["reason"]}
    assert left_out == {
        "Scores by round", "Confusion matrix", "Clients and classes", "t-SNE by class",
        "Confidence and errors", "Outliers and errors",
    }  # fmt: skip
    assert {"nearest", "farthest", "tsne-clusters", "covariance"} <= set(found["figures"])
    shown = (tmp_path / "out" / "report.html").read_text()
    assert "<b>Confusion matrix</b>: the images have no labels." in shown
    # Names cannot become HTML.
    assert "k-FED on &lt;b&gt;&amp;amp.npz" in shown
    assert "<b>&lt;i&gt;&amp;run</b>" in shown
    assert "<i>" not in shown


def test_an_interrupted_run_shows_its_last_state(interrupted: Callable[[int], Path]) -> None:
    run = read_run(interrupted(3))
    found = contents([run])
    assert {figure.name for figure in found.figures} == FIGURES - {"gap", "confidence", "outliers"}
    assert [each.title for each in found.left_out] == [
        "Quality by the number of clusters",
        "Confidence and errors",
        "Outliers and errors",
        "Gap between local and global spectra",
    ]
    svgs = {figure.name: "<svg>" for figure in found.figures}
    assert "This run has not ended: 3 of 4 rounds are done." in page([run], found, svgs)


def test_a_run_interrupted_in_pre_training_has_no_clusters(
    interrupted: Callable[[int], Path],
) -> None:
    run = interrupted(1)
    found = contents([read_run(run)])
    drawn = {figure.name for figure in found.figures}
    assert {"loss", "client-classes", "tsne-classes", "covariance", "spectra"} <= drawn
    reasons = {each.title: each.reason for each in found.left_out}
    assert "no clusters are known yet" in reasons["Confusion matrix"]
    assert "no round was scored" in reasons["Scores by round"]


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_goes_on_shows_its_setting_and_rounds(
    interrupted: Callable[[int], Path],
) -> None:
    run = interrupted(1)
    for name in ("assignments.npz", "shown.npz"):
        (run / name).unlink()
    found = report(run)
    assert "client-classes" in found["figures"]
    assert {"figure": "Confusion matrix", "reason": "the run has not ended"} in found["left_out"]
    shown = (run / "report.html").read_text()
    assert "has not ended: 1 of 4 rounds are done." in shown
    assert "degree of skew p" in shown


def test_a_seed_is_a_number_without_commas() -> None:
    seeds = {"a": 12345, "b": 7}
    runs: list[Any] = [
        SimpleNamespace(label=label, config=tiny("fed-km", {"seed": seed}))
        for label, seed in seeds.items()
    ]
    assert differences_table(runs) == [{"setting": "seed", "a": "12345", "b": "7"}]


def test_several_runs_stand_side_by_side(side_by_side: Path) -> None:
    shown = text_of(side_by_side.read_text())
    for part in ("2 runs side by side", "Settings that differ", '<th scope="row">loss.eta</th>',
                 "Confusion matrix after matching: CCFC++", "Confusion matrix after matching: CCFC",
                 "Scores by round: NMI"):  # fmt: skip
        assert part in shown
    links = re.findall(r'download="([^"]+).csv"', shown)
    assert len(set(links)) == len(links)
    assert {"confusion-1", "confusion-2", "spectra", "scores-nmi"} <= set(links)
