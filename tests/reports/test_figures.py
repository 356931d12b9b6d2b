"""The CSV file of each figure contains the numbers that are drawn."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.reports import contents as table_of
from ccfcpp.reports import summary_tables
from ccfcpp.reports.contents import Contents, contents
from ccfcpp.reports.drawing import DrawnFigure, axis_number, power, short, thin_ticks
from ccfcpp.reports.figure_files import as_svg
from ccfcpp.reports.labels import label_runs
from ccfcpp.reports.pictures import nearest
from ccfcpp.reports.rounds import STATES
from ccfcpp.reports.run_reader import RecordedRun, read_run
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.report_samples import plot_arrays
from tests.support.command import succeeded
from tests.support.finished_runs import points_of

Metrics = Mapping[str, DrawnFigure]


@pytest.fixture(scope="module")
def run(digits_run: Path) -> RecordedRun:
    return read_run(digits_run)


@pytest.fixture(scope="module")
def points(digits_run: Path) -> Tensor:
    return points_of(digits_run)


@pytest.fixture(scope="module")
def figures(run: RecordedRun) -> Metrics:
    return {figure.name: figure for figure in contents([run]).figures}


@pytest.fixture(scope="module")
def overlaid(digits_run: Path, ccfc_run: Path, classifier_run: Path) -> Contents:
    runs = label_runs([read_run(path) for path in (digits_run, ccfc_run, classifier_run)])
    overlays = {
        title: tuple(entry for entry in entries if isinstance(entry, table_of.Overlaid))
        for title, entries in table_of._SECTIONS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_of, "_SECTIONS", overlays)
        return contents(runs)


def columns(drawn: DrawnFigure, *names: str) -> list[list[Any]]:
    return [[row[name] for row in drawn.rows] for name in names]


def curves(
    drawn: DrawnFigure, series: str, x: str, y: str
) -> list[tuple[list[float], list[float]]]:
    """Curves that the rows describe, in their order."""
    found: dict[object, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for row in drawn.rows:
        found[row[series]][0].append(float(str(row[x])))
        found[row[series]][1].append(float(str(row[y])))
    return list(found.values())


def lines(drawn: DrawnFigure) -> list[tuple[list[float], list[float]]]:
    """Curves in the figure."""
    data = [line.get_data() for line in drawn.figure.axes[0].get_lines()]
    return [(np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in data]


@pytest.mark.parametrize("name", ["scores", "loss", "bytes"])
def test_curves_by_round(figures: Metrics, name: str) -> None:
    drawn = figures[name]
    described = curves(drawn, "series", "round", "value")
    # The last line marks the end of pre-training.
    assert lines(drawn)[: len(described)] == described
    assert len(lines(drawn)) == len(described) + 1


def test_bytes_add_up_to_those_of_the_summary(figures: Metrics, run: RecordedRun) -> None:
    assert run.summary is not None
    last = {row["series"]: row["value"] for row in figures["bytes"].rows}
    assert last["to the server"] == pytest.approx(run.summary["bytes_up"] / 1e6)
    assert last["to clients"] == pytest.approx(run.summary["bytes_down"] / 1e6)


def test_who_took_part(figures: Metrics, run: RecordedRun) -> None:
    drawn = figures["participation"]
    (picture,) = drawn.figure.axes[0].images
    inks = np.asarray(picture.get_array())
    states = {(row["client"], row["round"]): str(row["state"]) for row in drawn.rows}
    for (client, number), state in states.items():
        assert isinstance(client, int)
        assert isinstance(number, int)
        ink = inks[client, number - 1]
        colour = STATES[state]
        assert (to_hex(ink) == colour) if colour else (ink[3] == 0)
        present = client in run.log[number - 1]["clients"]
        assert present == (state == "took part")
    assert set(states.values()) == {"took part", "absent", "never there"}


def test_confusion_is_that_of_the_images(figures: Metrics, run: RecordedRun) -> None:
    drawn = figures["confusion"]
    (picture,) = drawn.figure.axes[0].images
    shares = np.asarray(picture.get_array()).ravel()
    np.testing.assert_allclose(shares, columns(drawn, "share")[0])
    for row in drawn.rows:
        of_class = run.classes == run.class_names.index(str(row["class"]))
        assert row["images"] == int((of_class & (run.labels == int(str(row["cluster"])))).sum())
    assert run.summary is not None
    agreed = sum(int(str(row["images"])) for row in drawn.rows if row["matched"])
    assert agreed / len(run.classes) == pytest.approx(run.summary["accuracy"])


def test_clusters_stand_in_the_order_of_their_classes(figures: Metrics) -> None:
    rows = figures["confusion"].rows
    assert [place for place, row in enumerate(rows) if row["matched"]] == list(range(0, 100, 11))


def test_clients_and_classes(figures: Metrics, run: RecordedRun) -> None:
    drawn = figures["client-classes"]
    (picture,) = drawn.figure.axes[0].images
    assert np.asarray(picture.get_array()).ravel().tolist() == columns(drawn, "images")[0]
    sizes = [sum(row["images"] for row in drawn.rows if row["client"] == n) for n in range(4)]  # type: ignore[misc]
    assert run.summary is not None
    assert sizes == [sum(own) for own in run.summary["client_cluster_sizes"]]


@pytest.mark.parametrize(("name", "farthest"), [("nearest", False), ("farthest", True)])
def test_images_by_their_distance_from_the_centroid(
    figures: Metrics, run: RecordedRun, points: Tensor, name: str, farthest: bool
) -> None:
    assert run.by_angle
    z = points.numpy()
    c = load_file(run.path / "model.safetensors")["centroids"].double().numpy()
    rows = figures[name].rows
    assert len({row["cluster"] for row in rows}) == len(set(run.labels.tolist()))
    for cluster in {row["cluster"] for row in rows}:
        assert isinstance(cluster, int)
        members = [image for image in range(len(z)) if run.labels[image] == cluster]
        angles = [
            np.degrees(np.arccos(np.clip(
                z[i] @ c[cluster] / np.linalg.norm(z[i]) / np.linalg.norm(c[cluster]), -1, 1)))
            for i in members
        ]  # fmt: skip
        expected = sorted(angles, reverse=farthest)[:8]
        shown = [row["distance"] for row in rows if row["cluster"] == cluster]
        np.testing.assert_allclose(np.array(shown, dtype=float), expected, atol=1e-3)


def test_every_image_of_the_sheet_is_the_named_one(figures: Metrics, run: RecordedRun) -> None:
    images = clustering_run(RunFolder(run.path).saved_config(ClusterConfig)).data.values
    drawn = figures["nearest"]
    (picture,) = drawn.figure.axes[0].images
    sheet = np.asarray(picture.get_array())
    order = list(dict.fromkeys(columns(drawn, "cluster")[0]))
    scale, step = 7, 58  # 8 pixels enlarged to 56, and a gap of 2
    for row in drawn.rows:
        top = order.index(row["cluster"]) * step + 2
        left = (int(str(row["rank"])) - 1) * step + 2
        cell = sheet[top : top + 56 : scale, left : left + 56 : scale]
        image = images[int(str(row["image"])), 0].numpy()
        assert (cell[..., 0] == image).all()
        assert (cell[..., 3] == 255).all()
    assert (sheet[:2, :, 3] == 0).all()


def test_names_of_samples_without_pictures_are_drawn_as_they_are(run: RecordedRun) -> None:
    names = tuple(f"from $5 to ${number}" for number in range(len(run.labels)))
    drawn = nearest(replace(run, names=names, shown={"by_angle": run.shown["by_angle"]}))
    assert re.findall(r">(from [^<]*)</text>", as_svg(drawn)) == columns(drawn, "file")[0]


@pytest.mark.parametrize(
    ("name", "kind"), [("tsne-clusters", "cluster"), ("tsne-classes", "class")]
)
def test_points_in_the_plane(figures: Metrics, run: RecordedRun, name: str, kind: str) -> None:
    drawn = figures[name]
    groups = [c for c in drawn.figure.axes[0].collections if isinstance(c, PathCollection)]
    offsets = np.concatenate([np.asarray(group.get_offsets()) for group in groups])
    assert sorted(map(tuple, offsets.tolist())) == sorted(
        zip(*columns(drawn, "x", "y"), strict=True)
    )
    true = run.labels if kind == "cluster" else run.classes
    assert [int(str(row[kind])) for row in drawn.rows] == true.tolist()


def test_covariance(figures: Metrics, points: Tensor) -> None:
    drawn = figures["covariance"]
    (picture,) = drawn.figure.axes[0].images
    expected = np.cov(points.numpy().T, bias=True)
    np.testing.assert_allclose(np.asarray(picture.get_array()), expected, rtol=1e-5, atol=1e-7)
    rows = [[row[str(j)] for j in range(8)] for row in drawn.rows]
    np.testing.assert_allclose(np.array(rows, dtype=float), expected, rtol=1e-5, atol=1e-7)
    low, high = picture.get_clim()
    assert low is not None
    assert high == -low


def test_histogram_of_correlations(figures: Metrics, points: Tensor) -> None:
    drawn = figures["correlations"]
    (steps,) = [p for p in drawn.figure.axes[0].patches if isinstance(p, StepPatch)]
    heights = np.asarray(steps.get_data()[0])
    assert heights.tolist() == columns(drawn, "share")[0]
    matrix = np.corrcoef(points.numpy().T)
    pairs = matrix[np.triu_indices(8, 1)]
    for row in drawn.rows:
        inside = (pairs >= row["from"]) & (pairs < row["to"])
        assert row["share"] == pytest.approx(inside.mean())


def test_spectra_and_what_they_come_to(figures: Metrics, run: RecordedRun) -> None:
    described = curves(figures["spectra"], "model", "dimension", "singular value")
    drawn = [line for line in lines(figures["spectra"]) if line[0]]
    assert drawn == described
    assert run.summary is not None
    (ranks,) = columns(figures["effective-rank"], "effective rank")
    assert ranks[0] == pytest.approx(run.summary["effective_rank"])
    assert np.mean(ranks[1:]) == pytest.approx(run.summary["local_effective_rank"])
    (gaps,) = columns(figures["gap"], "R")
    assert gaps[0] == pytest.approx(run.summary["gap"]) == np.mean(gaps[1:])


@pytest.mark.parametrize(("name", "column"), [("effective-rank", "effective rank"), ("gap", "R")])
def test_bars(figures: Metrics, name: str, column: str) -> None:
    bars = [p for p in figures[name].figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [bar.get_width() for bar in bars] == columns(figures[name], column)[0]


def test_several_runs_are_overlaid(overlaid: Contents) -> None:
    figures = {figure.name: figure for figure in overlaid.figures}
    assert {row["run"] for row in figures["spectra"].rows} == {
        "CCFC++",
        "CCFC",
        "FedAvg with FedDecorr",
    }
    for name in ("scores-nmi", "scores-accuracy", "loss", "bytes-to-the-server"):
        assert lines(figures[name]) == curves(figures[name], "series", "round", "value")
    assert len(lines(figures["scores-nmi"])) == 2
    assert len(lines(figures["scores-accuracy"])) == len(lines(figures["loss"])) == 3
    assert len(lines(figures["spectra"])) == 3
    assert {row["run"] for row in figures["gap"].rows} == {
        "CCFC++",
        "CCFC",
        "FedAvg with FedDecorr",
    }


def test_classifiers_have_no_centroids(classifier_run: Path) -> None:
    found = contents([read_run(classifier_run)])
    assert {each.title for each in found.left_out} == {
        "Effective rank by round", "Nearest to the centroids", "Farthest from the centroids",
        "Quality by the number of clusters", "Clients and clusters",
        "Confidence and errors", "Outliers and errors",
    }  # fmt: skip
    confusion = next(figure for figure in found.figures if figure.name == "confusion")
    assert "predicted class" in confusion.rows[0]


def with_points(run: RecordedRun, points: Tensor) -> RecordedRun:
    """The run as if these were the representations of its images."""
    shown = plot_arrays(points, torch.arange(len(points)), by_angle=True)
    kept = {name: own for name, own in run.shown.items() if name.startswith("pictur")}
    return replace(run, shown={**kept, **shown}, spectra={})


@pytest.mark.parametrize("width", [8, 70])
def test_a_model_that_has_diverged_says_so(run: RecordedRun, width: int) -> None:
    points = torch.ones(160, width)
    points[3, -1] = torch.nan
    broken = with_points(run, points)
    found = contents([replace(broken, spectra={"global": torch.full((8,), torch.nan)})])
    reasons = {each.title: each.reason for each in found.left_out}
    for title in ("Covariance matrix", "Singular values", "t-SNE by class"):
        assert "diverged" in reasons[title]
    assert "confusion" in {figure.name for figure in found.figures}


@pytest.mark.parametrize("width", [8, 70])
def test_a_model_that_gives_all_images_one_point_says_so(run: RecordedRun, width: int) -> None:
    found = contents([with_points(run, torch.ones(160, width))])
    reasons = {each.title: each.reason for each in found.left_out}
    assert reasons["t-SNE by class"] == "all representations are the same in direction"
    assert "fewer than two" in reasons["Correlations between dimensions"]
    (rank,) = next(f.rows for f in found.figures if f.name == "effective-rank")
    assert rank["effective rank"] == 0


def test_titles_that_come_to_the_same_name_have_files_of_their_own(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("scores-a", "scores-a", "scores-a-2", "scores-b", "scores-a")

    def draw(runs: object) -> list[DrawnFigure]:
        return [
            DrawnFigure(name, f"title {number}", "A caption.", Figure(), [])
            for number, name in enumerate(names)
        ]

    entry = table_of.Overlaid("Several", lambda run: None, draw)
    monkeypatch.setattr(table_of, "_SECTIONS", {"One": (entry,), "Two": (entry,)})
    figures = contents([run]).figures
    assert [figure.title for figure in figures] == [f"title {n}" for n in range(5)] * 2
    assert [figure.name for figure in figures[:5]] == [
        "scores-a", "scores-a-2", "scores-a-2-2", "scores-b", "scores-a-3",
    ]  # fmt: skip
    assert len({figure.name for figure in figures}) == 10


def rewritten(folder: Path, file: str, **changes: object) -> None:
    """Replace values in the arrays of a run."""
    with np.load(folder / file) as arrays:
        known = {name: arrays[name] for name in arrays.files}
    assert set(changes) <= set(known)
    np.savez(folder / file, **(known | changes))


def test_the_clusters_and_classes_that_runs_have_recorded_are_shown(
    digits_run: Path, classifier_run: Path, tmp_path: Path
) -> None:
    for path, file, name in (
        (digits_run, "assignments", "cluster"),
        (classifier_run, "predictions", "predicted"),
    ):
        copy = tmp_path / file
        shutil.copytree(path, copy)
        others = (read_run(copy).labels.numpy() + 1) % 10
        rewritten(copy, f"{file}.npz", **{name: others})
        assert read_run(copy).labels.tolist() == others.tolist()


@pytest.mark.usefixtures("unrendered")
def test_a_run_by_an_earlier_version_has_its_rounds_and_says_why_not_more(
    digits_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(digits_run, copy)
    for name in ("setting.json", "shown.npz"):
        (copy / name).unlink()
    found = contents([read_run(copy)])
    drawn = {figure.name for figure in found.figures}
    assert drawn >= {"scores", "rank", "loss", "bytes", "spectra", "effective-rank"}
    reasons = {each.title: each.reason for each in found.left_out}
    for title in ("Who took part", "Confusion matrix", "Covariance matrix", "t-SNE by class"):
        assert reasons[title] == "an earlier version of ccfcpp made the run, and did not record it"
    succeeded("report", copy)
    assert "was made by an earlier version of ccfcpp" in (copy / "report.html").read_text()


def test_facts_are_those_that_the_run_has_recorded(digits_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(digits_run, copy)
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(summary | {"cohort": summary["cohort"] + 77}))
    told, recorded = (summary_tables.setting(read_run(path)) for path in (digits_run, copy))
    key = "clients trained side by side"
    assert told[key] == str(summary["cohort"])
    assert recorded == told | {key: str(summary["cohort"] + 77)}


def test_many_dimensions_are_left_out(run: RecordedRun) -> None:
    found = contents([with_points(run, torch.arange(160 * 2049.0).view(160, 2049))])
    reasons = {each.title: each.reason for each in found.left_out}
    assert "2,049 dimensions" in reasons["Covariance matrix"]
    assert "2,049 dimensions" in reasons["Singular values"]


def test_long_names_keep_what_tells_them_apart() -> None:
    assert short("a cat") == "a cat"
    names = {short(f"a rather long name {number}") for number in range(30)}
    assert len(names) == 30
    assert max(map(len, names)) == 14
    places, thin = thin_ticks([str(number) for number in range(100)], most=20)
    assert places == list(range(0, 100, 5))
    assert thin == [str(place) for place in places]


def test_powers_of_ten_are_written_out() -> None:
    assert (power(1e-12), power(1), power(100)) == ("10⁻¹²", "10⁰", "10²")
    assert axis_number(-1234.5) == "\N{MINUS SIGN}1,234.5"


def test_runs_with_different_k_are_lines_over_k(tmp_path: Path) -> None:
    runs = []
    for k in (2, 3, 4):
        settings = ("--method", "k-fed", "--clients", 3, "--set", "data.images=60")
        succeeded("cluster", *settings, "--clusters", k, "--out", tmp_path / str(k))
        runs.append(read_run(tmp_path / str(k)))
    found = {figure.name: figure for figure in contents(label_runs(runs)).figures}
    for key, name in (
        ("silhouette", "simplified-silhouette-by-k"), ("davies_bouldin", "davies-bouldin-by-k"),
        ("stability", "stability-between-halves-by-k"),
    ):  # fmt: skip
        (line,) = found[name].figure.axes[0].lines
        assert np.asarray(line.get_xdata()).tolist() == [2, 3, 4]
        expected = [run.summary[key] for run in runs if run.summary]
        assert np.asarray(line.get_ydata()).tolist() == expected
    table = [row["images"] for row in found["client-clusters-2"].rows]
    assert sum(map(int, map(str, table))) == 60
    # One run has no such line; and its table stands.
    alone = {figure.name for figure in contents([runs[0]]).figures}
    assert "client-clusters" in alone
    assert "davies-bouldin-by-k" not in alone
