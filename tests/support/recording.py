"""Stand-ins for CUDA graphs: a step's operations, recorded on a processor and run without it; and a
step on an accelerator that is not there, of which only shapes and devices are known."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ccfcpp.models.steps import CudaGraphs, Replay

TRAINERS = (
    "ccfcpp.clustering.systems.ccfc.local_training",
    "ccfcpp.clustering.systems.synthetic.gan_training",
    "supervised.local_training",
)


@dataclass
class Recorder:
    """Records the operations of steps, and counts how often they run again.

    Nothing of a step's own code runs in a replay: it reads the tensors that were there when it was
    recorded, as a CUDA graph does.
    """

    records: int = 0
    replays: int = 0
    graphs: list[GraphModule] = field(default_factory=list)

    def __call__(self, step: Callable[[], None]) -> Replay:
        """Record a step. A recording runs it, so that the first replay has nothing left to do."""

        def traced() -> torch.Tensor:
            step()
            return torch.zeros(())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = make_fx(traced)()
        self.records += 1
        self.graphs.append(graph)
        done = False

        def replay() -> None:
            nonlocal done
            self.replays += 1
            if done:
                with torch.no_grad():
                    graph()
            done = True

        return replay

    def reads(self) -> set[str]:
        """Return what the last recording refers to."""
        nodes: list[Node] = list(self.graphs[-1].graph.nodes)
        return {str(node.target) for node in nodes if node.op == "get_attr"}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Have all local training record its steps."""
    made = Recorder()
    for module in TRAINERS:
        monkeypatch.setattr(f"{module}.make_recorder", lambda device: made)
    return made


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[CudaGraphs]:
    """Return the captures of a test on a GPU, one for each step; fail if a step has none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    made = list[CudaGraphs]()
    capture = CudaGraphs.__call__

    def counted(self: CudaGraphs, step: Callable[[], None]) -> Replay:
        try:
            replay = capture(self, step)
        except RuntimeError as error:  # which training takes for a reason to go on without
            raise AssertionError(str(error)) from error
        made.append(self)
        return replay

    monkeypatch.setattr(CudaGraphs, "__call__", counted)
    monkeypatch.setattr("ccfcpp.models.steps._failed", [])
    return made


META = torch.device("meta")
"""Stands for an accelerator: tensors there have no values to look at."""
_ON_META: Any = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
"""Operations of which PyTorch does not say what they do to shapes."""
_ON_META.impl("_fused_sgd_", lambda *given, **options: None)
_ON_META.impl("bincount", lambda labels, weights=None, minlength=0: labels.new_empty(minlength))
_DRAWS = ("rand", "normal", "uniform", "bernoulli", "dropout")


class CapturedError(Exception):
    """A step did nothing that a CUDA graph cannot do."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch has no types
    """Fails where an operation joins the accelerator and the processor, or draws numbers.

    During a capture a copy between them is not permitted, and a number that lies on the processor
    would be the same in each replay.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        if len({part.device.type for part in parts}) > 1:
            raise AssertionError(f"{func} joins the processor and the accelerator")
        if any(draw in str(func) for draw in _DRAWS):
            raise AssertionError(f"{func} draws random numbers")
        return result


@contextmanager
def _no_tensors_of_numbers() -> Iterator[None]:
    """Fail where a tensor on the accelerator is made of Python's numbers, which is a copy, too.

    Operations do not tell: the copy is made below them.
    """
    with pytest.MonkeyPatch.context() as patch:
        make, make_like = torch.tensor, Tensor.new_tensor

        def watched(data: Any, **options: Any) -> Tensor:
            assert torch.device(options.get("device") or "cpu") != META, "torch.tensor copies"
            return make(data, **options)

        def watched_like(self: Tensor, data: Any, **options: Any) -> Tensor:
            assert not self.is_meta, "new_tensor copies"
            return make_like(self, data, **options)

        patch.setattr(torch, "tensor", watched)
        patch.setattr(Tensor, "new_tensor", watched_like)
        yield


def watch(step: Callable[[], None]) -> Replay:
    """Run a step as a capture would, in place of it.

    Raises:
        CapturedError: It can be captured.
        AssertionError: It cannot.
    """
    try:
        with _Watch(), _no_tensors_of_numbers():  # type: ignore[no-untyped-call]
            step()
    except RuntimeError as error:  # such as a look at a value
        raise AssertionError(str(error)) from error
    raise CapturedError


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all local training watched where a capture would begin."""
    for module in TRAINERS:
        monkeypatch.setattr(f"{module}.make_recorder", lambda device: watch)
