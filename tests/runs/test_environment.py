"""The machine of a run."""

import os
from collections.abc import Iterator

import pytest
import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.runs.environment import choose_device


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were one, until the test is over."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


def test_cuda_adds_in_the_same_order_each_time(
    a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_device("auto") == torch.device("cuda")
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # The user's choice stays.
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    choose_device("cuda")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_processor_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.are_deterministic_algorithms_enabled()
    assert choose_device("auto") == torch.device("cpu")
    assert torch.are_deterministic_algorithms_enabled() == before
    with pytest.raises(UsageError, match="finds no CUDA device"):
        choose_device("cuda")
