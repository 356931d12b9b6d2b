"""Comparisons: which runs there are, what their tables say, and the command."""

import csv
import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import resolve, unflatten
from ccfcpp.core.errors import UsageError
from ccfcpp.core.unused_settings import refuse_unused
from ccfcpp.runs.paths import Json
from ccfcpp.studies.compare import compare
from ccfcpp.studies.comparison import Comparison, TableEntry
from ccfcpp.studies.grids import Axes, PlannedRun
from tests.support.command import ccfcpp, succeeded
from tests.support.comparisons import planned_comparison
from tests.support.forks import Fork

PATIENCE = 180.0


def summary(nmi: float, kappa: float = 0.5, seconds: float = 2.0) -> Json:
    """What a run of four clients leaves, as far as tables read it."""
    return {
        "nmi": nmi, "nmi_geometric": nmi / 2, "kappa": kappa,
        "connected": 4, "bytes_up": 8_000_000, "bytes_down": 4_000_000,
        "bytes_delivered": 500_000, "communication_rounds": 1, "seconds": seconds,
        "refused_updates": 0,
    }  # fmt: skip


def planned(*axes: Axes, dataset: str = "digits") -> list[PlannedRun[ClusterConfig]]:
    return [PlannedRun(own, ClusterConfig(dataset=dataset, method=own["method"])) for own in axes]


def skews(*values: str) -> dict[str, tuple[str, ...]]:
    return {"partition.p": values}


KM: Axes = {"method": "km"}
K_FED = [{"method": "k-fed", "p": p} for p in (0.0, 1.0)]


# --- the plan -----------------------------------------------------------------------------------


def test_every_method_runs_at_every_skew_and_a_centralised_one_once() -> None:
    plan = planned_comparison({"seed": "3"}, ["km", "k-fed"], skews("0", "0.5", "0.50"), 2)
    assert [(run.axes, run.config.seed) for run in plan] == [
        (KM, 3), (KM, 4),
        ({"method": "k-fed", "p": 0.0}, 3), ({"method": "k-fed", "p": 0.0}, 4),
        ({"method": "k-fed", "p": 0.5}, 3), ({"method": "k-fed", "p": 0.5}, 4),
    ]  # fmt: skip
    assert [run.config.partition.degree["p"] for run in plan[2:]] == [0.0, 0.0, 0.5, 0.5]
    assert [run.config.method for run in plan[:2]] == ["km", "km"]


def test_what_a_method_fixes_lies_under_what_the_user_gives() -> None:
    plain, given = (
        planned_comparison(values, ["sda-fc-km"], skews("0"), seeds=1)[0].config.section(
            PixelsConfig
        )
        for values in ({}, {"pixels": {"assignment": "euclidean"}})
    )
    assert (plain.assignment, given.assignment) == ("cosine", "euclidean")


def test_where_clients_may_be_absent_a_centralised_method_runs_at_every_skew() -> None:
    for absence in ("disconnection_rate", "dropout_rate"):
        plan = planned_comparison(
            {"availability": {absence: 0.3}}, ["km"], skews("0", "1"), seeds=1
        )
        assert [run.axes for run in plan] == [
            {"method": "km", "p": 0.0},
            {"method": "km", "p": 1.0},
        ]


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({"partition": {"clients": 3}}, 2),
        ({"partition": {"clients": 13}}, 2),
        ({"partition": {"clients": 20}}, 1),
        ({"dataset": "photos", "partition": {"clients": 20}}, 2),
        ({"data": {"imbalance": 10}}, 2),
    ],
)
def test_where_images_may_be_with_nobody_a_centralised_method_runs_at_every_skew(
    settings: Tree, runs: int
) -> None:
    assert len(planned_comparison(settings, ["km"], skews("0", "1"), seeds=1)) == runs


@pytest.mark.parametrize(("clients", "runs"), [(3, 2), (10, 1)])
def test_so_it_does_where_a_class_may_be_with_nobody(clients: int, runs: int) -> None:
    partition: Tree = {"partition": {"kind": "classes", "clients": clients}}
    axes = {"partition.classes_per_client": ("1", "4")}
    assert len(planned_comparison(partition, ["km"], axes, seeds=1)) == runs


