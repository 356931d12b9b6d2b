"""Real processes on this machine, with TLS and keys.

Each takes a minute or more. The state at the end is that of one process. Crashes, late answers and
wrong updates are in ``test_storm``.
"""

from pathlib import Path

import pytest

from tests.support.command import ccfcpp, set_options, succeeded

pytest.importorskip("flwr")

from tests.support.processes import Place, assert_same, in_one_process, place, tensors_of

pytestmark = pytest.mark.nightly("ccfcpp/deployment", "tests/support/processes.py")

SHARED = set_options("dataset=digits", "device=cpu", "seed=3")
ALONE = "compute.cohort=1"
"""As over a network, where each client is by itself."""
SCAFFOLD = (
    *("--task", "classify", *SHARED),
    *set_options(ALONE, "method=scaffold", "training.local_epochs=1"),
)
"""Its clients remember control variates."""


def rounds(number: int) -> tuple[str, ...]:
    return set_options(f"training.rounds={number}")


def assert_as_in_one_process(here: Place) -> None:
    assert_same(tensors_of(here.out), in_one_process(here))


def test_a_server_that_is_told_to_stop_goes_on_later(tmp_path: Path) -> None:
    with place(tmp_path, "a", "b") as here:
        words = "--limit", 200, "--task", "classify"
        server = here.serve(*SCAFFOLD, *rounds(30), *words)
        assert "a not there yet" in table(succeeded("status", here.out).stdout)
        here.join("a", slow=True)
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


# --- every kind of system ------------------------------------------------------------------------

SCAN = (
    *("scan.stem=0", "scan.widths=[8]", "scan.hidden=8", "scan.batch=20", "scan.latent=6"),
    *("scan.neighbours=3", "scan.mine_every=2", "scan.steps=2", "scan.steps_per_round=2"),
)
SYSTEMS = {
    "fed-scan": ("cluster", "clusters=4", *SCAN, "privacy.secure_sums=true"),
    "scaffold": ("classify", ALONE, "training.rounds=3", "training.local_epochs=1"),
}
"""One whose clients know each other, and one whose clients remember."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_deployed_run_has_the_bits_of_one_process(system: str, tmp_path: Path) -> None:
    task, *settings = SYSTEMS[system]
    with place(tmp_path, "a", "b", "c") as here:
        for name in ("a", "b", "c"):
            here.join(name)
        here.serve(
            *("--task", task, *SHARED, "--limit", 200),
            *set_options(f"method={system}", *settings),
        )
        summary = here.end(600)
        assert all(found["clients"] == [0, 1, 2] for found in here.rounds())
        assert summary["counted_clients"] == ["a", "b", "c"]
        assert summary["refused_updates"] == 0
        assert_as_in_one_process(here)
