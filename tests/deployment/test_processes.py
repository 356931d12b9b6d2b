"""Real processes on this machine, with TLS and keys: crashes, late answers, wrong updates.

Each takes a minute or more, and is asked for with ``CCFCPP_PROCESSES=1``. Whatever goes wrong, the
state at the end is that of one process, with the same clients in each round.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import assigned, ccfcpp, succeeded

pytest.importorskip("flwr")

from tests.support.processes import Place, assert_same, in_one_process, place, tensors_of

pytestmark = pytest.mark.skipif(
    "CCFCPP_PROCESSES" not in os.environ, reason="real processes: set CCFCPP_PROCESSES=1"
)

SHARED = assigned("dataset=digits", "device=cpu", "seed=3")
ALONE = "compute.cohort=1"
"""As over a network, where each client is by itself."""
SCAFFOLD = (
    *("--task", "classify", *SHARED),
    *assigned(ALONE, "method=scaffold", "training.local_epochs=1"),
)
"""Its clients remember control variates."""


def rounds(number: int) -> tuple[str, ...]:
    return assigned(f"training.rounds={number}")


def reasons(here: Place, kind: str, number: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = here.rounds()[number].get(kind, {})
    return found


def assert_as_in_one_process(here: Place) -> None:
    assert_same(tensors_of(here.out), in_one_process(here))


# --- crashes -------------------------------------------------------------------------------------


def test_a_gate_that_is_killed_comes_back_and_nobody_is_missed(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b") as here:
        here.serve(*SCAFFOLD, *rounds(4), "--limit", 200)
        here.join("a")
        here.join("b", fault="late")
        here.wait_for("round 1, training", "b")
        assert here.kill_gate()
        summary = here.end()
        assert [found["clients"] for found in here.rounds()] == [[0, 1]] * 4
        assert summary["refused_updates"] == 0
        assert_as_in_one_process(here)


def test_a_client_that_is_killed_comes_back_with_its_memory(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b") as here:
        here.serve(*SCAFFOLD, *rounds(20), "--limit", 200)
        here.join("a", fault="slow")
        killed = here.join("b")
        here.wait_for("round 2, training", "b")
        killed.kill()
        here.wait_for("b is away")
        here.join("b")
        here.end()
        assert here.rounds()[-1]["clients"] == [0, 1]
        assert any(reasons(here, "absent", number) for number in range(20))
        assert_as_in_one_process(here)


def test_a_server_that_is_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b", "c") as here:
        words = "--limit", 200, "--task", "classify"
        server = here.serve(*SCAFFOLD, *rounds(4), *words)
        for name in ("a", "b", "c"):
            here.join(name)
        here.wait_for_round(2)
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        here.serve("--resume", *words)
        summary = here.end()
        assert [found["clients"] for found in here.rounds()] == [[0, 1, 2]] * 4
        assert summary["refused_updates"] == 0
        assert_as_in_one_process(here)


def test_a_server_that_is_told_to_stop_goes_on_later(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b") as here:
        words = "--limit", 200, "--task", "classify"
        server = here.serve(*SCAFFOLD, *rounds(30), *words)
        assert "a not there yet" in table(succeeded("status", here.out).stdout)
        here.join("a", fault="slow")
        here.join("b")
        here.wait_for("training round 2 of 30", "b")
        assert "b 32 at work now" in table(succeeded("status", here.out).stdout)
        assert "it stops after this round" in succeeded("stop", here.out).stdout
        assert server.wait(60) == 130
        done = len(here.rounds())
        assert 1 < done < 30
        assert ccfcpp("status", here.out).code == 2
        here.wait_for("the server has ended its run", "b")
        server = here.serve("--resume", *words)
        here.wait_for("reconnected to", "b")
        here.wait_for_round(done + 1)
        assert "it stops at once" in succeeded("stop", here.out, "--now").stdout
        assert server.wait(60) == 130
        here.serve("--resume", *words)
        here.end()
        assert [found["clients"] for found in here.rounds()] == [[0, 1]] * 30
        assert_as_in_one_process(here)
        here.wait_for("done: the run is over", "b")


def table(said: str) -> str:
    """A table's words, without its lines."""
    return " ".join(said.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())