def test_rates_of_failures_are_axes_beside_p() -> None:
    axes = {"partition.p": ("0", "1"), "availability.disconnection_rate": ("0", "0.30", "0.3")}
    plan = planned_comparison({}, ["km", "k-fed"], axes, seeds=1)
    km = [{"p": 0.0, "disconnection_rate": 0.3}, {"p": 1.0, "disconnection_rate": 0.3}]
    k_fed = [{"p": p, "disconnection_rate": rate} for p in (0.0, 1.0) for rate in (0.0, 0.3)]
    expected = [
        {"method": "km", "disconnection_rate": 0.0},
        *({"method": "km"} | own for own in km),
    ]
    assert [run.axes for run in plan] == expected + [{"method": "k-fed"} | own for own in k_fed]
    for run in plan:
        availability = run.config.availability
        assert availability.disconnection_rate == run.axes["disconnection_rate"]


@pytest.mark.parametrize(
    ("partition", "axes", "heading"),
    [
        ({"kind": "classes"}, {"classes_per_client": 2}, "2 classes a client"),
        ({"kind": "dirichlet", "alpha": "0.1"}, {"alpha": 0.1}, "dirichlet, alpha = 0.1"),
        ({"kind": "iid"}, {}, "iid"),
    ],
)
def test_another_partition_than_the_skew_has_one_column(
    partition: Tree, axes: Axes, heading: str
) -> None:
    plan = planned_comparison({"partition": partition}, ["km", "k-fed"], {}, seeds=1)
    assert [run.axes for run in plan] == [KM, {"method": "k-fed", **axes}]
    results = [(run.axes, summary(0.5)) for run in plan]
    comparison = Comparison(plan, results)
    assert [list(row) for row in comparison.table("nmi")] == [["method", heading]] * 2
    assert [row.get("alpha") for row in comparison.rows] == [None, axes.get("alpha")]


def test_a_degree_of_skew_is_no_column_of_another_partition() -> None:
    partitions = {"partition.kind": ("skew", "dirichlet"), "partition.p": ("0.5",)}
    plan = planned_comparison({}, ["k-fed"], partitions, seeds=1)
    rows = Comparison(plan, [(run.axes, summary(0.5)) for run in plan]).table("nmi")
    assert [list(row)[2:] for row in rows] == [["p = 0.5"], ["dirichlet, alpha = 0.5"]]


def test_runs_without_skew_stand_in_no_column_of_a_degree() -> None:
    partitions = {"partition.kind": ("skew", "iid"), "partition.p": ("0.5",)}
    plan = planned_comparison({}, ["k-fed"], partitions, seeds=1)
    rows = Comparison(plan, [(run.axes, summary(0.5)) for run in plan]).table("nmi")
    assert [list(row)[2:] for row in rows] == [["p = 0.5"], ["iid"]]


def test_unknown_methods_and_skews_are_refused() -> None:
    with pytest.raises(UsageError, match="method = dbscan is refused"):
        planned_comparison({}, ["dbscan"], skews("0"), seeds=1)
    with pytest.raises(UsageError, match=r"partition.p = 2"):
        planned_comparison({}, ["k-fed"], skews("2"), seeds=1)


def test_settings_without_effect_are_refused() -> None:
    def check(methods: list[str], **settings: object) -> None:
        configs = [resolve(ClusterConfig, "cluster", {"method": name}) for name in methods]
        refuse_unused(configs, "cluster", [unflatten(settings)])

    each = {"loss.eta": 0.5, "gan.epochs": 3, "seed": 1, "partition.p": 0.5}
    check(["ccfc++", "ppfc-gan"], **each)
    complaint = r"loss.eta = .* has no effect on km, k-fed: .* ccfc, ccfc\+\+"
    with pytest.raises(UsageError, match=complaint):
        check(["km", "k-fed"], **each)


# --- tables -------------------------------------------------------------------------------------


def entries(comparison: Comparison, score: str) -> dict[str, list[TableEntry | None]]:
    return {
        str(row["method"]): [
            value if isinstance(value := row.get(f"p = {p}"), TableEntry) else None for p in (0, 1)
        ]
        for row in comparison.table(score)
    }


