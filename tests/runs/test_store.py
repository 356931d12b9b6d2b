"""What of a run outlasts a crash: lines, state and memories of the same round."""

import json
from pathlib import Path

import pytest
import torch

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import InProcess
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.store import RunStore
from tests.support.election import Election, Mean, voters
from tests.support.federation import CPU, federated


class Session:
    """A process that runs an election in a folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        memories = ClientMemories(CPU, budget=10**9, folder=folder.checkpoint.parent)
        election = Election(9)
        self.federation: Federation[Mean, InProcess] = federated(
            "election", election, voters(0, 1), memories=memories
        )
        self.store = RunStore(folder, self.federation.transport, Mean, CPU)
        self.state = election.initial_state(Randomness(0))

    def run_round(self, number: int) -> None:
        self.state, report = self.federation.run_round(self.state, number)
        self.folder.log_round({"round": report.round})

    def votes(self) -> list[int]:
        memories = self.federation.transport.memories
        return [int(memories.take(n).get("votes", torch.tensor(0))) for n in (0, 1)]


def logged(folder: RunFolder) -> list[int]:
    return [json.loads(line)["round"] for line in folder.metrics.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", ClusterConfig())


def test_before_the_first_commit_nothing_is_restored_and_no_line_stays(folder: RunFolder) -> None:
    Session(folder).run_round(0)
    later = Session(folder)
    assert later.store.restore() is None
    assert logged(folder) == []
    assert later.votes() == [0, 0]


def test_what_was_done_after_a_commit_is_done_again(folder: RunFolder) -> None:
    before = Session(folder)
    before.run_round(0)
    before.store.commit(0, before.state, {"seconds": 1.5})
    committed = before.state
    before.run_round(2)
    assert before.votes() == [2, 2]
    later = Session(folder)
    checkpoint = later.store.restore()
    assert checkpoint is not None
    assert (checkpoint.next_round, checkpoint.facts) == (1, {"seconds": 1.5})
    assert torch.equal(checkpoint.state.value, committed.value)
    assert later.votes() == [1, 1]
    assert logged(folder) == [0]


def test_a_crash_within_a_commit_leaves_the_one_before(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memories are in their files, and no checkpoint names these."""
    before = Session(folder)
    before.run_round(0)
    before.store.commit(0, before.state, {})
    before.run_round(2)

    def crash(*arguments: object) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(folder, "save_checkpoint", crash)
        with pytest.raises(OSError, match="power"):
            before.store.commit(2, before.state, {})
    later = Session(folder)
    checkpoint = later.store.restore()
    assert checkpoint is not None
    assert checkpoint.next_round == 1
    assert later.votes() == [1, 1]
    names = {path.name for path in folder.checkpoint.parent.glob("client-*")}
    assert names == set(checkpoint.memories.values())


def test_older_memories_are_gone_after_a_commit(folder: RunFolder) -> None:
    session = Session(folder)
    for number in (0, 2):
        session.run_round(number)
        session.store.commit(number, session.state, {})
    names = {path.name for path in folder.checkpoint.parent.glob("client-*")}
    assert names == {f"client-{client}-version-2.0.safetensors" for client in (0, 1)}


def test_a_memory_that_is_missing_is_named(folder: RunFolder) -> None:
    session = Session(folder)
    session.run_round(0)
    session.store.commit(0, session.state, {})
    (folder.checkpoint.parent / "client-1-version-0.0.safetensors").unlink()
    with pytest.raises(UsageError, match="memory of client 1 is missing"):
        Session(folder).store.restore()


def test_the_first_commit_is_due_at_once(folder: RunFolder) -> None:
    assert Session(folder).store.is_due()