# --- time ----------------------------------------------------------------------------------------


def test_who_is_late_or_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b", "c") as here:
        here.serve(*SCAFFOLD, *rounds(120), "--limit", 12, "--linger", 1)
        here.join("a")
        here.join("b", fault="late")
        here.join("c", fault="never")
        summary = here.end()
        assert [*summary["without_model"]] == ["c"]
        assert "did not get the model" in here.said("serve")
        silence = ["training: no answer within 12 s"]
        assert reasons(here, "absent", 0) == {"1": silence, "2": silence}
        busy = ["training: it is still at work on what it was asked before"]
        assert all(reasons(here, "absent", number)["2"] == busy for number in range(1, 120))
        assert here.rounds()[1]["clients"] == [0]
        assert here.rounds()[-1]["clients"] == [0, 1]
        assert "b is late" in here.said("serve")
        assert "c is late" in here.said("serve")
        assert_as_in_one_process(here)


# --- what clients send ---------------------------------------------------------------------------


def test_updates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b", "c", "d") as here:
        here.serve(*SCAFFOLD, *rounds(2), "--limit", 200)
        for name, fault in {"a": "", "b": "nan", "c": "shape", "d": "huge"}.items():
            here.join(name, fault=fault)
        summary = here.end()
        refused = reasons(here, "refused", 0)
        assert "holds NaN or Inf" in refused["1"][0]
        assert "expected" in refused["2"][0]
        assert "its list of tensors has 2147483648 bytes" in refused["3"][0]
        assert [sorted(reasons(here, "refused", number)) for number in (0, 1)] == [list("123"), []]
        assert summary["refused_updates"] == 3
        assert_as_in_one_process(here)


# --- every kind of system ------------------------------------------------------------------------

CONTRAST = (
    *("training.rounds=2", "training.predictor_steps=2", "centroids.refine_steps=1"),
    *("model.predictor_width=4", "model.latent=6"),
)
SCAN = (
    *("scan.stem=0", "scan.widths=[8]", "scan.hidden=8", "scan.batch=20"),
    *("scan.neighbours=3", "scan.mine_every=2", "scan.steps=4", "scan.steps_per_round=2"),
)
SYSTEMS = {
    "ccfc++": ("cluster", "clusters=4", *SCAN, *CONTRAST),
    "fed-scan": ("cluster", "clusters=4", *SCAN, "scan.latent=6"),
    "fed-scan with secure sums": (
        *("cluster", "clusters=4", *SCAN, "scan.latent=6", "scan.steps=2"),
        "privacy.secure_sums=true",
    ),
    "k-fed": ("cluster", "clusters=4"),
    "fedavg": ("classify", ALONE, "training.rounds=2", "training.local_epochs=1"),
    "scaffold": ("classify", ALONE, "training.rounds=3", "training.local_epochs=1"),
}


@contextmanager
def joined(folder: Path) -> Iterator[Place]:
    with place(folder, "a", "b", "c") as here:
        for name in ("a", "b", "c"):
            here.join(name)
        yield here


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Three clients that stay, for one server after the other."""
    with joined(tmp_path_factory.mktemp("three")) as here:
        yield here


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_deployed_run_has_the_bits_of_one_process(system: str, three: Place) -> None:
    task, *settings = SYSTEMS[system]
    method = system.partition(" ")[0]
    three.out = three.folder / system.replace(" ", "-")
    three.serve("--task", task, *SHARED, *assigned(f"method={method}", *settings), "--limit", 200)
    summary = three.end(600)
    assert all(found["clients"] == [0, 1, 2] for found in three.rounds())
    assert summary["counted_clients"] == ["a", "b", "c"]
    assert summary["refused_updates"] == 0
    assert_as_in_one_process(three)