def test_a_table_has_means_deviations_published_values_and_the_best() -> None:
    results = [
        (KM, summary(0.5)),
        (K_FED[0], summary(0.6)), (K_FED[0], summary(0.8)), (K_FED[1], summary(0.5)),
    ]  # fmt: skip
    table = entries(Comparison(planned(KM, *K_FED, dataset="mnist"), results), "nmi")
    assert table == {
        "KM": [TableEntry("0.5000", "(0.5304)", False), TableEntry("0.5000", "(0.5304)", True)],
        "k-FED": [
            TableEntry("0.7000 ± 0.1414", "(0.5081)", True),
            TableEntry("0.5000", "(0.4142)", True),
        ],
    }


def test_a_table_of_runs_that_are_not_finished_leaves_their_places_empty() -> None:
    comparison = Comparison(planned(KM, *K_FED), [(K_FED[1], summary(0.7))])
    assert entries(comparison, "nmi") == {
        "KM": [None, None], "k-FED": [None, TableEntry("0.7000", "", True)],
    }  # fmt: skip
    assert [row["method"] for row in comparison.costs()] == ["k-FED"]
    assert Comparison(planned(KM), []).as_markdown().count("KM") == 4


def test_scores_of_absent_clients_have_columns_where_somebody_is_absent() -> None:
    def apart(connected: float, absent: float) -> Json:
        return summary(0.5) | {
            "scores_connected": {"nmi": connected, "kappa": 0.75},
            "scores_absent": {"nmi": absent, "kappa": 0.25},
        }

    plain = [(axes, summary(0.5) | {"scores_absent": None}) for axes in K_FED]
    assert not any(
        "_absent" in key for row in Comparison(planned(*K_FED), plain).rows for key in row
    )
    some = [(K_FED[0], apart(0.75, 0.25)), (K_FED[0], apart(0.5, 0.5)), plain[1]]
    first, second = Comparison(planned(*K_FED), some).rows
    assert (first["nmi_connected"], first["kappa_connected"]) == (0.625, 0.75)
    assert (first["nmi_absent"], first["kappa_absent"]) == (0.375, 0.25)
    assert first["nmi_absent deviation"] == pytest.approx(0.125 * 2**0.5)
    assert second["nmi_absent"] is second["kappa_connected"] is None


def test_each_rate_of_failures_has_a_row_and_its_own_best() -> None:
    def absent(nmi: float, of_absent: float) -> Json:
        apart = {who: {"nmi": of_absent, "kappa": 0.5} for who in ("connected", "absent")}
        return summary(nmi) | {f"scores_{who}": scores for who, scores in apart.items()}

    axes = {"partition.p": ("1",), "availability.disconnection_rate": ("0", "0.3")}
    plan = planned_comparison({"dataset": "mnist"}, ["km", "k-fed"], axes, seeds=1)
    values = [summary(0.5), absent(0.6, 0.1), summary(0.7), absent(0.4, 0.2)]
    runs = [(run.axes, value) for run, value in zip(plan, values, strict=True)]
    comparison = Comparison(plan, runs)
    shown = [
        (row["method"], row["disconnection rate"], row["p = 1"]) for row in comparison.table("nmi")
    ]
    assert shown == [
        ("KM", "0", TableEntry("0.5000", "(0.5304)", False)),
        ("KM", "0.3", TableEntry("0.6000", "", True)),
        ("k-FED", "0", TableEntry("0.7000", "(0.4142)", True)),
        ("k-FED", "0.3", TableEntry("0.4000", "", False)),
    ]
    assert comparison.captions()["nmi_absent"].startswith("NMI of absent clients;")
    assert [row["nmi_absent"] for row in comparison.rows] == [None, 0.1, None, 0.2]
    assert "Kappa of connected clients" in comparison.as_markdown()


def test_costs_are_means_of_a_client_and_say_what_leaves_it() -> None:
    results = [(K_FED[0], summary(0.7, seconds=1)), (K_FED[1], summary(0.7, seconds=4))]
    (costs,) = Comparison(planned(*K_FED), results).costs()
    assert costs == {
        "method": "k-FED", "leaves a client": "centroids", "rounds": "1", "MB up": "2.000",
        "MB down": "1.500", "seconds": "2.5", "refused": "0",
    }  # fmt: skip


