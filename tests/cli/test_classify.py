"""`ccfcpp classify` as a user sees it: results, files, and one clear line where it does not fit."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import load_file

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import (
    flatten,
    merge,
    read_configs,
    read_yaml,
    unflatten,
)
from ccfcpp.core.presets import preset_folder
from ccfcpp.studies.grids import PlannedRun, study_spec
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from tests.support.command import ccfcpp, refused, succeeded

TINY = (
    *("--rounds", 2, "--local-epochs", 1, "--clients", 3),
    *("--set", "model.widths=[4]", "--set", "model.representation=6"),
    *("--set", "data.train_images=150", "--set", "data.test_images=60"),
)
"""Settings of a run on the digits that takes a fraction of a second."""


def _plan(
    files: list[Path],
    values: Tree | None = None,
    seeds: int = 1,
    axes: dict[str, list[object]] | None = None,
) -> list[PlannedRun[ClassifyConfig]]:
    single = merge(values or {}, unflatten(axes or {}))
    asked = study_spec(ClassifyConfig, [*read_configs(files), single], seeds)
    return asked.plan_runs(ClassifyConfig, "classify")


def complaint(*arguments: object) -> str:
    return refused("classify", *arguments)


def classify(*arguments: object) -> dict[str, Any]:
    """The JSON of a run that must succeed."""
    parsed: dict[str, Any] = json.loads(succeeded("classify", "--json", *arguments).stdout)
    return parsed


def domains(folder: Path, *names: str) -> Path:
    """A folder of domains with two classes, in two sizes of images."""
    source = np.random.default_rng(0)
    for number, name in enumerate(names):
        for label in ("cat", "dog"):
            (folder / name / label).mkdir(parents=True)
            for i in range(12):
                shade = (40 if label == "cat" else 200) + 5 * number
                pixels = source.integers(shade - 30, shade + 30, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(folder / name / label / f"{i}.png")
    return folder


# --- one run --------------------------------------------------------------------------------------


def test_help_names_every_flag_and_method() -> None:
    flags = (
        "--config --dataset --alpha --classes-per-client --partition --method --decorr --beta "
        "--model --clients --sample-fraction --rounds --local-epochs --disconnection-rate "
        "--dropout-rate --seed --seeds --device --out --resume --set --json"
    )
    shown = " ".join(ccfcpp("classify", "--help").stdout.split())
    assert [flag for flag in flags.split() if flag not in shown] == []
    assert [method for method in CLASSIFIERS if method not in shown] == []


def test_json_is_one_object_with_the_results(tmp_path: Path) -> None:
    summary = classify("--alpha", 0.05, "--out", tmp_path / "run", *TINY)
    assert (summary["method"], summary["decorrelation"]) == ("fedavg", "feddecorr")
    assert (summary["partition"], summary["alpha"]) == ("dirichlet", 0.05)
    assert (summary["training_images"], summary["test_images"]) == (150, 60)
    assert 0 <= summary["accuracy"] <= 1
    assert 1 <= summary["effective_rank"] <= 6


def test_the_files_of_a_run_agree_with_its_summary(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = succeeded("classify", "--out", run, "--disconnection-rate", 0.34, *TINY)
    assert "accuracy" in result.stdout
    summary = json.loads((run / "summary.json").read_text())
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [0, 1]
    assert rounds[-1]["scores"]["accuracy"] == summary["accuracy"]
    assert sum(line["bytes_up"] for line in rounds) == summary["bytes_up"] > 0
    assert (summary["connected"], summary["disconnected"]) == (2, 1)
    predictions = np.load(run / "predictions.npz")
    right = predictions["predicted"] == predictions["class"]
    assert right.mean() == pytest.approx(summary["accuracy"])
    assert len(set(predictions["index"].tolist())) == 60
    values = np.load(run / "spectra.npz")["singular_values"]
    assert values.shape == (1, 6)
    assert (np.diff(values[0]) <= 0).all()
    assert "model/head.weight" in load_file(run / "model.safetensors")


def test_the_same_command_gives_the_same_numbers(tmp_path: Path) -> None:
    first, second = (classify("--out", tmp_path / name, *TINY) for name in ("a", "b"))
    for summary in (first, second):
        del summary["seconds"], summary["out"]
    assert first == second


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_every_method_runs(method: str, tmp_path: Path) -> None:
    for decorr in ("none", "feddecorr"):
        arguments = ("--method", method, "--decorr", decorr, "--alpha", 0.5)
        summary = classify(*arguments, "--out", tmp_path / decorr, *TINY)
        assert (summary["method"], summary["decorrelation"]) == (method, decorr)
        assert 0 <= summary["accuracy"] <= 1


@pytest.mark.parametrize("decorr", ["decov", "structured-decov"])
def test_every_decorrelation_runs_and_changes_the_result(decorr: str, tmp_path: Path) -> None:
    groups = ("--set", "decorrelation.groups=2") if decorr == "structured-decov" else ()
    terms = ("--decorr", decorr, "--beta", 1, *groups)
    with_term = classify(*terms, "--out", tmp_path / "a", *TINY)
    without = classify("--decorr", "none", "--out", tmp_path / "b", *TINY)
    assert with_term["effective_rank"] != without["effective_rank"]


@pytest.mark.parametrize("model", ["mobilenetv2", "resnet18", "resnet20", "resnet32"])
def test_every_model_trains_on_small_images(model: str, tmp_path: Path) -> None:
    few = ("--set", "data.train_images=40", "--set", "data.test_images=10", "--clients", 2)
    arguments = ("--model", model, "--rounds", 1, "--local-epochs", 1, *few)
    assert classify("--out", tmp_path / "run", *arguments)["model"] == model


def test_partitions(tmp_path: Path) -> None:
    by_class = classify("--classes-per-client", 2, "--out", tmp_path / "a", *TINY)
    assert (by_class["partition"], by_class["classes_per_client"]) == ("classes", 2)
    at_random = classify("--partition", "iid", "--out", tmp_path / "b", *TINY)
    without_limit = classify("--alpha", "inf", "--out", tmp_path / "c", *TINY)
    assert without_limit["alpha"] == "inf"
    assert without_limit["accuracy"] == at_random["accuracy"]


def test_partial_participation(tmp_path: Path) -> None:
    arguments = ("--clients", 5, "--sample-fraction", 0.4, "--rounds", 4)
    classify(*TINY, *arguments, "--set", "partition.alpha=5", "--out", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [len(line["clients"]) for line in lines] == [2] * 4
    assert len({tuple(line["clients"]) for line in lines}) > 1


# --- domains --------------------------------------------------------------------------------------

DOMAIN_RUN = (
    *("--partition", "domain", "--rounds", 2, "--local-epochs", 1, "--model", "small"),
    *("--set", "model.widths=[4]", "--set", "model.representation=6"),
)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_each_domain_is_a_client_and_is_tested(method: str, tmp_path: Path) -> None:
    folder = domains(tmp_path / "pets", "photo", "sketch", "clipart")
    arguments = ("--dataset", folder, "--method", method, *DOMAIN_RUN)
    summary = classify(*arguments, "--out", tmp_path / "run")
    assert [p["name"] for p in summary["participants"]] == ["clipart", "photo", "sketch"]
    single = [summary[f"accuracy {name}"] for name in ("clipart", "photo", "sketch")]
    assert summary["accuracy"] == pytest.approx(sum(single) / 3)
    # A fifth of each of the six groups of twelve is held out.
    assert (summary["training_images"], summary["test_images"]) == (60, 12)


def test_personal_models_are_tested_on_all_images_where_there_are_no_domains(
    tmp_path: Path,
) -> None:
    summary = classify("--method", "fedbn", "--out", tmp_path / "run", *TINY)
    single = [summary[f"accuracy client {number}"] for number in range(3)]
    assert summary["accuracy"] == pytest.approx(sum(single) / 3)
    assert len(np.load(tmp_path / "run" / "predictions.npz")["predicted"]) == 3 * 60
    assert not any("running_mean" in k for k in load_file(tmp_path / "run" / "model.safetensors"))


def test_published_augmentations_run_on_colour_images(tmp_path: Path) -> None:
    folder = domains(tmp_path / "pets", "photo", "sketch")
    changes = ("crop_padding=2", "flip=true", "autoaugment=true", "rotation=30")
    flags = [part for change in changes for part in ("--set", f"augmentation.{change}")]
    scaled = ("--set", "data.mean=[0.5,0.5,0.5]", "--set", "data.std=[0.2,0.2,0.2]")
    plain = classify("--dataset", folder, *DOMAIN_RUN, "--out", tmp_path / "plain")
    changed = classify("--dataset", folder, *DOMAIN_RUN, *flags, *scaled, "--out", tmp_path / "b")
    assert plain["effective_rank"] != changed["effective_rank"]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--alpha", 0], "--alpha 0 is refused: it should be greater than 0"),
        (["--alpha", -1], "--alpha -1 is refused"),
        (["--alpha", 0.1, "--partition", "iid"], "--alpha and --partition each name a partition"),
        (["--classes-per-client", 11], "classes_per_client = 11 does not fit 10 classes"),
        (["--sample-fraction", 0.01], "sample_fraction = 0.01 picks none of 10 connected clients"),
        (["--sample-fraction", 0], "--sample-fraction 0 is refused"),
        (["--method", "fedbn", "--set", "model.batch_norm=false"], "has none: take another method"),
        (["--clients", 1000], "1000 clients with 10 samples at least need 10000 of the 1438"),
        (["--partition", "iid", "--clients", 2000], "clients = 2000 is more than the 1438"),
        (["--partition", "domain"], "folders can be clients only in an image folder"),
        (["--method", "fedavgg"], "--method fedavgg is refused"),
        (["--model", "alexnet"], "needs images of 63 pixels a side"),
        (["--set", "augmentation.autoaugment=true"], "autoaugment is for colour images"),
        (["--set", "data.mean=[0.1,0.2,0.3]"], "data.mean has 3 numbers"),
        (["--decorr", "structured-decov", "--set", "decorrelation.groups=7"], "does not divide"),
        (["--disconnection-rate", 1], "disconnects all 10 clients"),
        (["--set", "moon.muu=1"], "unknown key 'moon.muu': did you mean 'moon.mu'?"),
        (["--resume"], "give --out"),
        (["--device", "cuda"], "PyTorch finds no CUDA device"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert expected in complaint(*arguments)


def test_images_without_labels_cannot_be_learnt(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((30, 8, 8), np.uint8))
    assert "has no labels to learn from" in complaint("--dataset", tmp_path / "x.npz")


def test_a_domain_without_training_images_is_refused(tmp_path: Path) -> None:
    folder = domains(tmp_path / "pets", "photo", "sketch")
    for name, split in (("photo", "train"), ("sketch", "test")):
        for label in ("cat", "dog"):
            place = folder / name / split / label
            place.parent.mkdir(exist_ok=True)
            (folder / name / label).rename(place)
    line = complaint("--dataset", folder, *DOMAIN_RUN)
    assert "'sketch' would be a client without training images" in line


# --- many runs ------------------------------------------------------------------------------------


def grid_file(folder: Path) -> Path:
    path = folder / "grid.yaml"
    settings = {
        "model": {"widths": [4], "representation": 6},
        "data": {"train_images": 150, "test_images": 60},
        "training": {"rounds": 2, "local_epochs": 1},
        "partition": {"clients": 3},
        "grid": {"method": ["fedprox", "fedavg"], "decorrelation.kind": ["none", "feddecorr"]},
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def test_seeds_give_mean_and_deviation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = classify("--seeds", 3, "--seed", 5, "--out", run, *TINY)
    accuracies = [summary["accuracy"] for summary in result["runs"]]
    assert [summary["seed"] for summary in result["runs"]] == [5, 6, 7]
    (row,) = result["table"]
    assert row["accuracy"] == pytest.approx(np.mean(accuracies))
    assert row["accuracy deviation"] == pytest.approx(np.std(accuracies, ddof=1))
    single = classify("--seed", 6, "--out", tmp_path / "single", *TINY)
    assert single["accuracy"] == accuracies[1]


def test_a_grid_is_a_table_in_the_files_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = succeeded("classify", "--config", grid_file(tmp_path), "--out", run)
    with (run / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    cells = [(row["method"], row["decorrelation.kind"]) for row in rows]
    assert cells == [(m, d) for m in ("fedprox", "fedavg") for d in ("none", "feddecorr")]
    markdown = (run / "table.md").read_text().splitlines()
    assert (markdown[0], len(markdown)) == ("One seed", 8)
    for row, line in zip(rows, markdown[4:], strict=True):
        assert f"{float(row['accuracy']):.4g}" in line
        assert f"{float(row['accuracy']):.4g}" in result.stdout


def test_a_flag_fixes_an_axis_of_the_grid(tmp_path: Path) -> None:
    arguments = ("--config", grid_file(tmp_path), "--method", "fedavg", "--out", tmp_path / "run")
    table = classify(*arguments)["table"]
    assert [row["decorrelation.kind"] for row in table] == ["none", "feddecorr"]
    assert all("method" not in row for row in table)


def test_flags_with_several_values_are_a_grid(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rates = ("--alpha", "0.5,inf,.5", "--disconnection-rate", "0,0.34")
    table = classify(*rates, "--out", run, *TINY)["table"]
    cells = [(r["partition.alpha"], r["availability.disconnection_rate"]) for r in table]
    assert cells == [(0.5, 0), (0.5, 0.34), (math.inf, 0), (math.inf, 0.34)]
    clients = {
        json.loads(path.read_text())["connected"] for path in run.glob("*=0.34/*/summary.json")
    }
    assert clients == {2}
    more = classify("--alpha", 0.1, "--resume", "--out", run)["table"]
    assert [row["partition.alpha"] for row in more] == [0.5, 0.5, math.inf, math.inf, 0.1, 0.1]
    assert "have --beta" in complaint("--beta", 9, "--resume", "--out", run)
    assert "--beta 0.1, holds an empty value" in complaint("--beta", "0.1,")


def test_a_method_has_one_cell_for_all_values_of_what_it_does_not_heed(tmp_path: Path) -> None:
    several = ("--method", "fedavg,fedprox", "--set", "fedprox.mu=0.1,1", "--out", tmp_path / "run")
    table = classify(*several, *TINY, "--rounds", 1)["table"]
    cells = [(row["method"], row.get("fedprox.mu")) for row in table]
    assert cells == [("fedavg", None), ("fedprox", 0.1), ("fedprox", 1)]
    assert "seed is no axis" in complaint("--seed", "1,2", "--seeds", 2)


def test_a_later_file_lies_over_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("grid: {seed: [3, 4]}\ndecorrelation: {beta: 0.3}\n")
    plan = _plan([Path("feddecorr/table7"), Path("classify/cifar100"), path])
    assert [planned.config.seed for planned in plan] == [3, 4]
    assert {planned.config.decorrelation.beta for planned in plan} == {0.3}
    assert {planned.config.dataset for planned in plan} == {"cifar100"}


def test_a_grid_must_be_made_of_lists(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("grid: {method: fedavg}")
    assert "grid must hold lists" in complaint("--config", tmp_path / "grid.yaml")


def stopped(folder: Path, *arguments: object) -> tuple[int, str]:
    """Start a study as a user does, and stop it after its first run: exit code and messages."""
    command = [sys.executable, "-m", "ccfcpp", "classify", "--out", folder, *arguments]
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not list(folder.rglob("summary.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def test_a_part_of_a_table_has_the_settings_of_its_cells() -> None:
    values = {"dataset": "cifar100", "partition": {"alpha": "0.05", "clients": "50"}}
    plan = _plan([Path("feddecorr/table4")], values)
    assert [planned.config.decorrelation.kind for planned in plan] == ["none", "feddecorr"]
    assert {planned.config.availability.sample_fraction for planned in plan} == {0.2}
    lists: dict[str, list[object]] = {
        "partition.alpha": [0.05], "method": ["moon"], "dataset": ["cifar10"],
    }  # fmt: skip
    plan = _plan([Path("feddecorr/table1")], axes=lists)
    assert [planned.config.decorrelation.kind for planned in plan] == ["none", "feddecorr"]
    plan = _plan([Path("feddecorr/table1")], {"decorrelation": {"kind": "none"}})
    assert {planned.config.method for planned in plan} >= {"scaffold", "fedavg"}


def test_nothing_is_written_before_every_cell_was_checked(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    grid = {"partition.kind": ["classes"], "partition.classes_per_client": [2, 11]}
    path.write_text(yaml.safe_dump({"grid": grid}))
    line = complaint("--config", path, "--out", tmp_path / "run", *TINY)
    assert "classes_per_client = 11 does not fit" in line
    assert not (tmp_path / "run").exists()
    run = ("--seeds", 2, "--out", tmp_path / "run")
    assert "unknown data set 'nope'" in complaint("--dataset", "nope", *run)
    assert "'tf32' is refused" in complaint(
        "--set", "compute.precision=tf32", "--device", "cpu", *run
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_of_several_runs_is_not_written_over(tmp_path: Path) -> None:
    classify("--seeds", 2, "--out", tmp_path / "run", *TINY)
    for arguments in ((), ("--seeds", 2)):
        line = complaint("--out", tmp_path / "run", *arguments)
        assert "holds several runs: add --resume" in line


def test_a_study_is_stopped_by_a_signal_in_the_last_round_of_a_run(tmp_path: Path) -> None:
    code, stderr = stopped(tmp_path / "run", "--seeds", 50, *TINY, "--rounds", 1)
    assert code == 130, stderr
    assert "--resume" in stderr
    assert len(list(tmp_path.rglob("summary.json"))) < 50
    # What is done has its table already.
    assert (tmp_path / "run" / "table.csv").exists()


def test_a_diverged_model_ends_with_a_summary(tmp_path: Path) -> None:
    arguments = ("--method", "fedadam", "--set", "adaptive.learning_rate=1e38")
    result = succeeded("classify", *arguments, "--out", tmp_path / "run", *TINY)
    assert "diverged" in result.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["effective_rank"] is None


def test_a_run_that_fails_does_not_stop_a_study(tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = ("--set", "training.weight_decay=1e38,0.01", "--set", "training.batch_size=8")
    for more in ((*steps, *TINY), ("--resume",)):
        result = ccfcpp("classify", *more, "--out", run)
        assert result.code == 1
        assert "training.weight_decay=1e+38/seed-0: all updates were refused" in result.stderr
        assert "runs failed" in result.stderr
        assert "| 0.01 | 1 |" in (run / "table.md").read_text()


def test_a_study_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    file, run = grid_file(tmp_path), tmp_path / "run"
    whole = classify("--config", file, "--out", tmp_path / "whole")
    code, stderr = stopped(run, "--config", file)
    if code != 0:  # Else it was done before the signal came.
        assert code == 130, stderr
        assert "--resume" in stderr
    finished = {path: path.stat().st_mtime_ns for path in run.rglob("summary.json")}
    resumed = classify("--out", run, "--resume")
    for result in (whole, resumed):
        for summary in result["runs"]:
            del summary["seconds"], summary["out"]
        for row in result["table"]:
            del row["seconds"], row["seconds deviation"]
    assert resumed["runs"] == whole["runs"]
    assert resumed["table"] == whole["table"]
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    assert "have --seed 0, not 3" in complaint("--out", run, "--resume", "--seed", 3)


def test_a_single_run_can_be_resumed_by_its_folder(tmp_path: Path) -> None:
    again = ("--out", tmp_path / "run", "--resume")
    first = classify("--out", tmp_path / "run", "--method", "moon", *TINY)
    assert classify(*again)["accuracy"] == first["accuracy"]
    assert "holds a single run" in complaint(*again, "--seeds", 2)
    assert "there is no run" in complaint("--out", tmp_path, "--resume", "--seeds", 2)
    assert "was started with --beta 0.1: leave it out" in complaint(*again, "--beta", 7)


# --- presets --------------------------------------------------------------------------------------

TABLES = {
    "table1": 120, "table2": 90, "table3": 10, "iclr-table3": 30, "iclr-table10": 4, "table4": 40,
    "table5": 32, "table6": 12, "table7": 12, "table8": 12, "figure9": 24, "digits-methods": 28,
    "cifar10-two-cores": 4,
}  # fmt: skip
"""Runs of each preset with one seed."""


def test_there_is_a_preset_for_each_table() -> None:
    assert {path.stem for path in (preset_folder() / "feddecorr").glob("*.yaml")} == set(TABLES)


@pytest.mark.parametrize(("name", "runs"), TABLES.items())
def test_every_table_can_be_planned(name: str, runs: int) -> None:
    plan = _plan([Path("feddecorr") / name], seeds=2)
    assert len(plan) == 2 * runs
    assert len({planned.folder for planned in plan}) == 2 * runs


def test_table_1_has_the_published_settings() -> None:
    plan = _plan([Path("feddecorr/table1")])
    by_data = {planned.config.dataset: planned.config for planned in plan}
    assert [by_data[d].training.rounds for d in ("cifar10", "cifar100", "tiny-imagenet")] == [
        100, 100, 50,
    ]  # fmt: skip
    for config in by_data.values():
        assert config.model.name == "mobilenetv2"
        assert (config.training.local_epochs, config.training.batch_size) == (10, 64)
        assert (config.training.learning_rate, config.training.momentum) == (0.01, 0.9)
    decays = [by_data[d].training.weight_decay for d in ("cifar10", "cifar100", "tiny-imagenet")]
    assert decays == [1e-5, 1e-4, 1e-4]


def test_the_preset_for_cifar10_explains_every_key() -> None:
    every_key = ClassifyConfig.known_fields({}).keys() - {"privacy.clips"}  # empty by default
    assert {
        k for k, _ in flatten(read_yaml(preset_folder() / "classify/cifar10.yaml"))
    } == every_key
