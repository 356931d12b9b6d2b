"""TensorBoard's event files hold the numbers of ``metrics.jsonl``, and change nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config_layers import merge, resolve
from ccfcpp.core.errors import StoppedError
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.tracking import TensorBoardLog, scalars
from tests.support.command import TINY, TINY_TREE, ccfcpp

SHORT = (*TINY, "--dropout-rate", "0.3")
CLASSIFY = (
    *("--rounds", 2, "--local-epochs", 1, "--clients", 3),
    *("--set", "model.widths=[4]", "--set", "model.representation=6"),
    *("--set", "data.train_images=150", "--set", "data.test_images=60"),
)


def read_events(run: Path) -> dict[int, dict[str, float]]:
    """What TensorBoard shows, by round and tag; fails where it shows a round twice."""
    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    rounds: dict[int, dict[str, float]] = {}
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            assert tag not in rounds.setdefault(event.step, {}), (tag, event.step)
            rounds[event.step][tag] = event.value
    return rounds


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_shows_the_log(run: Path) -> None:
    expected = {line["round"]: scalars(line) for line in logged(run)}
    shown = read_events(run)
    assert shown.keys() == expected.keys()
    for number, values in expected.items():
        assert shown[number] == pytest.approx(values, rel=1e-6)


def line(number: int, value: float) -> dict[str, Any]:
    counts = {"clients": [0, 2], "refused": {}, "bytes_down": 3, "bytes_up": 4, "seconds": 0.5}
    return {"round": number, "figures": {"loss": value}, "scores": {}} | counts


def log_session(run: Path, *lines: dict[str, Any]) -> None:
    log = TensorBoardLog(run, {})
    for one in lines:
        log.log_round(one)
    log.close()


# --- the log -------------------------------------------------------------------------------------


def test_every_number_of_a_round_has_a_tag() -> None:
    refused = {"1": ["training: NaN", "centroids: NaN"], "2": ["training: NaN"]}
    assert scalars(line(7, 0.25) | {"scores": {"nmi": 0.5}, "refused": refused}) == {
        "figures/loss": 0.25,
        "scores/nmi": 0.5,
        "bytes/down": 3,
        "bytes/up": 4,
        "round/clients": 2,
        "round/refused_updates": 3,
        "round/seconds": 0.5,
    }


def test_a_round_can_be_read_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    """So that a run that is killed has lost none, and a live view is not behind."""
    log = TensorBoardLog(tmp_path, {})
    for number in range(3):
        log.log_round(line(number, 0.5))
        assert read_events(tmp_path)[number]["figures/loss"] == 0.5
    log.close()


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_rounds_that_are_run_again_are_shown_once(tmp_path: Path, first: int) -> None:
    log_session(tmp_path, *(line(number, 1) for number in range(4)))
    log_session(tmp_path, *(line(number, 2) for number in range(first, 5)))
    losses = [values["figures/loss"] for _, values in sorted(read_events(tmp_path).items())]
    assert losses == [1] * first + [2] * (5 - first)


def test_a_session_without_rounds_leaves_no_file(tmp_path: Path) -> None:
    log_session(tmp_path)
    assert not (tmp_path / "tensorboard").exists()


# --- runs ----------------------------------------------------------------------------------------


def test_the_rest_of_a_run_does_not_depend_on_it(tmp_path: Path) -> None:
    def run(name: str, *flags: str) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
        result = ccfcpp("cluster", "--json", "--out", tmp_path / name, *SHORT, *flags)
        assert result.code == 0, result.stderr
        lines = [one | {"seconds": 0} for one in logged(tmp_path / name)]
        return tmp_path / name, json.loads(result.stdout) | {"seconds": 0, "out": ""}, lines

    plain, summary, lines = run("plain")
    shown, same_summary, same_lines = run("shown", "--track", "tensorboard")
    assert (same_summary, same_lines) == (summary, lines)
    for file in ("model.safetensors", "assignments.npz"):
        assert (shown / file).read_bytes() == (plain / file).read_bytes()
    assert not (plain / "tensorboard").exists()
    assert_shows_the_log(shown)


def test_each_run_of_a_study_has_its_own(tmp_path: Path) -> None:
    command = ("--out", tmp_path / "study", "--seeds", 2, "--track", "tensorboard")
    result = ccfcpp("classify", *command, *CLASSIFY)
    assert result.code == 0, result.stderr
    for seed in (0, 1):
        run = tmp_path / "study" / f"seed-{seed}"
        assert {"figures/loss", "scores/accuracy"} <= read_events(run)[1].keys()
        assert_shows_the_log(run)


def test_a_setting_serves_where_there_is_no_flag(tmp_path: Path) -> None:
    out = tmp_path / "study"
    result = ccfcpp(
        "compare", "--methods", "km", "--set", "track=tensorboard", "--out", out,
        "--set", "data.images=60",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    (run,) = (folder.parent for folder in out.rglob("tensorboard"))
    assert_shows_the_log(run)


@pytest.mark.parametrize("error", [StoppedError, RuntimeError])
def test_an_interrupted_run_goes_on_in_the_same_picture(
    tmp_path: Path, error: type[Exception]
) -> None:
    """Stopped after a checkpoint, or ended between a round's line and its checkpoint."""
    tree = merge(TINY_TREE, {"training": {"pretrain_rounds": 3}, "track": "tensorboard"})
    config = resolve(ClusterConfig, "cluster", {}, tree)
    folder = RunFolder.create(tmp_path / "run", config)

    def observe(report: Any, scores: object) -> None:
        if error is RuntimeError and report.round == 2:
            raise error

    with pytest.raises(error):
        clustering_run(config).run(folder, observe, lambda: len(logged(folder.path)) == 3)
    assert_shows_the_log(folder.path)
    assert len(logged(folder.path)) == 3
    result = ccfcpp("cluster", "--out", folder.path, "--resume")
    assert result.code == 0, result.stderr
    assert [one["round"] for one in logged(folder.path)] == [0, 1, 2, 3, 4]
    assert_shows_the_log(folder.path)


def test_it_can_be_switched_on_when_a_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert ccfcpp("cluster", "--out", run, *SHORT).code == 0
    for leftover in (run / "checkpoint").iterdir():
        leftover.unlink()
    result = ccfcpp("cluster", "--out", run, "--resume", "--track", "tensorboard")
    assert result.code == 0, result.stderr
    assert_shows_the_log(run)


def test_a_finished_run_resumed_stays_as_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert ccfcpp("cluster", "--out", run, *SHORT, "--track", "tensorboard").code == 0
    before = sorted(run.rglob("*"))
    assert ccfcpp("cluster", "--out", run, "--resume").code == 0
    assert sorted(run.rglob("*")) == before


# --- the extra -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("cluster", "--track", "tensorboard"),
        ("classify", "--track", "tensorboard"),
        ("classify", "--track", "tensorboard", "--seeds", "2"),
        ("compare", "--set", "track=tensorboard"),
    ],
    ids=["cluster", "classify", "classify with seeds", "compare"],
)
def test_without_the_package_a_run_says_so_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = ccfcpp(*command, "--out", tmp_path / "run")
    assert result.code == 2
    assert result.stderr == (
        "error: logging for TensorBoard needs the package tensorboard: pip install "
        "'.[tensorboard]', or leave it out\n"
    )
    assert not (tmp_path / "run").exists()


def test_nothing_of_it_is_imported_unless_wanted() -> None:
    program = (
        "import sys, ccfcpp.cli.app, supervised.classification\n"
        "print([n for n in sys.modules if 'tensorboard' in n and not n.startswith('ccfcpp.')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "[]\n", shown.stderr