def test_without_labels_a_table_has_no_scores() -> None:
    unlabelled = summary(0) | {"nmi": None, "kappa": None}
    comparison = Comparison(planned(KM), [(KM, unlabelled)])
    assert "any p" in comparison.as_markdown()
    assert comparison.rows[0]["nmi"] is None


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({}, True),
        ({"partition": {"clients": 10}, "clusters": 10}, True),
        ({"partition": {"clients": 20}}, False),
        ({"clusters": 5}, False),
        ({"data": {"images": 500}}, False),
        ({"data": {"image_size": 32}}, False),
        ({"data": {"imbalance": 10}}, False),
        ({"data": {"root": "elsewhere"}}, True),
        ({"partition": {"kind": "iid"}}, False),
        ({"availability": {"disconnection_rate": 0.1}}, False),
        ({"availability": {"sample_fraction": 0.5}}, False),
    ],
)
def test_published_values_stand_beside_runs_of_the_same_setting(settings: Tree, fits: bool) -> None:
    runs = planned_comparison({"dataset": "mnist"} | settings, ["k-fed"], skews("0"), seeds=1)
    comparison = Comparison(runs, [(runs[0].axes, summary(0.5))])
    (row,) = comparison.rows
    assert row["nmi published"] == (0.5081 if fits else None)
    titles = comparison.captions()
    assert titles["nmi"].startswith("NMI (published);" if fits else "NMI;")
    # The geometric mean stands beside the paper's values alone; of the numbers it is always one.
    assert ("nmi_geometric" in titles) == fits
    assert row["nmi_geometric"] == 0.25
    assert ("(0.5081)" in comparison.as_markdown()) == fits


def test_methods_are_compared_over_seeds_with_the_best_or_a_baseline() -> None:
    scores = {"km": (0.5, 0.51, 0.52), "k-fed": (0.8, 0.82, 0.81), "ffcm-km": (0.79, 0.83, 0.8)}
    results: list[tuple[Axes, Json]] = [
        ({"method": method, "p": 0.0}, summary(nmi) | {"seed": seed})
        for method, found in scores.items()
        for seed, nmi in enumerate(found)
    ]
    runs = planned(*({"method": method, "p": 0.0} for method in scores))
    by_best = Comparison(runs, results)
    marks = {str(row["method"]): row["p = 0"] for row in by_best.table("nmi")}
    assert {name: own.differs for name, own in marks.items() if isinstance(own, TableEntry)} == {
        "KM": True, "k-FED": False, "FFCM-km": False,
    }  # fmt: skip
    assert "* differs from the best of its column (paired t-test" in by_best.captions()["nmi"]
    assert "mean ± deviation over 3 seeds" in by_best.captions()["nmi"]
    assert "0.5100 ± 0.0100*" in by_best.as_markdown()
    by_km = Comparison(runs, results, "km")
    assert "* differs from KM" in by_km.captions()["nmi"]
    p: Json = {row["method"]: row.get("nmi p-value") for row in by_km.rows}
    assert p["km"] is None
    assert 0 < p["k-fed"] < 0.05
    two = [(axes, own) for axes, own in results if own["seed"] < 2]
    assert "paired" not in Comparison(runs, two).captions()["nmi"]
    with pytest.raises(UsageError, match="baseline = fcm is none of the methods"):
        Comparison(runs, results, "fcm")


def test_rounding_errors_are_no_difference() -> None:
    """Of a clustering whose clusters have other numbers a score may differ in its last bit."""
    of_methods = {"km": 0.3, "fed-km": 0.1 + 0.2}
    results: list[tuple[Axes, Json]] = [
        ({"method": method, "p": 0.0}, summary(nmi) | {"seed": seed})
        for method, nmi in of_methods.items()
        for seed in range(3)
    ]
    runs = planned(*({"method": method, "p": 0.0} for method in of_methods))
    shown = [row["p = 0"] for row in Comparison(runs, results).table("nmi")]
    assert shown == [TableEntry("0.3000 ± 0.0000", "", best=True, differs=False)] * 2


