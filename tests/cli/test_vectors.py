"""Commands on vectors: what they take, and what they refuse in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from ccfcpp.clustering.model import load_model
from ccfcpp.core.errors import UsageError
from tests.support.command import ccfcpp, refused, succeeded


@pytest.fixture
def table(tmp_path: Path) -> Path:
    iris, path = load_iris(), tmp_path / "iris.csv"
    sites = np.array(["north", "south", "west"])[np.arange(150) % 3]
    rows = [",".join([*map(str, row), str(kind), site])
            for row, kind, site in zip(iris.data, iris.target, sites, strict=True)]  # fmt: skip
    path.write_text("\n".join(["a,b,c,d,kind,site", *rows]) + "\n")
    return path


def columns_of(table: Path) -> tuple[object, ...]:
    return ("--dataset", table, "--label-column", "kind", "--client-column", "site")


@pytest.fixture
def run(table: Path) -> Path:
    """A run of Fed-EM on it."""
    succeeded("cluster", *columns_of(table), "--out", table.with_name("run"))
    return table.with_name("run")


@pytest.mark.usefixtures("unrendered")
def test_a_table_with_columns_of_classes_and_clients(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["unit"], summary["samples"], summary["clients"]) == ("vector", 150, 3)
    assert summary["partition"] == "folders"
    assert summary["nmi"] > 0.85
    assert [client["name"] for client in summary["participants"]] == ["north", "south", "west"]
    succeeded("report", run)


def test_a_run_goes_on_with_its_own_data_alone(table: Path, run: Path) -> None:
    before = {file: (run / file).read_bytes() for file in ("summary.json", "clusters.csv")}
    succeeded("cluster", "--out", run, "--resume")
    lines = table.read_text().splitlines()
    for others in (lines[:-3], [lines[0], *reversed(lines[1:])]):
        table.write_text("\n".join(others) + "\n")
        line = refused("cluster", "--out", run, "--resume")
        assert "the data of north are not those with which this run began" in line
        assert {file: (run / file).read_bytes() for file in before} == before


class Frame:
    """What of a data frame a model looks at."""

    def __init__(self, held: dict[str, np.ndarray]) -> None:
        self.held = held
        self.columns = list(held)

    def __getitem__(self, names: list[str]) -> np.ndarray:
        return np.column_stack([self.held[name] for name in names])

    def __array__(self) -> np.ndarray:
        return self[self.columns]


def test_a_model_takes_the_columns_of_a_data_frame_by_name(table: Path, run: Path) -> None:
    numbers = np.loadtxt(table, delimiter=",", skiprows=1, usecols=range(4))
    model: Any = load_model(run)
    expected = model.assign(numbers)
    for names in ("dcba", ["d", "c", "b", " a "]):
        frame = Frame(dict(zip(names, numbers.T[::-1], strict=True)))
        assert torch.equal(model.assign(frame), expected)
    with pytest.raises(UsageError, match="the data frame has two columns 'a' and 'a '"):
        model.assign(Frame(dict.fromkeys(["a", "b", "c", "d", "a "], numbers[:, 0])))
    with pytest.raises(UsageError, match="the data frame has no column 'b'"):
        model.assign(Frame(dict(zip("acd", numbers.T[[0, 2, 3]], strict=True))))


def test_compare_leaves_out_systems_of_images_in_one_line(table: Path) -> None:
    methods = ["--methods", "fed-km,ccfc++,ppfc-gan"]
    shown = succeeded("compare", *columns_of(table), *methods, "--out", table.with_name("all"))
    left = [line for line in shown.stderr.splitlines() if line.startswith("left out")]
    assert left == ["left out, since they take no vectors: ccfc++, ppfc-gan"]
    assert "Fed-KM" in shown.stdout


@pytest.mark.usefixtures("unrendered")
def test_scores_are_shown_though_a_system_fails(table: Path) -> None:
    options = "--methods", "fed-km,spp-fgc", "--set", "spp.records=100"
    shown = ccfcpp("compare", *columns_of(table), *options, "--out", table.with_name("all"))
    assert shown.code == 1
    assert "Fed-KM" in shown.stdout
    said = shown.stderr.splitlines()[-1]
    assert said.startswith("error: 1 of 2 runs failed: ")
    assert "spp.records = 100 is fewer than the clients' 150 records" in said


def test_a_run_and_inspect_name_what_is_taken_for_one(tmp_path: Path) -> None:
    for name, end in (("a", ""), ("b", ".0")):
        rows = [f"{number % 3 * 8 + number / 40:.3f},{number % 3}{end}" for number in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["u,grade", *rows]) + "\n")
    arguments = [str(tmp_path), "--label-column", "grade"]
    line = "labels '1' and '1.0' are taken for one, '1'"
    shown = succeeded("inspect", *arguments).stdout
    assert line in shown
    assert line in json.loads(succeeded("inspect", *arguments, "--json").stdout)["notes"]
    out = ["--method", "fed-km", "--json", "--out", str(tmp_path / "run")]
    run = succeeded("cluster", "--dataset", *arguments, *out)
    assert line in run.stderr
    assert json.loads(run.stdout)["clusters"] == 3


REFUSED = [
    (["--method", "ccfc++"], "--method ccfc++ does not cluster vectors"),
    (["--method", "fed-scan", "--set", "affine.rotation=5"], "it needs a dataset of images"),
    (["--set", "data.image_size=8"], "data.image_size has no effect"),
    (["--client-column", "kin"], "has no column 'kin'"),
    (["--components", "9"], "is more than the 5 columns"),
    (["--partition", "folders"], "--client-column"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_is_refused(table: Path, arguments: list[str], message: str) -> None:
    numbers = np.loadtxt(table, delimiter=",", skiprows=1, usecols=range(5))
    path = table.with_suffix(".npy")
    np.save(path, numbers)
    few = ("--clusters", 3, "--clients", 3)
    assert message in refused("cluster", "--dataset", path, *few, *arguments)


def test_flags_of_vectors_do_nothing_for_images() -> None:
    line = refused("cluster", "--scale", "unit")
    assert "--scale unit has no effect: it needs a dataset of vectors" in line


@pytest.mark.usefixtures("unrendered")
def test_clusters_that_are_missing_and_scores_over_too_little_are_said(tmp_path: Path) -> None:
    """Three different rows are three clusters, whatever is asked for."""
    table, run = tmp_path / "rows.csv", tmp_path / "run"
    rows = "\n".join(f"{n % 3},{n % 3},{n % 5}" for n in range(60))
    table.write_text(f"a,b,kind\n{rows}\n")
    asked = ("--dataset", table, "--label-column", "kind", "--partition", "iid", "--clients", 2)
    shown = succeeded("cluster", *asked, "--out", run)
    assert "fewer clusters have vectors than was asked for (3 of 5)" in shown.stderr
    assert "3 of 5" in shown.stdout
    assert "(3 clusters, 5 classes)" in shown.stdout
    assert f"ccfcpp report {run}" in shown.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["clusters"], summary["clusters_found"], summary["classes"]) == (5, 3, 5)
    succeeded("report", run)
    page = (run / "report.html").read_text()
    assert "3 of 5" in page
    assert "(3 clusters, 5 classes)" in page


def test_clients_that_are_away_keep_their_names(tmp_path: Path) -> None:
    """In the order of names the second has the number 1, and is not "client 1"."""
    folder, names = tmp_path / "tables", ["client 1", "client 10", "client 2"]
    folder.mkdir()
    for name in names:
        (folder / f"{name}.csv").write_text("a,b\n1,2\n3,4\n9,8\n")
    given = ("--dataset", folder, "--clusters", 2, "--set", "availability.without=[1]")
    shown = succeeded("cluster", *given, "--out", tmp_path / "run").stdout
    assert [name for name in names if f" {name} " in shown] == names, shown
