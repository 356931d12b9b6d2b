"""Settings of the whole suite."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.support.finished_runs", "tests.support.recording"]

# The same examples on every run, and no timing: a busy machine must not fail a test.
settings.register_profile("ccfcpp", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("ccfcpp")

# The tests' networks are tiny: more threads would only wait for each other. Commands that a fixture
# of the whole session runs ask the environment, as those of a test do.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests out of the user's caches and data."""
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CCFCPP_DATA", raising=False)


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