def test_tables_are_written_for_latex() -> None:
    results = [(K_FED[0], summary(0.5)), (K_FED[0], summary(0.7)), (KM, summary(0.6))]
    text = Comparison(planned(KM, *K_FED, dataset="mnist"), results).as_latex()
    assert r"\caption{NMI (published); mean $\pm$ deviation over 1 to 2 seeds}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert "method & p = 0 & p = 1 \\\\\n\\midrule" in text
    assert r"KM & \textbf{0.6000} (0.5304) & \textbf{0.6000} (0.5304) \\" in text
    assert r"k-FED & \textbf{0.6000 $\pm$ 0.1414} (0.5081) &  \\" in text
    assert text.count("{") == text.count("}")


def test_a_sweep_has_a_row_for_each_value_and_one_best() -> None:
    axes = {"partition.p": [0.0], "loss.eta": [0.0, 0.5]}
    plan = planned_comparison({}, ["k-fed", "ccfc++"], axes, seeds=1)
    found = Comparison(plan, [(run.axes, summary(n / 10)) for n, run in enumerate(plan)])
    shown = [(row["method"], row["eta"], row["p = 0"]) for row in found.table("nmi")]
    assert shown == [
        ("k-FED", "", TableEntry("0.0000", "", False)),
        ("CCFC++", "0", TableEntry("0.1000", "", False)),
        ("CCFC++", "0.5", TableEntry("0.2000", "", True)),
    ]
    assert [row.get("loss.eta") for row in found.rows] == [None, 0.0, 0.5]


def test_all_images_are_another_condition_than_some_of_them() -> None:
    axes: dict[str, list[object]] = {"partition.p": [0.0], "data.images": [None, 100]}
    plan = planned_comparison({}, ["k-fed", "fed-km"], axes, seeds=1)
    scores = zip(plan, (0.8, 0.3, 0.9, 0.4), strict=True)
    found = Comparison(plan, [(run.axes, summary(nmi)) for run, nmi in scores])
    shown = [(row["images"], row["p = 0"]) for row in found.table("nmi")]
    assert shown == [
        ("", TableEntry("0.8000", "", False)), ("100", TableEntry("0.3000", "", False)),
        ("", TableEntry("0.9000", "", True)), ("100", TableEntry("0.4000", "", True)),
    ]  # fmt: skip


def test_an_axis_that_changes_nothing_and_too_few_clusters_are_said() -> None:
    axes: dict[str, list[float]] = {"partition.p": [0.0], "means.rounds": [20, 40]}
    axes |= {"means.tolerance": [0.1, 0.2]}
    plan = planned_comparison({}, ["k-fed", "fed-km"], axes, seeds=1)
    few = {"clusters": 5, "clusters_found": 3}
    results = [
        (run.axes, summary(run.axes.get("means.tolerance", 0)) | (few if n == 0 else {}))
        for n, run in enumerate(plan)
    ]
    said = Comparison(plan, results).captions()["nmi"]
    assert "; fewer clusters than was asked for in 1 run;" in said
    assert said.endswith("; rounds changes nothing")
    results[-1] = results[-1][0], summary(0.9)
    assert "changes nothing" not in Comparison(plan, results).captions()["nmi"]


def test_compare_from_python_is_what_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"method": ["km", "k-fed"], "partition.p": [1], "data.images": 60}
    found = compare(settings, out=tmp_path / "here")
    assert [row["method"] for row in found["table"]] == ["km", "k-fed"]
    few = ("--methods", "km,k-fed", "--p", 1, "--set", "data.images=60")
    succeeded("compare", *few, "--out", tmp_path / "there")
    for name in ("table.csv", "table.md", "table.tex"):
        assert (tmp_path / "here" / name).is_file()
    assert scores(tmp_path / "here") == scores(tmp_path / "there")
    more = compare({"method": "ffcm-km"}, out=tmp_path / "here", resume=True, baseline="km")
    assert [row["method"] for row in more["table"]] == ["km", "k-fed", "ffcm-km"]
    with pytest.raises(UsageError, match="dataset is no axis of a comparison"):
        compare({"dataset": ["digits", "mnist"]})


# --- the command --------------------------------------------------------------------------------

CHEAP = ("--methods", "km,k-fed", "--p", "0,1", "--set", "centroids.restarts=1")


