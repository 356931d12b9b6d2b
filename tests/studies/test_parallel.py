"""Runs of a study in processes of their own."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, resolve
from ccfcpp.core.errors import FederationError, StoppedError
from ccfcpp.studies.grids import PlannedRun
from ccfcpp.studies.parallel import run_in_processes
from ccfcpp.studies.study import Study
from tests.support.forks import Fork
from tests.support.studies import planned_study

START = multiprocessing.get_context
SMALL: Tree = {
    "device": "cpu",
    "data": {"images": 60},
    "partition": {"clients": 3},
    "ffcm": {"rounds": 3},
}


def endless(rounds: int) -> Tree:
    """Quick rounds that do not converge: where clients come and go, standing still says nothing."""
    availability = {"dropout_rate": 0.2}
    return {"method": "ffcm-avg", "ffcm": {"rounds": rounds}, "availability": availability}


def study_of(path: Path, *settings: Tree) -> Study[ClusterConfig]:
    runs = []
    for number, tree in enumerate(settings):
        config = resolve(ClusterConfig, "cluster", merge(SMALL, tree))
        runs.append(PlannedRun({"run": number}, config))
    return planned_study(path, runs)


def run(study: Study[ClusterConfig], jobs: int = 2, should_stop: Sequence[bool] = ()) -> int:
    """Run it; how often somebody looked."""
    answers, looks = iter(should_stop), 0

    def look() -> None:
        nonlocal looks
        looks += 1

    run_in_processes(study, jobs, look, lambda: next(answers, False))
    return looks


def scores(study: Study[ClusterConfig]) -> list[tuple[Any, Any]]:
    return [(row["nmi"], row["bytes_up"]) for _, row in study.results()]


def test_runs_in_processes_are_those_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", START)  # They start as users' do.
    settings: list[Tree] = [{"method": "k-fed"}, {"method": "ffcm-avg"}, {"method": "km"}]
    together = study_of(tmp_path / "together", *settings)
    assert run(together) >= 2
    alone = study_of(tmp_path / "alone", *settings)
    alone.run(lambda title, run, folder: run.run(folder))
    assert scores(together) == scores(alone)
    # What is finished is not run again, and no process is started for it.
    before = [folder.stat().st_mtime_ns for folder in sorted(together.path.rglob("summary.json"))]
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: pytest.fail("a process"))
    assert run(together) == 1
    after = [folder.stat().st_mtime_ns for folder in sorted(together.path.rglob("summary.json"))]
    assert len(before) == 3
    assert after == before


def test_runs_that_fail_are_named_when_all_others_are_done(tmp_path: Path) -> None:
    """One of them for what it was asked for, one for what became of its training."""
    study = study_of(
        tmp_path / "study",
        {"method": "k-fed", "kfed": {"local_clusters": 11}},
        {"method": "sda-fc-km", "gan": {"epochs": 1, "generator_rate": 1e38}},
        {"method": "km"},
    )
    with pytest.raises(FederationError, match=r"^2 of 3 runs failed: ") as raised:
        run(study)
    assert "run=0/seed-0: kfed.local_clusters = 11 is more than" in str(raised.value)
    assert "run=1/seed-0: all updates were refused in round 1" in str(raised.value)
    assert [axes for axes, _ in study.results()] == [{"run": 2}]


def test_a_study_that_is_asked_to_stop_begins_no_other_run_and_goes_on_later(
    tmp_path: Path,
) -> None:
    long = endless(20_000)
    quick: list[Tree] = [{"method": "k-fed"}, {"method": "k-fed", "seed": 1}]
    study = study_of(tmp_path / "study", long, *quick)
    log = study.folder(study.runs[0]).metrics
    began = time.monotonic()

    def should_stop() -> bool:
        assert time.monotonic() < began + 120
        return log.exists() and log.read_text().count("\n") >= 2

    with pytest.raises(StoppedError):
        run_in_processes(study, 1, lambda: None, should_stop)
    assert study.results() == []
    rounds = log.read_text().count("\n")
    assert 2 <= rounds < 20_000
    assert multiprocessing.active_children() == []
    # What was begun goes on where it was, once it is asked for alone.
    experiment, folder = study.open_run(study.runs[0])
    later: list[int] = []

    with pytest.raises(StoppedError):
        experiment.run(folder, lambda report, _: later.append(report.round), lambda: True)
    assert later == [rounds]


PROGRAM = """
import os, sys
from pathlib import Path
os.setpgid(0, 0)
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.studies.parallel import run_in_processes
from ccfcpp.studies.study import Study
study = Study.reopen(Path(sys.argv[1]), ClusterConfig, {})
run_in_processes(study, 1, lambda: None, lambda: False)
"""


GRACEFUL = PROGRAM.replace(
    "run_in_processes(",
    """from ccfcpp.cli.terminal import graceful_interruption
with graceful_interruption(lambda: None) as should_stop:
    run_in_processes(""",
).replace("lambda: False", "should_stop")


def started(program: str, study: Study[ClusterConfig]) -> Fork:
    """Start a program in a group of its own; wait until its first run has done two rounds."""
    process = Fork(["-c", program, str(study.path)], os.environ)
    log = study.folder(study.runs[0]).metrics
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_ends_runs_after_their_rounds(
    tmp_path: Path, number: signal.Signals
) -> None:
    study = study_of(tmp_path / "study", endless(100_000), endless(100_000) | {"seed": 1})
    folder = study.folder(study.runs[0])
    process = started(GRACEFUL, study)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=120)
    assert stderr.splitlines()[-1] == "ccfcpp.core.errors.StoppedError"
    assert folder.checkpoint.exists()


def test_runs_that_died_are_one_short_line(tmp_path: Path) -> None:
    """The system kills one process, and with it goes the pool."""
    study = study_of(tmp_path / "study", *({"method": "km", "seed": s} for s in range(9)))
    with pytest.raises(FederationError) as raised:
        run_in_processes(study, 1, kill_one, lambda: False)
    said = str(raised.value)
    assert said.startswith("9 of 9 runs failed: run=0/seed-0, ")
    assert " and 4 more: its process, or another's, died" in said
    assert said.count("died") == 1


def kill_one() -> None:
    for process in multiprocessing.active_children()[:1]:
        process.kill()


def test_runs_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Else they would write into folders that a resumed study has taken up."""
    study = study_of(tmp_path / "study", endless(100_000))
    log = study.folder(study.runs[0]).metrics
    process = started(PROGRAM, study)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    time.sleep(1)
    rounds = log.read_text()
    time.sleep(1)
    assert log.read_text() == rounds
    assert json.loads(rounds.splitlines()[0])["round"] == 0
