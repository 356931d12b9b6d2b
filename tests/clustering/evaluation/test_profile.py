"""The description of clusters by the columns of a table, and its page."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.evaluation.profile import profile
from ccfcpp.core.config import VectorsConfig
from ccfcpp.data.categories import code
from ccfcpp.data.images import ImageData
from ccfcpp.data.vectors import VectorData
from ccfcpp.reports.profile import distinctions, profile_table
from ccfcpp.studies.report import report
from tests.support.command import succeeded
from tests.support.vectors import read_vectors

CELLS = ("3", "-1.5", "0", "2000", "")
ROWS = st.lists(
    st.tuples(st.sampled_from(CELLS), st.sampled_from(("red", "blue", "+", "")), st.integers(0, 2)),
    min_size=1,
    max_size=30,
)
VECTORS = VectorsConfig(categories=("hue",), rare=1)


def data_of(rows: list[tuple[str, str, int]]) -> tuple[VectorData, torch.Tensor]:
    """A column of numbers and one of categories, and the rows' clusters."""
    values = [[float(number or "nan"), code(hue)] for number, hue, _ in rows]
    texts = {code(hue): hue for _, hue, _ in rows}
    data = VectorData(
        "rows", torch.tensor(values, dtype=torch.float64), columns=("size", "hue"), texts=texts
    )
    return data, torch.tensor([cluster for _, _, cluster in rows])


def slow_mean(values: list[float]) -> object:
    return pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-12) if values else ""


@given(ROWS)
def test_means_shares_and_the_variance_between_clusters(rows: list[tuple[str, str, int]]) -> None:
    (data, found), clusters = data_of(rows), {cluster for *_, cluster in rows}
    described = profile(data, VECTORS, found)
    assert {row["column"] for row in described} <= {"size", "hue"}
    for row in described:
        by_size = row["column"] == "size"
        measured = [
            (float(number) if by_size else float(hue == row["category"]), cluster)
            for number, hue, cluster in rows
            if (number if by_size else hue)
        ]
        values = [value for value, _ in measured]
        assert row["all"] == slow_mean(values)
        for cluster in range(max(clusters) + 1):
            own = [value for value, of in measured if of == cluster]
            assert row[f"cluster {cluster}"] == slow_mean(own)
        total = len(values) * float(np.var(values)) if values else 0.0
        within = sum(
            len(own) * float(np.var(own))
            for cluster in clusters
            if (own := [value for value, of in measured if of == cluster])
        )
        between = 1 - within / total if total > 1e-9 else 0.0
        assert float(str(row["differs"])) == pytest.approx(between, abs=6e-4)
    shares = [row["differs"] for row in described]
    assert shares == sorted(shares, reverse=True, key=lambda text: float(str(text)))


def test_a_constant_column_differs_nowhere() -> None:
    data = VectorData("rows", torch.full((7, 1), 0.1, dtype=torch.float64), columns=("a",))
    (row,) = profile(data, VectorsConfig(), torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    assert (row["differs"], row["deviation"]) == ("0.000", 0.0)


def test_only_named_columns_of_tables_are_described() -> None:
    data, clusters = data_of([("1", "red", 0), ("2", "blue", 1)])
    assert len(profile(data, VECTORS, clusters)) == 3
    assert profile(replace(data, columns=()), VECTORS, clusters) == []
    assert profile(replace(data, encoder="ab"), VECTORS, clusters) == []
    images = ImageData("images", torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
    assert profile(images, VectorsConfig(), clusters) == []


def test_categories_of_few_rows_are_not_described() -> None:
    data, clusters = data_of([("1", "red", 0)] * 3 + [("2", "blue", 1)] * 2)
    for rare, told in ((2, {"", "red", "blue"}), (3, {"", "red"}), (4, {""})):
        rows = profile(data, VectorsConfig(categories=("hue",), rare=rare), clusters)
        assert {row["category"] for row in rows} == told


def test_a_folder_has_the_texts_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size,hue\n1, red\n2,blue\n")
    (tmp_path / "b.csv").write_text("hue,size\ngreen,3\nblue,4\n")
    data = read_vectors(tmp_path, categories=["hue"])
    assert data.texts == {code(hue): hue for hue in ("red", "blue", "green")}


def test_the_page_says_what_sets_clusters_apart() -> None:
    numbers = {"category": "", "differs": "0.900", "deviation": "2.0"}
    absent = {"all": "", "cluster 0": "", "cluster 1": ""}
    hues = {"column": "hue", "differs": "0.250", "deviation": "0.5"}
    rows = [
        {"column": "size", **numbers, **absent, "all": "1500.0", "cluster 0": "1504.0"},
        {
            "column": "born",
            **numbers,
            "all": "2001-02-03",
            "cluster 0": "2001-02-04",
            "cluster 1": "",
        },
        {**hues, "category": "'+", "all": "0.25", "cluster 0": "0.5", "cluster 1": "0.0"},
        {**hues, "category": "'s-Hage", "all": "0.1", "cluster 0": "0.1", "cluster 1": "0.1"},
        {**hues, "category": "red", "all": "0.5", "cluster 0": "0.5", "cluster 1": "1.0"},
    ]
    assert distinctions(rows) == {
        "cluster 0": "size 1,504 (all: 1,500), born 2001-02-04 (all: 2001-02-03), "
        "hue: + 50% (all: 25%)",
        "cluster 1": "hue: red 100% (all: 50%)",
    }
    table = profile_table(rows)
    assert [row["column"] for row in table] == [
        "size",
        "born",
        "hue: +",
        "hue: 's-Hage",
        "hue: red",
    ]
    assert [row["cluster 1"] for row in table] == [
        "\N{EN DASH}",
        "\N{EN DASH}",
        "0%",
        "10%",
        "100%",
    ]
    assert table[0]["variance between clusters"] == "90%"


def test_a_run_on_a_table_ends_with_a_description(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    lines = ["size,born,hue"]
    for number in range(60):
        far = number % 2
        size = source.normal() + 20 * far
        lines.append(f"{size:.3f},{1990 + far}-0{1 + number % 9}-01,{('red', '<i>blue')[far]}")
    (tmp_path / "things.csv").write_text("\n".join(lines))
    options = ["--categories", "hue", "--dates", "born", "--clusters", "2", "--clients", "2"]
    succeeded("cluster", "--dataset", tmp_path / "things.csv", "--out", tmp_path / "run", *options)
    written = (tmp_path / "run" / "profile.csv").read_text().splitlines()
    assert written[0] == "column,category,differs,deviation,all,cluster 0,cluster 1"
    assert {line.split(",")[0] for line in written[1:]} == {"size", "born", "hue"}
    page = report(tmp_path / "run").read_text()
    assert "hue: &lt;i&gt;blue" in page
    assert "<i>blue" not in page
    assert "1990-0" in page
    assert math.isfinite(float(written[1].split(",")[2]))
