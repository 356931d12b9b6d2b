from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.engine.checkpoint import (
    Checkpoint,
    CheckpointClock,
    load_checkpoint,
    save_checkpoint,
)

CPU = torch.device("cpu")


@dataclass(frozen=True)
class State:
    model: dict[str, Tensor]
    version: int = 0
    centroids: Tensor | None = None


def checkpoint(round_number: int = 3) -> Checkpoint[State]:
    weights = torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)
    memories = {2: "client-2-version-3.0.safetensors", 11: "client-11-version-1.0.safetensors"}
    return Checkpoint(
        round_number, State({"w": weights, "n": torch.tensor(4)}, 7), memories, {"s": 1.5}
    )


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    saved = checkpoint()
    path = tmp_path / "checkpoint" / "latest.safetensors"
    save_checkpoint(path, saved)
    loaded = load_checkpoint(path, State, CPU)
    assert loaded.next_round == 3
    assert loaded.facts == {"s": 1.5}
    assert loaded.state.version == 7
    assert loaded.state.centroids is None
    assert torch.equal(loaded.state.model["w"], saved.state.model["w"])
    assert loaded.state.model["n"].dtype == torch.int64
    assert loaded.memories == saved.memories
    assert [file.name for file in path.parent.iterdir()] == ["latest.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("damage", ["cut", "other bytes", "no header"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "latest.safetensors"
    save_checkpoint(path, checkpoint())
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "other bytes":
        path.write_bytes(b"not safetensors at all")
    else:
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_checkpoint(path, State, CPU)


def test_changed_numbers_are_told_as_damage(tmp_path: Path) -> None:
    """A run that went on from them would end in another way, and blame its clients."""
    path = tmp_path / "latest.safetensors"
    save_checkpoint(path, checkpoint())
    whole = bytearray(path.read_bytes())
    whole[-8:] = bytes(byte ^ 255 for byte in whole[-8:])
    path.write_bytes(whole)
    with pytest.raises(UsageError, match=r"latest\.safetensors cannot be read \(its checksum"):
        load_checkpoint(path, State, CPU)


def test_checkpoints_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    clock = CheckpointClock(share=0.1)
    assert clock.is_due()
    with clock.timing():
        now += 2
    assert not clock.is_due()
    now += 19
    assert not clock.is_due()
    now += 1
    assert clock.is_due()
