"""Runs that are killed, interrupted or stopped go on as if nothing had happened."""

import json
import os
import secrets
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.cli.terminal import graceful_interruption
from tests.support.command import TINY, TINY_SCAN, ccfcpp, set_options, succeeded
from tests.support.forks import Fork

ROUNDS = 10
_SOMETIMES_ABSENT = ("--dropout-rate", "0.2")
_FEW = set_options("data.images=300")
_SCAN = (*TINY_SCAN, *_FEW, *set_options(f"scan.steps={3 * ROUNDS}"), *_SOMETIMES_ABSENT)
SETTINGS = {
    "ccfc++": (*TINY, *_FEW, "--rounds", "7", "--pretrain-rounds", "3", *_SOMETIMES_ABSENT),
    "fed-scan": _SCAN,
    "fed-scan, lagged": (*_SCAN, *set_options("scan.lagged=true")),
}
EITHER = pytest.mark.parametrize("system", ["ccfc++", "fed-scan"])
PATIENCE = 120.0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Whole runs by system."""

    @cache
    def whole(system: str) -> Path:
        run = tmp_path_factory.mktemp("whole") / "run"
        succeeded("cluster", "--out", run, *SETTINGS[system])
        assert rounds_logged(run) == ROUNDS
        return run

    return whole


KILLED_IN_A_STEP = """
import os, signal
from ccfcpp.engine.transport import InProcess
deliver = InProcess.deliver
def deliver_or_die(self, task, *rest):
    for reply in deliver(self, task, *rest):
        if (task.round, task.index) == ({round}, {index}):
            os.kill(os.getpid(), signal.SIGKILL)
        yield reply
InProcess.deliver = deliver_or_die
from ccfcpp.cli.app import main
main()
"""
KILLED_WHILE_WRITING = """
import itertools, os, signal
calls = itertools.count(1)
def fsync(file):
    if {name!r} in os.readlink(f"/proc/self/fd/{{file}}") and next(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
from ccfcpp.cli.app import main
main()
"""


def start(run: Path, *arguments: str, program: tuple[str, ...] = ("-m", "ccfcpp")) -> Fork:
    """A process of its own, as a user starts it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return Fork([*program, "cluster", "--out", str(run), *arguments], environment)


def resume(run: Path) -> None:
    succeeded("cluster", "--out", run, "--resume")


def rounds_logged(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_for_round(process: Fork, run: Path, number: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while rounds_logged(run) < number and process.poll() is None:
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.005)


def assert_same_results(run: Path, whole: Path) -> None:
    first, second = (json.loads((r / "summary.json").read_text()) for r in (run, whole))
    for summary in (first, second):
        del summary["seconds"], summary["out"]
    assert first == second
    weights, expected = (load_file(r / "model.safetensors") for r in (run, whole))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    lines, all_lines = (
        [json.loads(line) | {"seconds": 0} for line in (r / "metrics.jsonl").open()]
        for r in (run, whole)
    )
    assert lines == all_lines


@EITHER
def test_a_run_killed_at_a_random_moment_and_resumed_ends_the_same(
    tmp_path: Path, uninterrupted: Callable[[str], Path], system: str
) -> None:
    run = tmp_path / "run"
    number, delay = secrets.randbelow(ROUNDS - 2) + 1, secrets.randbelow(300) / 1000
    print(f"killed {delay} s after round {number}")  # shown where the test fails
    process = start(run, *SETTINGS[system])
    wait_for_round(process, run, number)
    time.sleep(delay)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    resume(run)
    assert_same_results(run, uninterrupted(system))


@pytest.mark.parametrize(
    ("system", "round_", "index"),
    [
        ("fed-scan", 0, 6),
        ("fed-scan", 7, 5),
        ("fed-scan", ROUNDS - 1, 12),
        ("fed-scan, lagged", 7, 3),
    ],
    ids=[
        "before the first checkpoint",
        "between the trips of a step",
        "when only the centres are left",
        "where a step has sums of the one before",
    ],
)
def test_a_run_killed_in_the_middle_of_a_round_and_resumed_ends_the_same(
    tmp_path: Path, uninterrupted: Callable[[str], Path], system: str, round_: int, index: int
) -> None:
    """While a step is under way: clients hold a graph, and some of its sums are at the server."""
    run = tmp_path / "run"
    script = KILLED_IN_A_STEP.format(round=round_, index=index)
    process = start(run, *SETTINGS[system], program=("-c", script))
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert rounds_logged(run) == round_
    assert (run / "checkpoint" / "latest.safetensors").exists() == (round_ > 0)
    resume(run)
    assert_same_results(run, uninterrupted(system))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to tell files apart")
@pytest.mark.parametrize(
    ("system", "name", "call"),
    [
        ("ccfc++", "latest", 1),
        ("ccfc++", "latest", 2),
        ("ccfc++", "client-2", 2),
        ("ccfc++", ".assignments", 1),
        ("fed-scan", "latest", 2),
        ("fed-scan", "client-2", 2),
    ],
    ids=[
        "in the first checkpoint",
        "in a later one",
        "in a client's memory",
        "between results",
        "in a later one of fed-scan",
        "in a client's neighbours",
    ],
)
def test_a_run_killed_while_it_writes_and_resumed_ends_the_same(
    tmp_path: Path, uninterrupted: Callable[[str], Path], system: str, name: str, call: int
) -> None:
    run = tmp_path / "run"
    script = KILLED_WHILE_WRITING.format(name=name, call=call)
    process = start(run, *SETTINGS[system], program=("-c", script))
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert not (run / "summary.json").exists()
    resume(run)
    assert_same_results(run, uninterrupted(system))
    assert not list(run.rglob("*.tmp"))


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, uninterrupted: Callable[[str], Path]
) -> None:
    run = tmp_path / "run"
    process = start(run, *SETTINGS["ccfc++"])
    deadline = time.monotonic() + PATIENCE
    while not (run / "config.yaml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.communicate()
    resume(run)
    assert_same_results(run, uninterrupted("ccfc++"))


@EITHER
def test_an_interrupted_run_says_how_to_resume(
    tmp_path: Path, uninterrupted: Callable[[str], Path], system: str
) -> None:
    run = tmp_path / "run"
    process = start(run, *SETTINGS[system])
    wait_for_round(process, run, 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert "stopping after this round" in stderr
    assert f"ccfcpp cluster --out {run} --resume" in stderr
    assert "Traceback" not in stderr
    assert (run / "checkpoint" / "latest.safetensors").exists()
    again = start(run, "--resume")
    assert again.wait(PATIENCE) == 0, again.communicate()
    assert_same_results(run, uninterrupted(system))


@EITHER
def test_a_finished_run_resumed_says_its_results_again(
    uninterrupted: Callable[[str], Path], system: str
) -> None:
    run = uninterrupted(system)
    before = (run / "summary.json").read_text()
    result = ccfcpp("cluster", "--out", run, "--resume", "--json")
    assert json.loads(result.stdout) == json.loads(before)
    assert (run / "summary.json").read_text() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number: signal.Signals) -> None:
    announced = []
    before = signal.getsignal(number)
    with graceful_interruption(lambda: announced.append(number)) as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
        assert announced == [number]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
