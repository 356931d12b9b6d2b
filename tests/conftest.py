"""Settings of the whole suite."""

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.support.finished_runs", "tests.support.recording"]

# The same examples on every run, and no timing: a busy machine must not fail a test.
settings.register_profile("ccfcpp", derandomize=True, deadline=None, max_examples=25)
# Other examples on every run, and more of them.
settings.register_profile("nightly", deadline=None, max_examples=500, database=None)
settings.load_profile("ccfcpp")

# The tests' networks are tiny: more threads would only wait for each other. Commands that a fixture
# of the whole session runs ask the environment, as those of a test do.
os.environ["OMP_NUM_THREADS"] = "1"
# Hundreds of processes start, and none but the first needs to compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "with `-m nightly`: only tests of what has changed since this commit"
    parser.addoption("--since", metavar="COMMIT", help=help_)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests of files that have not changed, where ``--since`` asks for it."""
    named = {part for item in items for part in _parts(item)}
    if missing := [part for part in named if not (config.rootpath / part).exists()]:
        raise pytest.UsageError(f"tests are marked nightly({missing[0]!r}), which is not there")
    if since := config.getoption("--since"):
        command = ["git", "diff", "--name-only", since]
        listed = subprocess.check_output(command, cwd=config.rootpath, text=True)
        changed = listed.splitlines()
        kept = [item for item in items if _tests_any_of(item, changed)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _parts(item: pytest.Item) -> list[str]:
    """Return the files and folders that a nightly test's mark names.

    A mark that names nothing is of a test that only the night has time for.
    """
    return [part for mark in item.iter_markers("nightly") for part in mark.args]


def _tests_any_of(item: pytest.Item, changed: list[str]) -> bool:
    """Whether one of these files is of a nightly test's parts, or holds the test."""
    parts = _parts(item)
    return bool(parts) and any(path.startswith((*parts, item.location[0])) for path in changed)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests out of the user's caches and data."""
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CCFCPP_DATA", raising=False)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run wait for the disk, thirty times each: only a crash of the machine needs it."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def processes_of_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a study, where they would import everything anew for two seconds."""
    if not torch.cuda.is_available():
        get_context = multiprocessing.get_context

        def of(method: str | None = None) -> BaseContext:
            return get_context("fork" if method == "spawn" else method)

        monkeypatch.setattr(multiprocessing, "get_context", of)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """In float32 Adam blows rounding errors of gradients near 0 up to whole steps."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that computations are written for."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    return torch.device(request.param)