def test_a_comparison_prints_and_writes_its_tables(tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    result = ccfcpp("compare", *CHEAP, "--seeds", 2, "--jobs", 2, "--out", out)
    assert result.code == 0, result.stderr
    assert "6 of 6 runs finished" in result.stderr
    assert "NMI" in result.stdout
    assert "(published)" not in result.stdout
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["p"], row["runs"]) for row in rows] == [
        ("km", "", "2"), ("k-fed", "0.0", "2"), ("k-fed", "1.0", "2"),
    ]  # fmt: skip
    single = json.loads((out / "method=k-fed,p=1.0" / "seed-1" / "summary.json").read_text())
    other = json.loads((out / "method=k-fed,p=1.0" / "seed-0" / "summary.json").read_text())
    assert float(rows[2]["nmi"]) == pytest.approx((single["nmi"] + other["nmi"]) / 2)
    # A run of a comparison is one that `cluster` does.
    alone = ccfcpp(
        "cluster", "--method", "k-fed", "--p", 1, "--seed", 1, "--json",
        "--out", tmp_path / "alone",
    )  # fmt: skip
    assert json.loads(alone.stdout)["nmi"] == pytest.approx(single["nmi"], abs=0.02)
    # Nothing is left to run, and nothing is run again.
    before = (out / "method=km" / "seed-0" / "summary.json").stat().st_mtime_ns
    again = ccfcpp("compare", "--out", out, "--resume", "--json")
    assert again.code == 0, again.stderr
    assert [row["runs"] for row in json.loads(again.stdout)["table"]] == [2, 2, 2]
    assert (out / "method=km" / "seed-0" / "summary.json").stat().st_mtime_ns == before


LONG = (
    *("--methods", "km,ffcm-km,k-fed", "--p", "1", "--set", "ffcm.rounds=100"),
    *("--set", "ffcm.tolerance=0", "--set", "fuzzy.iterations=3", "--set", "data.images=300"),
)


def test_a_comparison_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def start(*arguments: object) -> Fork:
        return Fork(["-m", "ccfcpp", "compare", *map(str, arguments)], environment)

    assert start(*LONG, "--out", whole).wait(PATIENCE) == 0
    process = start(*LONG, "--out", broken)
    metrics = broken / "method=ffcm-km,p=1.0" / "seed-0" / "metrics.jsonl"
    wait_for_rounds(metrics, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert f"go on with: ccfcpp compare --out {broken} --resume" in stderr
    assert (broken / "method=km" / "seed-0" / "summary.json").exists()
    assert not (broken / "method=k-fed,p=1.0" / "seed-0").exists()
    rounds = metrics.read_text().count("\n")
    assert 2 <= rounds < 100
    assert start("--out", broken, "--resume").wait(PATIENCE) == 0
    assert metrics.read_text().count("\n") == 100
    assert scores(broken) == scores(whole)


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        ((), "published"),
        (("--preset", "default"), "default"),
        (("--config", "default.yaml"), "default"),
    ],
)
def test_what_stands_beside_published_values_has_the_papers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], preset: str
) -> None:
    (tmp_path / "default.yaml").write_text("preset: default\n")
    monkeypatch.chdir(tmp_path)
    few = ("--methods", "km,k-fed", "--p", 1, "--set", "data.images=60")
    succeeded("compare", *few, *arguments, "--out", "out")
    plan = yaml.safe_load((tmp_path / "out" / "study.yaml").read_text())
    assert [run["config"]["preset"] for run in plan["runs"]] == [preset] * 2
    run = tmp_path / "out" / "method=k-fed,p=1.0" / "seed-0" / "config.yaml"
    assert yaml.safe_load(run.read_text())["preset"] == preset
    # The runs that are there cannot become others.
    assert ccfcpp("compare", "--preset", preset, "--out", "out", "--resume").code == 0
    (other,) = {"default", "published"} - {preset}
    again = ccfcpp("compare", "--preset", other, "--out", "out", "--resume")
    assert (again.code, f"have --preset {preset}, not {other}" in again.stderr) == (2, True)


def scores(folder: Path) -> list[tuple[str, str, str]]:
    with (folder / "table.csv").open() as file:
        return [(row["method"], row["nmi"], row["kappa"]) for row in csv.DictReader(file)]


