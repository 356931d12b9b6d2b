"""Training steps of a process that has all clients, captured as CUDA graphs.

The sums of such a process are the totals, so that it needs no message to go on. It runs all
exchanges of a step at once, as one graph, and then returns one contribution after the other.
Results and byte counts are those of a step with messages.
"""

from collections.abc import Hashable, Mapping

from torch import Tensor

from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.synchronised.contract import Advancing, Batch, Contribution
from ccfcpp.engine.synchronised.tape import Tape, run_all_exchanges
from ccfcpp.models.steps import Inputs, Record, Step

_MOST_STEPS = 8
"""Largest number of captured graphs, one for each shape of a batch; each takes time and memory."""


class CapturedSteps:
    """The training steps of one network, captured as CUDA graphs.

    Args:
        parameters: The trained parameters by name, whose memory never moves.
        record: Function that captures a step as a graph.
    """

    def __init__(self, parameters: Mapping[str, Tensor], record: Record) -> None:
        self._parameters, self._record = parameters, record
        self._steps: dict[Hashable, _CapturedStep] = {}

    def begin(self, batch: Batch) -> Advancing:
        """Run, or replay as a captured graph, a step on a batch whose ``course`` is set."""
        key = batch.course, tuple((each.shape, each.dtype) for each in batch.shown)
        if key not in self._steps and len(self._steps) < _MOST_STEPS:
            self._steps[key] = _CapturedStep(batch, self._parameters, self._record)
        step = self._steps.get(key)
        return step.begin(batch) if step else Tape(batch.program(*batch.shown), self._parameters)


class _CapturedStep:
    """A training step that is captured as one graph, for batches of equal ``course`` and shapes."""

    def __init__(self, batch: Batch, parameters: Mapping[str, Tensor], record: Record) -> None:
        self._program, self._parameters = batch.program, parameters
        self._samples = len(batch.shown[0])
        self._inputs = Inputs(batch.shown[0].device, record)
        self._names = [str(place) for place in range(len(batch.shown))]
        self._step = Step(self._run, self._samples, self._inputs)
        self._contributions: list[Contribution] = []

    def begin(self, batch: Batch) -> Advancing:
        for name, shown in zip(self._names, batch.shown, strict=True):
            self._inputs.put(name, shown)
        self._step(self._samples)
        # Copies, since the next step overwrites these.
        return _Answers([_copy(each) for each in self._contributions])

    def _run(self, samples: int) -> None:
        program = self._program(*(self._inputs[name] for name in self._names))
        contributions = run_all_exchanges(Tape(program, self._parameters))
        for place, new in zip(self._contributions, contributions, strict=False):
            _fill(place, new)
        self._contributions = self._contributions or [_copy(each) for each in contributions]


class _Answers:
    """The contributions of a complete step, one for each exchange."""

    def __init__(self, contributions: list[Contribution]) -> None:
        self._left = iter(contributions)

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Return the contribution to the next exchange; the arguments are ignored."""
        return next(self._left)


def _fill(place: Contribution, new: Contribution) -> None:
    tensors = pack(place)
    for name, part in pack(new).items():
        tensors[name].copy_(part)


def _copy(contribution: Contribution) -> Contribution:
    return unpack(Contribution, {name: part.clone() for name, part in pack(contribution).items()})
