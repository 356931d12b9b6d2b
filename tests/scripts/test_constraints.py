"""What is locked can be installed, and nothing else, without any index."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

pytest.importorskip("flwr")
pytest.importorskip("pip")

from ccfcpp.deployment.keys.creation import make_authority
from ccfcpp.deployment.keys.kits import make_kit
from scripts.constraints import pip_report

ROOT = Path(__file__).parents[2]


def write_wheel(folder: Path, name: str, version: str, *more: str) -> Path:
    """A package without a module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more])
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"{metadata}\n")
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return path


def run(*words: object, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=60)


def test_a_kit_installs_what_is_locked_and_nothing_else(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    needed = write_wheel(shelf, "needed", "1.2")
    write_wheel(shelf, "unasked", "7")
    wheel = write_wheel(
        tmp_path,
        "ccfcpp",
        "9.0",
        "Provides-Extra: flower",
        "Requires-Dist: needed; extra=='flower'",
    )
    local = "--no-index", "--find-links", shelf
    lock = tmp_path / "lock.txt"
    done = run("scripts.constraints", "--out", lock, f"{wheel}[flower]", "--", *local)
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256(needed.read_bytes()).hexdigest()
    assert lock.read_text() == f"needed==1.2 --hash=sha256:{digest}\n"

    make_authority(tmp_path / "keys", 30)
    kit = tmp_path / "a.zip"
    make_kit(tmp_path / "keys", "a", "localhost:9092", kit, "a secret", wheel, lock)
    with zipfile.ZipFile(kit) as archive:
        archive.extractall(tmp_path)
    words = "pip", "install", "--dry-run", "--ignore-installed", "-r", "requirements.txt", *local
    done = run(*words, at=tmp_path / "a")
    assert "Would install ccfcpp-9.0 needed-1.2" in done.stdout, done.stderr
    write_wheel(shelf, "needed", "1.2", "Summary: another one")
    done = run(*words, at=tmp_path / "a")
    assert done.returncode != 0
    assert "HASHES" in done.stderr


def test_what_pip_refuses_locks_nothing(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="pip refuses"):
        pip_report([str(tmp_path / "none.whl")])
