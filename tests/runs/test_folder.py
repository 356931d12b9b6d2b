import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.core.errors import UsageError
from ccfcpp.engine.checkpoint import Checkpoint
from ccfcpp.runs.folder import RunFolder

CPU = torch.device("cpu")


def end_round(folder: RunFolder, number: int) -> None:
    state = EncoderState({"w": torch.full((2,), float(number))})
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
    checkpoint = folder.load_checkpoint(EncoderState, CPU)
    assert checkpoint is not None
    assert checkpoint.next_round == 2
    assert checkpoint.state.model["w"].tolist() == [1, 1]
    assert logged(folder) == [0, 1]
    end_round(folder, 2)
    assert logged(folder) == [0, 1, 2]


def test_who_did_not_answer_in_the_last_round(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    assert folder.absent_in_last_round() == set()
    folder.log_round({"round": 0, "clients": [1], "absent": {"0": ["vote: late"]}})
    # Client 1 answered at first.
    folder.log_round({"round": 1, "clients": [1], "absent": {"1": ["vote: late"], "3": ["away"]}})
    assert folder.absent_in_last_round() == {3}
    folder.log_round({"round": 2, "clients": [0, 1, 3]})
    assert folder.absent_in_last_round() == set()


def test_lines_logged_before_the_first_checkpoint_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    folder.metrics.write_text('{"round": 0}\n')
    assert folder.load_checkpoint(EncoderState, CPU) is None
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


def test_a_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ClusterConfig())
    unfinished = folder.path / ".summary.json.tmp"
    unfinished.write_text("half a summary")
    with folder.lock(), pytest.raises(UsageError, match=r"another process runs .*run: wait"):
        RunFolder.reopen(folder.path)
    assert unfinished.exists()
    RunFolder.reopen(folder.path)
    assert not unfinished.exists()


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


# --- what is read of it -------------------------------------------------------------------------


def damaged(path: Path, read: Callable[[], object]) -> str:
    """The one line that names a damaged file."""
    with pytest.raises(UsageError) as error:
        read()
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{path} is damaged (")
    return str(error.value)


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text('{"nmi": 0.5, "gap": null}')
    assert folder.read_summary() == {"nmi": 0.5, "gap": None}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"nmi": 0.', "delimiter"),
        (b"[]", "no object"),
        (b"null", "no object"),
        (b"\xff\xfe{", "utf-16"),
        (b"\x80", "utf-8"),
    ],
)
def test_a_damaged_summary_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_bytes(content)
    said = damaged(folder.summary, folder.read_summary)
    assert reason in said
    assert said.endswith("): delete it to run this again")


@pytest.mark.parametrize(
    "content",
    [b"", b'{"sess', b"[]", b"null", b"{}", b"\x80", b'{"sessions": 3}', b'{"sessions": [3]}'],
)
def test_a_damaged_list_of_sessions_is_named(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_sessions() == []
    folder.environment.write_bytes(content)
    assert damaged(folder.environment, folder.read_sessions).endswith("): delete it to go on")


@pytest.mark.parametrize(
    ("rest", "whole"),
    [
        (b"", 2),
        (b'{"round": 2, "seconds": 3', 2),
        (b"\xff\x00", 2),
        (b"[]", 2),
        (b'{"seconds": 3}', 2),
        (b'{"round": 2}', 3),
        # What follows the damage is not trusted.
        (b'{"rou\n{"round": 3}', 2),
    ],
)
def test_a_log_ends_before_its_damage(tmp_path: Path, rest: bytes, whole: int) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_log() == []
    folder.metrics.write_bytes(b'{"round": 0, "seconds": 1.5}\n{"round": 1}\n' + rest)
    rows = folder.read_log()
    assert rows[:2] == [{"round": 0, "seconds": 1.5}, {"round": 1}]
    assert [row["round"] for row in rows] == list(range(whole))


ARRAYS: dict[str, Any] = {
    "global": np.arange(3.0),
    "client": np.array([4, 7]),
    "local": np.ones((2, 3)),
}


def packed(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_arrays("spectra") == {}
    (tmp_path / "spectra.npz").write_bytes(packed(ARRAYS))
    found = folder.read_arrays("spectra")
    assert list(found) == list(ARRAYS)
    for name, values in ARRAYS.items():
        assert torch.equal(found[name], torch.from_numpy(values))


def test_arrays_that_were_cut_anywhere_are_named(tmp_path: Path) -> None:
    folder, path, whole = RunFolder(tmp_path), tmp_path / "spectra.npz", packed(ARRAYS)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        said = damaged(path, lambda: folder.read_arrays("spectra"))
        assert said.endswith("): delete it to run this again")


def test_arrays_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "spectra.npz"
    path.write_bytes(packed({"global": np.array([print], dtype=object)}))
    assert "allow_pickle" in damaged(path, lambda: RunFolder(tmp_path).read_arrays("spectra"))
