import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ccfcpp.data import cache
from ccfcpp.data.cache import (
    Arrays,
    cache_folder,
    cached,
    cached_folder,
    without_cache_writes,
)
from ccfcpp.data.registry import user_folder


class _Decoder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"images": np.arange(12, dtype=np.uint8), "classes": np.array(["a", "bc"])}


Use = Callable[[], Arrays]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def decoder() -> _Decoder:
    return _Decoder()


@pytest.fixture
def use(source: Path, decoder: _Decoder) -> Use:
    return lambda: cached([source], "plain", ("images", "classes"), decoder)


def _entries() -> list[Path]:
    return sorted(cache_folder().iterdir())


def test_decodes_once(use: Use, decoder: _Decoder) -> None:
    for arrays in (use(), use(), use()):
        assert arrays["images"].tolist() == list(range(12))
        assert arrays["classes"].tolist() == ["a", "bc"]
    assert decoder.calls == 1
    (entry,) = _entries()
    assert sorted(file.name for file in entry.iterdir()) == ["classes.npy", "images.npy"]


def test_a_changed_source_is_decoded_again(use: Use, decoder: _Decoder, source: Path) -> None:
    use()
    source.write_bytes(b"longer content")
    use()
    assert decoder.calls == 2
    os.utime(source, ns=(0, 12345))
    use()
    use()
    assert decoder.calls == 3


def test_options_and_paths_are_part_of_the_key(
    use: Use, decoder: _Decoder, source: Path, tmp_path: Path
) -> None:
    use()
    cached([source], "other", ("images",), decoder)
    twin = tmp_path / "twin"
    twin.write_bytes(source.read_bytes())
    cached([twin], "plain", ("images", "classes"), decoder)
    assert decoder.calls == 3
    assert len(_entries()) == 3


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY\x01\x00", b"garbage", "cut", "gone"])
def test_a_damaged_entry_is_replaced(use: Use, decoder: _Decoder, damage: bytes | str) -> None:
    use()
    (entry,) = _entries()
    file = entry / "images.npy"
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    for _ in range(2):
        assert use()["images"].tolist() == list(range(12))
    assert decoder.calls == 2
    assert _entries() == [entry]


def test_goes_without_a_cache_that_cannot_be_written(
    use: Use,
    decoder: _Decoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.DEBUG, logger="ccfcpp.data.cache"):
        assert use()["images"].tolist() == list(range(12))
    assert "going without" in caplog.text
    assert use()["images"].tolist() == list(range(12))
    assert decoder.calls == 2


def test_a_failure_to_decode_leaves_no_entry(source: Path) -> None:
    def fail() -> Arrays:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached([source], "plain", ("images",), fail)
    assert not cache_folder().exists()


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    assert user_folder() == tmp_path / "user" / "ccfcpp"
    monkeypatch.delenv("CCFCPP_CACHE")
    assert cache_folder() == tmp_path / "user" / "ccfcpp" / "decoded"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder() == tmp_path / ".cache" / "ccfcpp"


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_owner_may_read_it(use: Use, decoder: _Decoder, source: Path) -> None:
    before = os.umask(0)
    try:
        use()
        (entry,) = _entries()
        assert [_mode(path) for path in (cache_folder(), entry)] == [0o700] * 2
        assert {_mode(file) for file in entry.iterdir()} == {0o600}
        entry.chmod(0o755)  # as earlier versions left it
        cached([source], "other", ("images",), decoder)
        assert _mode(entry) == 0o700
    finally:
        os.umask(before)


def test_what_was_used_longest_ago_is_deleted(
    source: Path, decoder: _Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be one in which others keep files, too."""
    others = cache_folder() / "own" / "images.npy"
    others.parent.mkdir(parents=True)
    others.write_bytes(b"x" * 10_000)

    def sized(option: str) -> None:
        cached([source], option, ("images",), decoder)
        for path in _entries():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))

    sized("first")
    each = sum(file.stat().st_size for file in cache_folder().glob("?" * 32 + "/*"))
    monkeypatch.setattr(cache, "_MOST_BYTES", 2 * each)
    for option in ("second", "first", "third"):
        sized(option)
    assert decoder.calls == 3
    sized("first")
    assert decoder.calls == 3
    sized("second")
    assert decoder.calls == 4
    assert len(_entries()) == 3
    assert others.exists()


def test_an_entry_that_another_process_deletes_meanwhile_does_no_harm(
    source: Path, decoder: _Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached([source], "first", ("images",), decoder)
    (entry,) = _entries()
    rglob = Path.rglob

    def vanishing(folder: Path, pattern: str) -> list[Path]:
        found = [*rglob(folder, pattern)]
        if folder == entry:
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(Path, "rglob", vanishing)
    with cached_folder([source], "second", lambda folder: None) as folder:
        assert folder.is_dir()
    assert not entry.exists()


def test_nothing_is_kept_where_that_is_said(use: Use, decoder: _Decoder) -> None:
    with without_cache_writes():
        use()
    assert not cache_folder().exists()
    use()
    with without_cache_writes():
        assert use()["classes"].tolist() == ["a", "bc"]
    assert decoder.calls == 2
