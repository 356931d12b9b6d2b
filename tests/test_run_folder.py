import json
from pathlib import Path

import pytest
import torch

from ccfcpp.clustering.exchanges import CCFCState
from ccfcpp.config import ClusterConfig
from ccfcpp.engine.checkpoint import Checkpoint
from ccfcpp.errors import UsageError
from ccfcpp.run_folder import RunFolder

CPU = torch.device("cpu")


def end_round(folder: RunFolder, number: int) -> None:
    state = CCFCState({"w": torch.full((2,), float(number))})
    folder.log_round({"round": number})
    folder.save_checkpoint(Checkpoint(number + 1, state, {}, {}))


def logged(folder: RunFolder) -> list[int]:
    return [json.loads(line)["round"] for line in folder.metrics.read_text().splitlines()]


@pytest.mark.parametrize(
    "rest", ['{"round": 2}\n', '{"round": 2}\n{"rou', '{"round"', "null\n", "\udcff"]
)
def test_rounds_logged_after_the_checkpoint_are_forgotten(tmp_path: Path, rest: str) -> None:
    """As after a crash between the log and the checkpoint, or within the log."""
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    end_round(folder, 0)
    end_round(folder, 1)
    with folder.metrics.open("a", errors="surrogateescape") as file:
        file.write(rest)
    checkpoint = folder.load_checkpoint(CCFCState, CPU)
    assert checkpoint is not None
    assert checkpoint.next_round == 2
    assert checkpoint.state.model["w"].tolist() == [1, 1]
    assert logged(folder) == [0, 1]
    end_round(folder, 2)
    assert logged(folder) == [0, 1, 2]


def test_lines_logged_before_the_first_checkpoint_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    folder.metrics.write_text('{"round": 0}\n')
    assert folder.load_checkpoint(CCFCState, CPU) is None
    assert logged(folder) == []


def test_what_a_crash_left_behind_is_cleared_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".config.yaml.tmp").write_text("half a conf")
    folder = RunFolder.create(run, ClusterConfig())
    end_round(folder, 0)
    (folder.checkpoint.parent / ".latest.safetensors.tmp").write_bytes(b"half a checkpoint")
    RunFolder.reopen(run)
    assert not list(run.rglob("*.tmp"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "run", ClusterConfig())


def test_every_session_of_a_run_is_recorded(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    folder.add_environment({"device": "cpu"})
    folder.add_environment({"device": "cuda"})
    sessions = json.loads(folder.environment.read_text())["sessions"]
    assert [session["device"] for session in sessions] == ["cpu", "cuda"]
