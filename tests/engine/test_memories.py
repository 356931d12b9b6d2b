from pathlib import Path

import pytest
import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.engine.client import Memory
from ccfcpp.engine.memories import ClientMemories, memory_budget

CPU = torch.device("cpu")


def memory(value: float) -> Memory:
    """One of 40 bytes."""
    return {"moments": torch.full((10,), float(value))}


def values(memories: ClientMemories, *clients: int) -> list[float]:
    return [memories.take(client)["moments"][0].item() for client in clients]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def test_what_is_kept_comes_back_from_memory_or_from_a_file(tmp_path: Path) -> None:
    memories = ClientMemories(CPU, budget=100, folder=tmp_path)
    for client in range(4):
        memories.keep(client, memory(client), "0.0")
    assert files(tmp_path) == [
        "client-2-version-0.0.safetensors",
        "client-3-version-0.0.safetensors",
    ]
    assert values(memories, 0, 1, 2, 3) == [0, 1, 2, 3]
    assert memories.take(9) == {}


def test_a_new_memory_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    memories = ClientMemories(CPU, budget=50, folder=tmp_path)
    for number in range(3):
        for client in range(2):
            memories.keep(client, memory(10 * number + client), f"{number}.0")
    assert values(memories, 0, 1) == [20, 21]
    assert files(tmp_path) == ["client-1-version-2.0.safetensors"]


def test_files_of_a_checkpoint_stay_until_the_next_one(tmp_path: Path) -> None:
    memories = ClientMemories(CPU, budget=50, folder=tmp_path)
    for client in range(2):
        memories.keep(client, memory(client), "0.0")
    saved = memories.save()
    memories.settle()
    for number in (1, 2):  # Work that a crash will undo.
        for client in range(2):
            memories.keep(client, memory(10 * number), f"{number}.0")
    resumed = ClientMemories(CPU, budget=50, folder=tmp_path)
    resumed.restore(saved)
    assert values(resumed, 0, 1) == [0, 1]
    assert files(tmp_path) == sorted(saved.values())


def checkpointed(folder: Path) -> dict[int, str]:
    """The memories of two clients in files that a checkpoint names, and a file that none does."""
    memories = ClientMemories(CPU, budget=1000, folder=folder)
    for client in range(2):
        memories.keep(client, memory(client), "0.0")
    saved = memories.save()
    memories.settle()
    (folder / "client-0-version-9.0.safetensors").write_bytes(b"stray")
    return saved


def test_who_goes_on_removes_what_the_checkpoint_does_not_name(tmp_path: Path) -> None:
    saved = checkpointed(tmp_path)
    resumed = ClientMemories(CPU, budget=1000, folder=tmp_path)
    resumed.restore(saved)
    assert files(tmp_path) == sorted(saved.values())
    # What the checkpoint needs stays until the next one.
    resumed.keep(0, memory(7), "1.0")
    assert files(tmp_path) == sorted(saved.values())
    assert values(resumed, 0, 1) == [7, 1]


def test_a_memory_that_a_checkpoint_names_must_be_there(tmp_path: Path) -> None:
    saved = checkpointed(tmp_path)
    (tmp_path / saved[1]).unlink()
    with pytest.raises(UsageError, match=r"memory of client 1 is missing .*client-1-version-0.0"):
        ClientMemories(CPU, budget=1000, folder=tmp_path).restore(saved)
    assert files(tmp_path) == [
        "client-0-version-0.0.safetensors",
        "client-0-version-9.0.safetensors",
    ]


def test_a_memory_that_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    memories = ClientMemories(CPU, budget=1000, folder=tmp_path)
    memories.keep(0, memory(0), "0.0")
    memories.keep(1, memory(1), "0.0")
    memories.save()
    memories.settle()
    memories.keep(1, memory(2), "1.0")
    assert memories.save() == {
        0: "client-0-version-0.0.safetensors",
        1: "client-1-version-1.0.safetensors",
    }
    memories.settle()
    assert files(tmp_path) == [
        "client-0-version-0.0.safetensors",
        "client-1-version-1.0.safetensors",
    ]


def test_without_a_folder_files_are_temporary() -> None:
    memories = ClientMemories(CPU, budget=0)
    memories.keep(0, memory(3), "0.0")
    assert values(memories, 0) == [3]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_lost_file_is_named(tmp_path: Path, damage: str) -> None:
    memories = ClientMemories(CPU, budget=0, folder=tmp_path)
    memories.keep(0, memory(0), "0.0")
    path = tmp_path / "client-0-version-0.0.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(UsageError, match=r"memory of client 0 .*client-0-version-0.0"):
        memories.take(0)


def test_the_budget_of_the_host_is_fixed() -> None:
    assert memory_budget(CPU) == 2**30
