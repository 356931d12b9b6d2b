"""Items that open runs, and the files that fakes imitate: on runs that take a moment."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.reports.run_reader import RecordedRun, read_run
from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies.reproduction.findings import Findings, compute_findings
from ccfcpp.studies.reproduction.paper_items import ITEMS, Block, Item
from ccfcpp.studies.results import Result
from ccfcpp.studies.study import make_run
from tests.support.finished_runs import points_of
from tests.support.reproduction import SCORES, Plans, chosen, score, spectrum, undrawn

Grid = dict[str, list[object]]
SMALL: Grid = {
    "dataset": ["digits"],
    "data.images": [160],
    "partition.clients": [4],
    "training.pretrain_rounds": [1],
    "training.rounds": [2],
    "model.widths": [[4, 6]],
    "model.projector_width": [12],
    "model.latent": [8],
    "model.predictor_width": [4],
    "centroids.restarts": [1],
    "partition.p": [0.0, 1.0],
}
CLUSTERED = Block(grid=({"method": ["ccfc", "ccfc++"], **SMALL},))
CLASSIFIED: Grid = {
    "method": ["fedavg", "fedbn"],
    "decorrelation.kind": ["none", "feddecorr"],
    "model.widths": [[4, 6]],
    "model.representation": [10],
    "training.rounds": [2],
    "data.train_images": [240],
}
DOMAINS = Block(files=("reproduce/digit-domains",), grid=(CLASSIFIED,), images="digit-domains")
Run = Callable[[Item, Block], list[Result]]


@pytest.fixture(scope="module")
def run(plans: Plans, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("runs")

    def run_all(item: Item, block: Block) -> list[Result]:
        results = []
        for planned in plans.planned(item, [block], {}):
            folder = RunFolder.create(root / planned.folder, planned.config)
            make_run(planned.config).run(folder)
            results.append(Result(planned.config, folder))
        return results

    return run_all


@pytest.fixture(scope="module")
def clustered(run: Run) -> list[Result]:
    return run(ITEMS["ccfcpp-figure5"], CLUSTERED)


@pytest.fixture(scope="module")
def classified(run: Run) -> list[Result]:
    return run(ITEMS["feddecorr-table3"], DOMAINS)


@pytest.fixture(scope="module")
def figure_2(clustered: list[Result]) -> Findings:
    return compute_findings(ITEMS["ccfcpp-figure2"], chosen(clustered, {"method": "ccfc"}))


@pytest.fixture(scope="module")
def figure_5(clustered: list[Result]) -> Findings:
    return compute_findings(ITEMS["ccfcpp-figure5"], clustered)


SKEWED: Grid = {
    "dataset": ["digits"],
    "model.widths": [[4, 6]],
    "model.representation": [10],
    "training.rounds": [1],
    "data.train_images": [240],
    "data.test_images": [80],
}
GLANCE = Block(
    grid=(
        {**SKEWED, "partition.alpha": [0.5], "decorrelation.kind": ["none", "feddecorr"]},
        {**SKEWED, "partition.alpha": [math.inf], "decorrelation.kind": ["none"]},
    )
)
BY_EPOCH = Block(
    grid=(
        {
            **SKEWED,
            "partition.alpha": [0.5],
            "training.local_epochs": [3],
            "decorrelation.log_epochs": [True],
        },
    )
)


def test_figure_1_draws_holdings_and_representations(run: Run) -> None:
    item = ITEMS["feddecorr-figure1"]
    results = run(item, GLANCE)
    found = compute_findings(item, results)
    assert found.left_out == []
    ((table, _),) = found.tables
    ranks = [score("effective_rank")(result) for result in results]
    assert [own.mean for own in table.scores.values()] == ranks
    plain, with_term, even = ranks
    assert [(each.held, each.of) for each in found.claims] == [
        (int(even > plain), 1), (int(with_term > plain), 1),
    ]  # fmt: skip
    held = [figure for figure in found.figures if figure.name.startswith("client-classes")]
    assert [sum(int(str(row["images"])) for row in each.rows) for each in held] == [240, 240]
    planes = [figure for figure in found.figures if "t-SNE" in figure.title]
    assert [len(figure.rows) for figure in planes] == [80, 80, 80]


def test_figure_11_has_a_line_for_each_client(run: Run) -> None:
    item = ITEMS["feddecorr-iclr-figure11"]
    with undrawn():
        found = compute_findings(item, run(item, BY_EPOCH))
    ((table, _),) = found.tables
    assert table.systems == [f"client {number}" for number in range(1, 11)]
    assert table.places("digits, alpha = 0.5") == ["1", "2", "3"]
    assert len(table.scores) == 30
    assert found.claims[0].of == 20


def settings_of(place: Sequence[str]) -> dict[str, Any]:
    return {"method": place[2].lower(), "partition.p": float(place[1])}


def correlation(result: Result) -> float:
    """Mean absolute correlation of two dimensions, by NumPy."""
    points = points_of(result.folder.path).numpy()
    matrix = np.corrcoef(points, rowvar=False)
    return float(np.abs(matrix[np.triu_indices(len(matrix), k=1)]).mean())


def test_figure_2_correlates_dimensions_of_each_run(
    clustered: list[Result], figure_2: Findings
) -> None:
    ((table, paper),) = figure_2.tables
    assert paper is None
    images = "digits (160 images)"
    assert list(table.scores) == [(images, "0", "CCFC"), (images, "1", "CCFC")]
    for place, own in table.scores.items():
        (result,) = chosen(clustered, settings_of(place))
        assert own.mean == pytest.approx(correlation(result), abs=1e-6)
    low, high = (own.mean for own in table.scores.values())
    first, *rest = [(each.held, each.of) for each in figure_2.claims]
    assert first == (sum(mean > 0.1 for mean in (low, high)), 2)
    assert rest == [(high > low, 1)] * 2


def test_figure_2_draws_holdings_covariances_and_correlations(figure_2: Findings) -> None:
    figures = figure_2.figures
    assert len({figure.name for figure in figures}) == len(figures) >= 2 * 2 + 1 + 1
    for p in (0, 1):
        of_p = [figure for figure in figures if figure.title.endswith(f"images), p = {p}")]
        assert len(of_p) == 2
    assert figures[-1].title == "digits (160 images)"
    assert figure_2.left_out == []


SHOWN = ("points", "covariance", "singular_values")


@pytest.fixture
def diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at p = 1 have recorded representations of NaN."""

    def recorded(path: Path) -> RecordedRun:
        run = read_run(path)
        assert isinstance(run.config, ClusterConfig)
        if run.config.partition.degree["p"] == 0:
            return run
        lost = {name: torch.full_like(run.shown[name], torch.nan) for name in SHOWN}
        return replace(run, shown={**run.shown, **lost})

    monkeypatch.setattr("ccfcpp.studies.results.read_run", recorded)


