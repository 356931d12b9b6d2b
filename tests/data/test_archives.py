import errno
import gzip
import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load
from tests.support.originals import (
    REAL_DATA,
    encoded,
    flat,
    random_images,
    write_archive,
    write_tree,
)

SUFFIXES = [".tar.gz", ".tgz", ".tar", ".zip"]

SPLIT = {
    "README.md": b"about",
    "test/cat/9.png": flat(1),
    "test/ant/0.png": flat(2),
    "train/cat/10.png": flat(3),
    "train/cat/9.png": flat(4),
    "train/cat/.hidden.png": b"",
    "train/ant/7.png": flat(5),
}


def _values(data: ImageData) -> list[int]:
    values: list[int] = data.images[:, 0, 0, 0].tolist()
    return values


def _assert_same(data: ImageData, expected: ImageData) -> None:
    assert torch.equal(data.images, expected.images)
    assert (data.classes, data.owner_names) == (expected.classes, expected.owner_names)
    for key in ("labels", "owners", "test"):
        mine, other = getattr(data, key), getattr(expected, key)
        assert (mine is None) == (other is None), key
        assert mine is None or torch.equal(mine, other), key


FLAT = {"a.png": flat(1), "b.png": flat(2)}
CLASSES = {"x/a.png": encoded(random_images(0, 4, 4, 3)), "y/a.png": flat(3)}
CLIENTS = {"anna/x/0.png": flat(1), "bob/x/0.png": flat(2), "bob/y/0.png": flat(3)}
CLIENTS_SPLIT = {f"anna/{split}/x/0.png": flat(i) for i, split in enumerate(("train", "test"))}
LISTS = CLIENTS | {
    "anna_train.txt": b"anna/x/0.png 0\n",
    "anna_test.txt": b"",
    "bob_train.txt": b"",
    "bob_test.txt": b"bob/y/0.png 1\n",
}


@pytest.mark.parametrize("inside", ["", "./", "photos/"])
@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    ("files", "clients"),
    [
        (CLASSES, False),
        (SPLIT, False),
        (CLIENTS, True),
        (CLIENTS_SPLIT, True),
        (LISTS, True),
    ],
)
def test_an_archive_is_read_as_the_folder_is(
    tmp_path: Path, files: Mapping[str, bytes], clients: bool, suffix: str, inside: str
) -> None:
    write_tree(tmp_path / "folder", files)
    expected = load(str(tmp_path / "folder"), folders_are_clients=clients)
    write_archive(
        tmp_path / f"archive{suffix}", {inside + name: content for name, content in files.items()}
    )
    for _ in range(2):  # decoded, and from the cache
        data = load(str(tmp_path / f"archive{suffix}"), folders_are_clients=clients)
        _assert_same(data, expected)


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "some.tar.gz"
    write_archive(archive, SPLIT)
    first = load(str(archive))

    def fail(*_: object) -> None:
        raise AssertionError("unpacked again")

    with monkeypatch.context() as patch:
        patch.setattr(archives, "_Unpacking", fail)
        _assert_same(load(str(archive)), first)
        for choice in ({"classes": ["cat"]}, {"image_size": 2}, {"folders_are_clients": True}):
            assert len(load(str(archive), **choice)) > 0
    write_archive(archive, SPLIT | {"train/ant/8.png": flat(6)})
    assert len(load(str(archive))) == 6


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_lead_out_of_the_archive_are_harmless(tmp_path: Path, suffix: str) -> None:
    files = {
        "../../escaped.png": flat(7),
        "a/../../escaped.png": flat(8),
        "a/0.png": flat(1),
        "/b/0.png": flat(2),
    }
    archive = tmp_path / "deep" / "root" / f"some{suffix}"
    write_archive(archive, files)
    data = load(str(archive))
    assert (_values(data), data.classes) == ([1, 2], ("a", "b"))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert not list(tmp_path.rglob("escaped*"))


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(flat(9))
    with tarfile.open(tmp_path / "some.tar", "w") as tar:
        for kind, name in ((tarfile.SYMTYPE, "sym"), (tarfile.LNKTYPE, "hard")):
            link = tarfile.TarInfo(f"a/{name}.png")
            link.type = kind
            link.linkname = str(tmp_path / "secret.png")
            tar.addfile(link)
    with pytest.raises(UsageError, match=r"2 of the 2 .*, and none is left.*leads to no file here"):
        load(str(tmp_path / "some.tar"))


