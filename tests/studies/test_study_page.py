"""The page of a study: its figures, its tables, and how a browser lays it out."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import nest, unflatten
from ccfcpp.reports.contents import Contents
from ccfcpp.runs.paths import Json
from ccfcpp.studies.grids import PlannedRun, study_spec
from ccfcpp.studies.study import Study
from ccfcpp.studies.study_figures import study_figures
from ccfcpp.studies.study_page import examine_studies
from supervised.config import ClassifyConfig
from tests.support.browser import BROWSER, laid_out
from tests.support.command import ccfcpp, report
from tests.support.comparisons import planned_comparison
from tests.support.studies import planned_study

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome is on PATH"
)
COSTS: Json = {
    "connected": 4, "bytes_up": 8_000_000, "bytes_down": 4_000_000, "bytes_delivered": 1_000_000,
    "communication_rounds": 1, "seconds": 2.0, "refused_updates": 0, "rounds": 1,
}  # fmt: skip


def finish(
    study: Study[ClassifyConfig], planned: PlannedRun[ClassifyConfig], summary: Json
) -> None:
    folder = study.folder(planned)
    folder.path.mkdir(parents=True)
    folder.summary.write_text(json.dumps(summary | COSTS))


def comparison(
    path: Path,
    dataset: str = "mnist",
    done: int | None = None,
    methods: Sequence[str] = ("km", "ccfc++"),
) -> Path:
    """A study of two systems at two p and two rates, whose scores are made up."""
    axes = {"partition.p": ("0", "1"), "availability.disconnection_rate": ("0", "0.3")}
    settings: Tree = {"dataset": dataset, "preset": "published"}
    plan = planned_comparison(settings, methods, axes, seeds=2)
    study = planned_study(path, plan)
    for number, planned in enumerate(plan[:done]):
        score = {"nmi": 0.5 + number / 100, "kappa": 0.4}
        away = planned.config.availability.disconnection_rate > 0
        apart = {"scores_connected": score, "scores_absent": {"nmi": 0.2, "kappa": 0.1}}
        absent = apart if away else {"scores_connected": score, "scores_absent": None}
        finish(study, planned, score | absent)  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with its page."""
    path = comparison(tmp_path_factory.mktemp("study") / "<b>study")
    report(path)
    return path


@pytest.fixture(scope="module")
def figures(compared: Path) -> Contents:
    """What the page shows."""
    return study_figures(examine_studies([compared]).cells)


def classified(path: Path, axes: Mapping[str, object]) -> Path:
    values = nest("partition.clients", 3)
    plan = study_spec(ClassifyConfig, [unflatten({**values, **axes})], 2).plan_runs(
        ClassifyConfig, "classify"
    )
    study = planned_study(path, plan)
    for number, planned in enumerate(plan):
        scores = {"accuracy": 0.5 + number / 100, "effective_rank": 3.0, "tail_share": 0.1}
        finish(study, planned, scores | {"partition": "dirichlet"})
    return path


def test_scores_stand_by_p_and_by_rate_with_those_of_absent_clients(figures: Contents) -> None:
    assert list(figures.sections) == ["Scores by p", "Scores by disconnection rate", "Costs"]
    titles = [figure.title for figure in figures.figures]
    assert "NMI by p: disconnection rate = 0.3" in titles
    assert "Kappa of absent clients by p: disconnection rate = 0.3" in titles
    assert "Kappa of connected clients by disconnection rate: p = 1" in titles
    # Where nobody is absent, there are no such images.
    assert "NMI of absent clients by p: disconnection rate = 0" not in titles
    (figure,) = [
        each for each in figures.figures if each.title == "NMI by disconnection rate: p = 1"
    ]
    km = {row["disconnection rate"]: row for row in figure.rows if row["system"] == "KM"}
    # Its runs at p = 0 and 1 are one where nobody is absent.
    assert [km[rate]["NMI"] for rate in ("0", "0.3")] == pytest.approx([0.505, 0.545])
    assert km["0"]["deviation"] == pytest.approx(0.01 / 2**0.5)
    assert (km["0"]["the paper"], km["0.3"]["the paper"]) == (0.5304, None)


