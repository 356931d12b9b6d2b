"""MLflow's runs hold the numbers of ``metrics.jsonl`` and the settings.

Where MLflow is not installed, a stand-in with the same calls takes its place.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml

from ccfcpp.core.config_layers import flatten
from ccfcpp.runs.tracking import MlflowLog, scalars
from tests.support.command import ccfcpp, succeeded

KM = ("cluster", "--method", "ffcm-avg", "--set", "data.images=60", "--set", "ffcm.rounds=3")
IS_THERE = importlib.util.find_spec("mlflow") is not None


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class StandIn:
    """The calls of MLflow's client that are used, and what they keep."""

    experiments: dict[str, str]
    runs: dict[str, SimpleNamespace]

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        assert experiment_id in self.experiments.values()
        name = f"run{len(self.runs)}"
        self.runs[name] = SimpleNamespace(name=run_name, status="RUNNING", params={}, metrics=[])
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id].status = "FINISHED"

    def log_batch(
        self, run_id: str, metrics: tuple[Metric, ...] = (), params: tuple[Param, ...] = ()
    ) -> None:
        assert len(params) <= 100
        run = self.runs[run_id]
        assert run.status == "RUNNING"
        run.metrics += metrics
        for key, value in params:
            assert run.params.setdefault(key, value) == value


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of its own for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    if not IS_THERE:
        StandIn.experiments, StandIn.runs = {}, {}
        library, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        library.MlflowClient, library.entities = StandIn, entities  # type: ignore[attr-defined]
        entities.Metric, entities.Param = Metric, Param  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mlflow", library)
        monkeypatch.setitem(sys.modules, "mlflow.entities", entities)


def kept(run: Path) -> tuple[str, Mapping[str, str], dict[int, dict[str, float]]]:
    """The status, the settings, and the numbers of each round that MLflow shows of a run."""
    name = json.loads((run / "mlflow.json").read_text())["run_id"]
    rounds: dict[int, dict[str, float]] = {}
    if not IS_THERE:
        found = StandIn.runs[name]
        for metric in found.metrics:
            rounds.setdefault(metric.step, {})[metric.key] = metric.value
        return found.status, found.params, rounds
    import mlflow

    client: Any = mlflow.MlflowClient()
    data = client.get_run(name)
    for key in data.data.metrics:
        for metric in client.get_metric_history(name, key):
            rounds.setdefault(metric.step, {})[key] = metric.value
    return data.info.status, data.data.params, rounds


def assert_shows_the_log(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    status, params, rounds = kept(run)
    assert status == "FINISHED"
    assert rounds == {line["round"]: pytest.approx(scalars(line)) for line in lines}
    settings = dict(flatten(yaml.safe_load((run / "config.yaml").read_text())))
    assert params == {key: str(own) for key, own in settings.items() if own is not None}


def test_a_run_has_its_settings_and_its_rounds(tmp_path: Path) -> None:
    succeeded(*KM, "--track", "mlflow", "--out", "run")
    assert_shows_the_log(tmp_path / "run")


def test_each_run_of_a_study_is_one(tmp_path: Path) -> None:
    found = ccfcpp(
        "classify", "--seeds", 2, "--rounds", 1, "--local-epochs", 1, "--clients", 2,
        "--set", "data.train_images=60", "--set", "data.test_images=30", "--out", "study",
        "--track", "mlflow",
    )  # fmt: skip
    assert found.code == 0, found.stderr
    for seed in (0, 1):
        assert_shows_the_log(tmp_path / "study" / f"seed-{seed}")


def line(number: int) -> dict[str, Any]:
    counts = {"clients": [0], "refused": {}, "bytes_down": 3, "bytes_up": 4, "seconds": 0.5}
    figures = {"loss": float(number), "spread": float("nan")}
    return {"round": number, "figures": figures, "scores": {"accuracy a b": 0.5}} | counts


def test_a_later_session_goes_on_with_the_run(tmp_path: Path) -> None:
    for numbers in ((0, 1), (1, 2), ()):
        log = MlflowLog(tmp_path, {"seed": 3, "none": None})
        for number in numbers:
            log.log_round(line(number))
        log.close()
    status, params, rounds = kept(tmp_path)
    assert (status, params) == ("FINISHED", {"seed": "3"})
    assert {number: row["figures/loss"] for number, row in rounds.items()} == {0: 0, 1: 1, 2: 2}
    # What is not finite is left out, and names hold no blanks.
    assert all("figures/spread" not in row for row in rounds.values())
    assert rounds[2]["scores/accuracy_a_b"] == 0.5


def test_a_session_without_rounds_leaves_nothing(tmp_path: Path) -> None:
    MlflowLog(tmp_path, {}).close()
    assert not list(tmp_path.iterdir())


def test_without_the_package_a_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    result = ccfcpp(*KM, "--track", "mlflow", "--out", "run")
    assert result.code == 2
    assert "logging for MLflow needs the package mlflow: pip install '.[mlflow]'" in (result.stderr)
    assert not Path("run").exists()
    other = ccfcpp(*KM, "--track", "wandb", "--out", "run")
    assert (other.code, "--track wandb is refused" in other.stderr) == (2, True)