def _odd_folder(folder: Path) -> None:
    """Write what a folder can hold beside images."""
    write_tree(
        folder,
        {
            **{f"ant/{i}.png": flat(i) for i in range(4)},
            ".git/objects/1": flat(9),
            "bee/@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg": flat(7),
            "bee/Thumbs.db": b"thumbs",
            "bee/empty.png": b"",
            "bee/more.zip": b"PK",
            "__MACOSX/bee/._0.png": b"",
            "$RECYCLE.BIN/ant/0.png": flat(8),
        },
    )
    (folder / "cow").mkdir()
    for name, link in {
        "bee/5.png": "../ant/0.png",
        "bee/6.png": "../.git/objects/1",  # as git-annex has them
        "bee/7.png": "5.png",
        "bee/gone.png": "../.git/objects/2",
        "bee/gone": "nowhere",
        "bee/round.png": "round.png",
        "bee/up": "..",
        "dog": "ant",
    }.items():
        (folder / name).symlink_to(link)
    os.mkfifo(folder / "bee" / "pipe.png")


def _packed(folder: Path, archive: Path) -> None:
    """Pack as tar and zip do, links as links."""
    if archive.suffix == ".tar":
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, folder.name)
        return
    with zipfile.ZipFile(archive, "w") as pack:
        for path in sorted(folder.rglob("*")):
            info = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix() + "/" * path.is_dir())
            info.external_attr = path.lstat().st_mode << 16
            if path.is_symlink():
                info.filename = info.filename.removesuffix("/")
                pack.writestr(info, str(path.readlink()))
            elif path.is_dir():
                pack.writestr(info, b"")
            elif path.is_file():
                pack.writestr(info, path.read_bytes())


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_whatever_is_not_read_is_listed_as_of_the_folder(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "photos"
    _odd_folder(folder)
    if suffix == ".zip":  # which holds no pipes
        (folder / "bee" / "pipe.png").unlink()
    _packed(folder, tmp_path / f"packed{suffix}")
    data, packed = (load(str(place), skip=0.5) for place in (folder, tmp_path / f"packed{suffix}"))
    _assert_same(packed, data)
    assert _values(data) == [0, 1, 2, 3, 0, 9, 0, 0, 1, 2, 3]
    assert data.classes == ("ant", "bee", "dog")
    assert data.reading is not None
    assert packed.reading is not None

    def below(name: str) -> str:
        return name.removeprefix("photos/")

    assert [below(name) for name in packed.names] == list(data.names)
    rows = {file.name: file.reason for file in data.reading.skipped}
    assert {below(file.name): file.reason for file in packed.reading.skipped} == rows
    assert rows == {
        "bee/empty.png": "it is empty",
        "bee/gone.png": "it is a link to '../.git/objects/2', which leads to no file here",
        "bee/round.png": "it is a link to 'round.png', which leads to no file here",
        "bee/gone": "it is a link to 'nowhere', which leads to no file here",
        "bee/more.zip": "it is no image of a kind that is read",
        "bee/up": "it is a link to a folder above it",
    } | ({"bee/pipe.png": "it is neither a file nor a folder"} if suffix == ".tar" else {})
    assert set(data.reading.hidden) == {
        *("$RECYCLE.BIN", ".git", "__MACOSX", "bee/@eaDir", "bee/Thumbs.db")
    }
    assert [below(name) for name in packed.reading.hidden] == list(data.reading.hidden)
    assert [below(name) for name in packed.reading.empty] == list(data.reading.empty) == ["cow"]
    with pytest.raises(UsageError, match=r"gone\.png \(it is a link"):
        load(str(folder), skip=0)


@pytest.mark.parametrize("target", ["", "a\0b", "x" * 5000])
def test_a_link_that_no_disk_can_have_is_left_out(tmp_path: Path, target: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            link = tarfile.TarInfo(f"{name}.png")
            link.type, link.pax_headers = kind, {"linkpath": target}
            tar.addfile(link)
        _add_file(tar, "a.png", flat(7))
    data = load(str(tmp_path / "a.tar"), skip=1)
    assert data.reading is not None
    assert {file.name for file in data.reading.skipped} == {"link.png", "hard.png"}


def test_a_name_that_no_disk_can_have_is_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        _add_file(tar, "a.png", flat(7))
        _add_file(tar, "b.png", flat(8), path="b\0.png")
    data = load(str(tmp_path / "a.tar"), skip=1)
    assert data.reading is not None
    (lost,) = data.reading.skipped
    assert (lost.name, lost.reason) == ("b\0.png", "the disk refuses its name (it has a byte 0)")


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, **headers: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.pax_headers = len(content), headers
    tar.addfile(member, io.BytesIO(content))


def test_hard_links_have_the_content_of_their_targets(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", {"a/1.png": flat(1), ".kept/2": flat(2)})
    for name, target in {"b/3.png": "a/1.png", "b/4.png": ".kept/2"}.items():
        (tmp_path / "photos" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "photos" / name).hardlink_to(tmp_path / "photos" / target)
    _packed(tmp_path / "photos", tmp_path / "packed.tar")
    for place in ("photos", "packed.tar"):
        assert _values(load(str(tmp_path / place))) == [1, 1, 2]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_of_members_with_one_name_the_last_counts(tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"some{suffix}"
    write_archive(archive, {"a/0.png": flat(1), "a/1.png": flat(2), "./a/0.png": flat(3)})
    data = load(str(archive))
    assert _values(data) == [3, 2]
    assert data.reading is not None
    assert data.reading.rows == [{"file": "a/0.png", "reason": "another one of this name follows"}]


def test_a_zip_of_windows_or_of_a_mac(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as pack:
        for name in ("C:\\anna\\x\\1.png", "C:\\bob\\x\\2.png", "C:\\..\\..\\out.png"):
            pack.writestr(name, flat(5))
        pack.writestr("C:\\bob\\caf\u00e9\\3.png", flat(6))
        pack.writestr("C:\\eve\\", b"")
    content = (tmp_path / "some.zip").read_bytes()
    utf8 = b"\x00\x08"
    assert content.count(b"caf\xc3\xa9") == content.count(utf8) == 2
    (tmp_path / "some.zip").write_bytes(content.replace(utf8, b"\x00\x00"))  # macOS says nothing
    data = load(str(tmp_path / "some.zip"), folders_are_clients=True)
    assert (data.owner_names, data.classes) == (("anna", "bob"), ("caf\u00e9", "x"))
    assert data.reading is not None
    assert (data.reading.empty, data.reading.hidden) == (("eve",), ("..",))
    assert not list(tmp_path.rglob("out*"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_with_backslashes_and_drives_are_folders(tmp_path: Path, suffix: str) -> None:
    files = {"x\\h\\1.png": flat(1), "x/v/2.png": flat(2), "C:\\x\\h\\3.png": flat(3)}
    write_archive(tmp_path / f"some{suffix}", files)
    data = load(str(tmp_path / f"some{suffix}"))
    assert (data.classes, _values(data)) == (("h", "v"), [1, 3, 2])


@pytest.mark.parametrize("damage", ["broken", "cut"])
def test_a_tar_does_not_end_at_a_broken_header(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "some.tar"
    write_archive(archive, {f"a/{i}.png": flat(i) for i in range(4)})
    content = bytearray(archive.read_bytes())
    assert content[2048:2055] == b"a/2.png"
    content[2048] ^= 1
    archive.write_bytes(content if damage == "broken" else content[:2048])
    with pytest.raises(UsageError, match=r"some\.tar cannot be read \((bad checksum|empty header)"):
        load(str(archive))


def test_a_sparse_member_is_read(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("needs GNU tar")
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "0.pgm").open("wb") as file:
        file.write(b"P5 512 512 255\n")
        file.truncate(15 + 512 * 512)
    for form in ("gnu", "posix"):
        make = ["tar", "--sparse", f"--format={form}", "-cf", "some.tar", "a"]
        subprocess.run(make, cwd=tmp_path, check=True)
        assert (tmp_path / "some.tar").stat().st_size < 100_000
        assert load(str(tmp_path / "some.tar"), image_size=512).images.eq(0).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_that_the_disk_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(archives, "_FEW_BYTES", 1000)
    monkeypatch.setattr(archives, "_MOST_INFLATED", 0)
    write_archive(tmp_path / f"some{suffix}", {"a/0.png": bytes(600), "a/1.png": bytes(600)})
    with pytest.raises(UsageError, match=rf"some\{suffix} holds more than the 1000 bytes"):
        load(str(tmp_path / f"some{suffix}"))
    assert not list(tmp_path.rglob("1.png"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_without_a_cache_and_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write_archive(tmp_path / f"some{suffix}", FLAT)
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("CCFCPP_CACHE", str(tmp_path / "file" / "cache"))
        assert _values(load(str(tmp_path / f"some{suffix}"))) == [1, 2]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ccfcpp.data.archives._Unpacking._write", full)
    with pytest.raises(UsageError, match=r"cannot be unpacked to .*No space left.*CCFCPP_CACHE"):
        load(str(tmp_path / f"some{suffix}"))


def test_a_zip_that_understates_a_size_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    content = bytes(5000)
    write_archive(archive, {"a/0.png": content})
    size = (5000).to_bytes(4, "little")
    archive.write_bytes(archive.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(UsageError, match=r"a/0\.png cannot be read \(Bad CRC-32"):
        load(str(archive))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kept", [0, 10, 3 * 1024 + 700])  # the last is inside a file
def test_a_cut_archive_is_named(tmp_path: Path, suffix: str, kept: int) -> None:
    archive = tmp_path / f"some{suffix}"
    write_archive(archive, {f"a/{i}.png": encoded(random_images(i, 30, 30)) for i in range(9)})
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(UsageError, match=rf"some\{suffix} cannot be read \(.+\): get it again"):
        load(str(archive))


def test_a_gzipped_tar_cut_between_two_files_is_noticed(tmp_path: Path) -> None:
    write_archive(tmp_path / "some.tar", FLAT)
    archive = tmp_path / "some.tar.gz"
    with gzip.open(archive, "wb") as file:
        file.write((tmp_path / "some.tar").read_bytes()[:1024])
        file.flush()
        cut = archive.read_bytes()
    archive.write_bytes(cut)
    with pytest.raises(UsageError, match=r"cannot be read \(Compressed file ended before"):
        load(str(archive))


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    write_archive(archive, {"a/0.png": flat(1)})
    with zipfile.ZipFile(archive) as file:
        start = file.start_dir
    content = bytearray(archive.read_bytes())
    content[6] |= 1
    content[start + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(UsageError, match=r"a/0\.png cannot be read \(.*encrypted"):
        load(str(archive))


def test_an_archive_without_images(tmp_path: Path) -> None:
    write_archive(tmp_path / "some.tar.gz", {"a/notes.txt": b"", "README.md": b""})
    with pytest.raises(UsageError, match=r"some\.tar\.gz holds no image"):
        load(str(tmp_path / "some.tar.gz"))
    write_archive(tmp_path / "empty.zip", {})
    with pytest.raises(UsageError, match=r"empty\.zip holds no image"):
        load(str(tmp_path / "empty.zip"))


@pytest.mark.nightly("ccfcpp/data")
def test_the_real_archive() -> None:
    archive = REAL_DATA / "cifar10_jpeg.tar.gz"
    if not archive.is_file():
        pytest.skip(f"needs the real archive: no {archive}")
    data = load(str(archive), classes=["cat", "truck"])
    assert data.name == "cifar10_jpeg"
    assert data.images.shape == (12_000, 3, 32, 32)
    assert data.classes == ("cat", "truck")
    assert data.labels is not None
    assert data.test is not None
    assert data.test.tolist() == [False] * 10_000 + [True] * 2_000
    assert torch.bincount(data.labels[data.test]).tolist() == [1_000] * 2
