"""A stand-in for CUDA graphs: a step's operations, recorded on a processor and run without it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ccfcpp.models.steps import Replay

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
        monkeypatch.setattr(f"{module}.recorder_of", lambda device: made)
    return made