def test_a_system_looks_the_same_in_every_figure(tmp_path: Path) -> None:
    """KM has no p where nobody is absent, and yet it stays the second of two."""
    study = examine_studies([comparison(tmp_path / "study", methods=("ccfc++", "km"))])
    shown = {
        figure.title: [line.get_label() for line in figure.figure.axes[0].containers]
        for figure in study_figures(study.cells).figures
        if " by p" in figure.title
    }
    assert len(shown) > 4
    assert set(map(tuple, shown.values())) == {("CCFC++", "KM")}


def test_costs_are_a_mark_for_each_cell(figures: Contents) -> None:
    (figure, _) = figures.sections["Costs"][0]
    rows = [row for row in figure.rows if row["system"] == "CCFC++"]
    assert len(rows) == 4
    assert {row["MB of a client"] for row in rows} == {4.0}


def test_the_page_has_the_tables_and_escapes_names(compared: Path) -> None:
    shown = re.sub(r"<svg.*?</svg>", "", (compared / "report.html").read_text(), flags=re.DOTALL)
    for part in ("2 systems on MNIST", "Study &lt;b&gt;study", "NMI (published)", "(0.5304)",
                 "NMI of absent clients", "<b>0.", "leaves a client", "runs share"):  # fmt: skip
        assert part in shown
    assert "<b>study" not in shown
    assert "<script" not in shown
    with (compared / "table.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3 + 4
    links = set(re.findall(r'href="([^"#][^"]*)"', shown))
    links = {link for link in links if not link.startswith("data:")}
    assert all((compared / link).is_file() for link in links)


@pytest.mark.usefixtures("unrendered")
def test_a_missing_score_leaves_its_place_empty(tmp_path: Path) -> None:
    path = comparison(tmp_path / "study", "digits", methods=("ccfc++",))
    for folder in path.glob("*p=0.0,disconnection_rate=0.3/*"):
        (folder / "summary.json").unlink()
    report(path)
    text = (path / "report.html").read_text()
    (row,) = re.findall(r'<tr><th scope="row">CCFC\+\+</th><td>0.3</td>(<td.*?)</tr>', text)[:1]
    assert row.startswith("<td></td><td><b>0.")


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(400, False), (1280, True)])
def test_the_page_fits_a_phone_and_a_screen(
    compared: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    found = laid_out(compared / "report.html", width, tmp_path / "browser", dark)
    assert found["complaints"] == []
    assert found["width"] <= width
    assert (sum(map(int, re.findall(r"\d+", found["background"])[:3])) < 150) == dark
    for figure in found["figures"]:
        assert 200 < figure["width"] <= width, figure
        assert figure["over"] <= 1, figure


def test_methods_with_and_without_a_term_are_lines(tmp_path: Path) -> None:
    axes: dict[str, list[object]] = {
        "partition.alpha": [0.05, float("inf")], "decorrelation.kind": ["none", "feddecorr"],
    }  # fmt: skip
    found = study_figures(examine_studies([classified(tmp_path / "study", axes)]).cells)
    assert list(found.sections) == ["Scores by alpha", "Costs"]
    first = found.figures[0]
    assert first.title == "Accuracy by alpha"
    assert {row["system"] for row in first.rows} == {"FedAvg", "FedAvg with FedDecorr"}
    assert [row["alpha"] for row in first.rows if row["system"] == "FedAvg"] == ["0.05", "∞"]


def test_numbers_beside_a_value_that_is_none_are_systems_of_their_own(tmp_path: Path) -> None:
    axes: dict[str, list[object]] = {"partition.p": [0.0, 1.0], "means.starts": [None, 2, 3]}
    plan = planned_comparison({"dataset": "mnist"}, ["fed-km"], axes, seeds=1)
    study = planned_study(tmp_path / "study", plan)
    for number, planned in enumerate(plan):
        finish(study, planned, {"nmi": number / 10, "kappa": 0.4})  # type: ignore[arg-type]
    first = study_figures(examine_studies([study.path]).cells).figures[0]
    shown = {(row["p"], row["system"]): row["NMI"] for row in first.rows}
    assert shown == {
        (p, f"Fed-KM, starts {starts}"): pytest.approx((3 * (p == "1") + number) / 10)
        for p in ("0", "1")
        for number, starts in enumerate((None, 2, 3))
    }


def test_where_nothing_is_a_number_each_system_is_a_dot(tmp_path: Path) -> None:
    path = classified(tmp_path / "study", {"method": ["fedavg", "moon"]})
    found = study_figures(examine_studies([path]).cells)
    assert list(found.sections) == ["Scores", "Costs"]
    names = [row["system"] for row in found.figures[0].rows]
    assert names == ["FedAvg with FedDecorr", "MOON with FedDecorr"]


def test_a_study_that_goes_on_shows_what_is_finished(tmp_path: Path) -> None:
    facts = examine_studies([comparison(tmp_path / "some", "digits", done=12)]).facts
    assert facts["notes"] == ["12 of 14 runs are finished."]
    none = comparison(tmp_path / "none", "digits", done=0)
    result = ccfcpp("report", none)
    assert (result.code, "no run of the study in" in result.stderr) == (2, True)


@pytest.mark.usefixtures("unrendered")
def test_several_studies_are_one_page(tmp_path: Path) -> None:
    """Without another setting they are one study; else each is a part of its own."""
    first = comparison(tmp_path / "first", methods=("km",))
    second = comparison(tmp_path / "second", methods=("km", "ccfc++"))
    joined = examine_studies([first, second])
    assert len(joined.cells.results) == 14
    assert joined.cells.systems == ["KM", "CCFC++"]
    assert {run.config.dataset for _, run in joined.cells.results} == {"mnist"}
    other = comparison(tmp_path / "other", "fashion-mnist", methods=("km",))
    apart = examine_studies([first, other])
    assert apart.cells.systems == ["KM, study first", "KM, study other"]
    assert {row["study"] for row in apart.rows} == {"first", "other"}
    tables = apart.facts["tables"]
    assert isinstance(tables, dict)
    assert tables["Settings in which the studies differ"] == [
        {"setting": "dataset", "first": "mnist", "other": "fashion-mnist"}
    ]
    out = tmp_path / "page"
    assert ccfcpp("report", first, other, "--out", out).code == 0
    assert "Studies first, other" in (out / "report.html").read_text()
    classes = classified(tmp_path / "classes", {"method": ["fedavg", "moon"]})
    mixed = ccfcpp("report", first, classes)
    assert (mixed.code, "have no scores in common" in mixed.stderr) == (2, True)


def test_a_cell_of_joined_studies_is_one_whatever_its_axes_order_and_type(tmp_path: Path) -> None:
    images = {"data.images": ["100", "200"]}
    plans = [
        planned_comparison({}, ["fed-km"], {"means.rounds": [2, 3], **images}, seeds=2),
        planned_comparison({"means": {"rounds": 2}, "seed": 2}, ["fed-km"], images, seeds=2),
    ]
    paths = [tmp_path / name for name in ("first", "second")]
    for path, plan in zip(paths, plans, strict=True):
        study = planned_study(path, plan)
        for planned in plan:
            finish(study, planned, {"nmi": 0.5, "kappa": 0.4})  # type: ignore[arg-type]
    assert [row["runs"] for row in examine_studies(paths).rows] == [4, 4, 2, 2]
    alphas = [classified(tmp_path / "1,2", {"partition.alpha": [1, 2]})]
    alphas += [classified(tmp_path / "1", {"partition.alpha": 1, "seed": 2})]
    assert [row["runs"] for row in examine_studies(alphas).rows] == [4, 2]


def test_a_setting_of_one_method_tells_studies_apart_and_so_do_folders(tmp_path: Path) -> None:
    """They are not tested against each other, nor where one has another number of clients."""
    paths = [tmp_path / place / "study" for place in ("few", "many")]
    for path, steps in zip(paths, (10, 20), strict=True):
        plan = planned_comparison(
            {"dataset": "digits", "scan": {"steps": steps}},
            ["k-fed", "fed-scan"],
            {"partition.p": ["0"]},
            seeds=3,
        )
        study = planned_study(path, plan)
        for number, planned in enumerate(plan):
            score = {"nmi": (steps + number) / 100, "kappa": 0.4, "seed": planned.config.seed}
            finish(study, planned, score)  # type: ignore[arg-type]
    joined = examine_studies(paths)
    assert [(row["study"], row["method"], row["nmi"]) for row in joined.rows] == [
        ("few/study", "k-fed", pytest.approx(0.11)), ("few/study", "fed-scan", pytest.approx(0.14)),
        ("many/study", "k-fed", pytest.approx(0.21)),
        ("many/study", "fed-scan", pytest.approx(0.24)),
    ]  # fmt: skip
    tables = joined.facts["tables"]
    assert isinstance(tables, dict)
    assert tables["Settings in which the studies differ"] == [
        {"setting": "scan.steps", "few/study": "10", "many/study": "20"}
    ]
    (nmi, *_) = tables.values()
    assert ["<b>" in row["p = 0"] for row in nmi] == [False, False, True, True]


def test_a_run_without_skew_stands_at_no_p(tmp_path: Path) -> None:
    """A centralised system, which no partition changes, stands at each."""
    paths = [tmp_path / kind for kind in ("skew", "iid")]
    for path in paths:
        axes = {"partition.p": ["0", "1"]} if path.name == "skew" else {}
        setting: Tree = {"dataset": "digits", "partition": {"kind": path.name}}
        plan = planned_comparison(setting, ["k-fed", "km"], axes, seeds=1)
        study = planned_study(path, plan)
        for planned in plan:
            finish(study, planned, {"nmi": 0.5, "kappa": 0.4, "seed": 0})  # type: ignore[arg-type]
    joined = examine_studies(paths)
    first = study_figures(joined.cells).figures[0]
    assert [(row["system"], row["p"]) for row in first.rows] == [
        ("k-FED, study skew", "0"), ("k-FED, study skew", "1"),
        *[(f"KM, study {own}", p) for own in ("skew", "iid") for p in ("0", "1")],
    ]  # fmt: skip


def test_classification_at_another_alpha_is_another_study(tmp_path: Path) -> None:
    """A single alpha is no axis there."""
    paths = [classified(tmp_path / str(one), {"partition.alpha": one}) for one in (1, 2)]
    joined = examine_studies(paths)
    assert [(row["study"], row["runs"]) for row in joined.rows] == [("1", 2), ("2", 2)]


def test_cells_are_compared_over_three_seeds(tmp_path: Path) -> None:
    """Differences of 0.3 ± 0.01 are no chance; those of the best from itself are none.

    Another data set has a best of its own.
    """
    axes: dict[str, list[object]] = {"dataset": ["digits", "cifar10"]}
    axes |= {"method": ["fedavg", "moon", "fedprox"]}
    plan = study_spec(ClassifyConfig, [unflatten(axes)], 3).plan_runs(ClassifyConfig, "classify")
    study = planned_study(tmp_path / "study", plan)
    for number, planned in enumerate(plan):
        base = {"fedavg": 0.5, "moon": 0.8, "fedprox": 0.79}[planned.config.method]
        base -= 0.4 * (planned.config.dataset == "cifar10")
        scores = {"accuracy": base + number % 4 / 100, "effective_rank": 3.0, "tail_share": 0.1}
        finish(study, planned, scores | {"partition": "iid", "seed": planned.config.seed})
    examined = examine_studies([study.path])
    p = [row.get("accuracy p-value") for row in examined.rows]
    assert p[0] is not None
    assert p[2] is not None
    assert p[0] < 0.05 < p[2]
    assert (p[1], p[4]) == (None, None)
    ((caption, rows),) = examined.facts["tables"].items()  # type: ignore[attr-defined]
    assert "* differs from the best with the same numbers and conditions (paired t-test" in caption
    assert [row["accuracy"].endswith("*") for row in rows] == [True, False, False] * 2


def test_one_seed_has_neither_means_nor_deviations(tmp_path: Path) -> None:
    plan = study_spec(ClassifyConfig, [{"method": ["fedavg", "moon"]}], 1).plan_runs(
        ClassifyConfig, "classify"
    )
    study = planned_study(tmp_path / "study", plan)
    for planned in plan:
        scores = {"accuracy": 0.5, "effective_rank": 3.0, "tail_share": 0.1, "seed": 0}
        finish(study, planned, scores | {"partition": "iid"})
    examined = examine_studies([study.path])
    captions = [figure.caption for figure in study_figures(examined.cells).figures]
    assert captions[0] == "Accuracy; one seed."
    assert not any("mean" in caption or "deviation" in caption for caption in captions)
    assert list(examined.facts["tables"]) == ["One seed"]  # type: ignore[call-overload]