def wait_for_rounds(metrics: Path, process: Fork) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--methods", "km,dbscan"), "--methods dbscan is refused"),
        (("--methods", "km,"), "--methods km, holds an empty value"),
        (("--p", "0,x"), "--p x is refused"),
        (("--p", "0,1.5"), "--p 1.5 is refused"),
        (("--dropout-rate", "0,2"), "--dropout-rate 2 is refused"),
        (("--dropout-rate", "0,"), "--dropout-rate 0, holds an empty value"),
        (("--dropout-rate", "0,0.1", "--set", "availability.dropout_rate=0"), "--dropout-rate"),
        (("--set", "partition.p=0"), "give --p"),
        (("--set", "method=km"), "give --methods"),
        (("--set", "seed=0,1"), "seed is no axis of a comparison: give a number of seeds"),
        (("--baseline", "fcm", "--methods", "km"), "baseline = fcm is none of the methods"),
        (("--methods", "km", "--set", "gan.epochs=3"), "gan.epochs = 3 has no effect on km"),
        (("--partition", "iid", "--p", "0"), "--p has no effect"),
        (("--alpha", "1", "--p", "0"), "--p has no effect on partition.kind = 'dirichlet'"),
        (("--set", "partition=3"), "partition = 3 is refused"),
        (("--methods", "k-fed", "--set", "kfed.local_clusters=11"), "more than the 10 clusters"),
        (("--dataset", "nothing.npz"), "nothing.npz"),
        (
            ("--preset", "paper"),
            "--preset paper is refused: it should be 'default', 'published', 'f",
        ),
        (("--resume",), "--resume needs the folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    out = () if "--resume" in arguments else ("--out", tmp_path / "out")
    result = ccfcpp("compare", *arguments, *out)
    assert result.code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_rates_of_failures_are_swept_with_scores_of_connected_and_absent(tmp_path: Path) -> None:
    out = tmp_path / "out"
    cheap = ("--methods", "km,k-fed", "--p", "0", "--set", "centroids.restarts=1")
    few = (*cheap, "--set", "data.images=200")
    result = ccfcpp("compare", *few, "--disconnection-rate", "0,0.25", "--out", out)
    assert result.code == 0, result.stderr
    assert "NMI of absent clients" in result.stdout
    assert "| method | disconnection rate | p = 0 |" in (out / "table.md").read_text()
    folder = out / "method=k-fed,p=0.0,disconnection_rate=0.25" / "seed-0"
    alone = json.loads((folder / "summary.json").read_text())
    assert alone["disconnected"] == 3
    with (out / "table.csv").open() as file:
        rows = {(row["method"], row["disconnection_rate"]): row for row in csv.DictReader(file)}
    assert len(rows) == 4
    for who in ("connected", "absent"):
        for score in ("nmi", "kappa"):
            shown = rows["k-fed", "0.25"][f"{score}_{who}"]
            assert float(shown) == alone[f"scores_{who}"][score]
    assert rows["k-fed", "0.0"]["nmi_absent"] == ""
    # Where nobody is absent, the connected clients' images are all that clients hold.
    assert float(rows["k-fed", "0.0"]["nmi_connected"]) > 0


def test_a_comparison_grows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ("--set", "data.images=100", "--set", "centroids.restarts=1")
    succeeded("compare", "--methods", "km", "--p", 1, *few, "--out", out)
    summary = out / "method=km" / "seed-0" / "summary.json"
    before = summary.stat().st_mtime_ns
    more = ("--methods", "k-fed", "--p", "0", "--seeds", 2, "--disconnection-rate", "0,0.3")
    succeeded("compare", *more, "--out", out, "--resume")
    assert summary.stat().st_mtime_ns == before
    with (out / "table.csv").open() as file:
        rows = [
            (row["method"], row["p"], row["disconnection_rate"], row["runs"])
            for row in csv.DictReader(file)
        ]
    assert rows == [
        ("km", "", "0.0", "2"), ("km", "1.0", "0.3", "2"), ("km", "0.0", "0.3", "2"),
        *(("k-fed", p, rate, "2") for p in ("1.0", "0.0") for rate in ("0.0", "0.3")),
    ]  # fmt: skip
    other = ccfcpp("compare", "--set", "data.images=50", "--out", out, "--resume")
    assert (other.code, "have data.images = 100, not 50" in other.stderr) == (2, True)
    taken = ccfcpp("compare", "--methods", "km", "--out", out)
    assert (taken.code, "holds several runs" in taken.stderr) == (2, True)
