"""Files that are written whole, and tensors that come back as they were."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ccfcpp.core import files
from ccfcpp.core.files import read_tensors, save_tensors, write_atomically, write_table

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.zeros(0, 2)}
HEADER = {"round": "3", "facts": "{}"}


def test_a_strangers_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be open to others, who know how an earlier version named its files."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "known")
    (tmp_path / "victim").write_bytes(b"own")
    for name in (".x.tmp", ".x.known.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
        (tmp_path / name.replace("x", "y")).symlink_to(tmp_path / "nothing")
    writes: list[Callable[[Path], None]] = [
        lambda path: write_atomically(path, b"new"),
        lambda path: write_table(path, [{"a": "b"}]),
        lambda path: save_tensors(path, TENSORS),
    ]
    for write in writes:
        for name in "xy":
            with pytest.raises(FileExistsError):
                write(tmp_path / name)
    assert (tmp_path / "victim").read_bytes() == b"own"
    assert not (tmp_path / "nothing").exists()


def test_names_of_temporary_files_differ(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "x") as first, files.atomic_file(tmp_path / "x") as second:
        assert first != second
        assert first.match(files.TEMPORARY)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.atomic_file(tmp_path / "x"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_tensors_come_back_with_their_header(tmp_path: Path) -> None:
    for name in "xy":
        save_tensors(tmp_path / name, TENSORS | {"half": torch.ones(2).bfloat16()}, HEADER)
    tensors, header = read_tensors(tmp_path / "x")
    assert header == HEADER
    assert tensors["half"].dtype == torch.bfloat16
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(TENSORS, tmp_path / "x", metadata=HEADER)
    assert read_tensors(tmp_path / "x")[1] == HEADER


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_tensors(path, TENSORS, HEADER)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            tensors, header = read_tensors(path)
        except (ValueError, OSError):
            continue
        # Only the name of the entry may be another: then its content is nobody's header.
        assert header.keys() != HEADER.keys(), place
        assert tensors.keys() == TENSORS.keys()


def test_the_mode_is_that_of_the_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
