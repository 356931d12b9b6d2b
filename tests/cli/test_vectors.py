"""Commands on vectors: what they take, and what they refuse in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from tests.support.command import ccfcpp, succeeded


@pytest.fixture
def table(tmp_path: Path) -> Path:
    iris, path = load_iris(), tmp_path / "iris.csv"
    sites = np.array(["north", "south", "west"])[np.arange(150) % 3]
    rows = [",".join([*map(str, row), str(kind), site])
            for row, kind, site in zip(iris.data, iris.target, sites, strict=True)]  # fmt: skip
    path.write_text("\n".join(["a,b,c,d,kind,site", *rows]) + "\n")
    return path


def test_a_table_with_columns_of_classes_and_clients(table: Path) -> None:
    arguments = ["--dataset", str(table), "--label-column", "kind", "--client-column", "site"]
    shown = succeeded("cluster", *arguments, "--json", "--out", str(table.with_name("run")))
    summary = json.loads(shown.stdout)
    assert (summary["unit"], summary["samples"], summary["clients"]) == ("vector", 150, 3)
    assert summary["partition"] == "folders"
    assert summary["nmi"] > 0.85
    assert [client["name"] for client in summary["participants"]] == ["north", "south", "west"]
    succeeded("report", str(table.with_name("run")))


def test_compare_leaves_out_systems_of_images_in_one_line(table: Path) -> None:
    arguments = ["--dataset", str(table), "--label-column", "kind", "--client-column", "site"]
    methods = ["--methods", "fed-km,ccfc++,ppfc-gan"]
    shown = succeeded("compare", *arguments, *methods, "--out", str(table.with_name("all")))
    left = [line for line in shown.stderr.splitlines() if line.startswith("left out")]
    assert left == ["left out, since they take no vectors: ccfc++, ppfc-gan"]
    assert "Fed-KM" in shown.stdout


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
    finished = ccfcpp(
        "cluster", "--dataset", str(path), "--clusters", "3", "--clients", "3", *arguments
    )
    assert finished.code == 2
    assert message in " ".join(finished.stderr.split())


def test_flags_of_vectors_do_nothing_for_images() -> None:
    finished = ccfcpp("cluster", "--scale", "unit")
    assert finished.code == 2
    assert "--scale unit has no effect: it needs a dataset of vectors" in finished.stderr