@pytest.mark.usefixtures("diverged")
def test_figure_2_leaves_out_what_cannot_be_drawn(clustered: list[Result]) -> None:
    with undrawn():
        found = compute_findings(
            ITEMS["ccfcpp-figure2"],
            [replace(each) for each in chosen(clustered, {"method": "ccfc"})],
        )
    reason = "the model has diverged: its representations hold NaN or Inf"
    assert list(found.left_out) == [f"digits (160 images), p = 1: {reason}"]
    ((table, _),) = found.tables
    assert list(table.scores) == [("digits (160 images)", "0", "CCFC")]
    # Who holds what is known of all runs.
    titles = [figure.title for figure in found.figures]
    assert [title.endswith("p = 1") for title in titles if "p = " in title] == [
        False, True, False,
    ]  # fmt: skip


def test_figure_5_compares_with_and_without_the_term(
    clustered: list[Result], figure_5: Findings
) -> None:
    keys = ("effective_rank", "tail_share", "gap", "nmi")
    values = []
    for (table, _), key in zip(figure_5.tables, keys, strict=True):
        for place, own in table.scores.items():
            (result,) = chosen(clustered, settings_of(place))
            assert own.mean == score(key)(result)
        values.append({place[1:]: own.mean for place, own in table.scores.items()})
    ranks, tails, gaps, scores = values
    raised = zip(figure_5.claims[:3], (ranks, tails, scores), strict=True)
    for each, known, sign in (*((*pair, 1) for pair in raised), (figure_5.claims[3], gaps, -1)):
        gains = [sign * (known[p, "CCFC++"] - known[p, "CCFC"]) for p in ("0", "1")]
        assert (each.held, each.of) == (sum(gain > 0 for gain in gains), 2)
    assert [each.stated for each in figure_5.claims] == [True, True, True, False]


def test_figure_5_draws_spectra_and_representations(
    clustered: list[Result], figure_5: Findings
) -> None:
    figures = figure_5.figures
    assert len({figure.name for figure in figures}) == len(figures)
    planes = [figure for figure in figures if "t-SNE" in figure.title]
    assert len(planes) == 4
    assert all(len(figure.rows) == 160 for figure in planes)
    spectra = [figure for figure in figures if figure.name.startswith("spectra")]
    assert [figure.title for figure in spectra] == [
        "digits (160 images), p = 0", "digits (160 images), p = 1",
    ]  # fmt: skip
    (result,) = chosen(clustered, {"method": "ccfc++", "partition.p": 1.0})
    drawn = [row["singular value"] for row in spectra[1].rows if row["curve"] == "CCFC++"]
    values = spectrum(result, "global")
    assert drawn == pytest.approx(np.maximum(values, values[0] * 1e-12).tolist())


def test_runs_leave_what_fakes_imitate(clustered: list[Result], classified: list[Result]) -> None:
    for result in [*clustered, *chosen(classified, {"method": "fedavg"})]:
        summary = result.summary
        known = set(SCORES) - (set() if result in clustered else {"nmi", "nmi_geometric", "kappa"})
        assert known | {"rounds", "seconds"} <= {key for key in summary if summary[key] is not None}
        for name in ("global", "local"):
            assert spectrum(result, name).ndim == 1


def test_table_3_holds_the_domains_of_real_runs(classified: list[Result]) -> None:
    ((table, _),) = compute_findings(ITEMS["feddecorr-table3"], classified).tables
    assert set(table.places("digit-domains")) == {"Avg", "plain", "inverted", "turned", "blurred"}
    assert table.systems == ["FedAvg", "FedAvg + FedDecorr", "FedBN", "FedBN + FedDecorr"]
    for system in table.systems:
        values = {where[1]: own for where, own in table.means.items() if where[2] == system}
        assert values.pop("Avg") == pytest.approx(np.mean([*values.values()]))


def test_a_model_that_stays_with_its_client_has_no_local_spectra(classified: list[Result]) -> None:
    for result in chosen(classified, {"method": "fedbn"}):
        assert result.summary.get("local_effective_rank") is None
