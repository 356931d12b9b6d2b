"""Steps of a process that holds all clients, run as a whole and captured on an accelerator.

The totals of such a process are those of all clients, so that no message of a step tells it
anything new. It then runs all exchanges of a step at once, as one graph, and answers with one after
the other. Numbers and bytes are those of a step that is sent.
"""

from collections.abc import Hashable, Mapping

from torch import Tensor

from ccfcpp.engine.synchronised.contract import Advancing, Batch, Contribution
from ccfcpp.engine.synchronised.tape import Tape, run_all_exchanges
from ccfcpp.models.steps import Inputs, Record, Step

_MOST_KINDS = 8
"""Shapes that are captured. Clients of many sizes show a few images more or fewer from step to
step, and each graph takes memory and time of its own."""


class CapturedSteps:
    """The training steps of one network, captured as graphs if the device supports it.

    Args:
        parameters: The trained parameters by name, whose memory never moves.
        record: Captures steps.
    """

    def __init__(self, parameters: Mapping[str, Tensor], record: Record) -> None:
        self._parameters, self._record = parameters, record
        self._kinds: dict[Hashable, _Kind] = {}

    def begin(self, batch: Batch) -> Advancing:
        """Run, or replay as a captured graph, a step on a batch whose ``course`` is set."""
        key = batch.course, tuple((each.shape, each.dtype) for each in batch.shown)
        if key not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds[key] = _Kind(batch, self._parameters, self._record)
        kind = self._kinds.get(key)
        return kind.begin(batch) if kind else Tape(batch.program(*batch.shown), self._parameters)


class _Kind:
    """Training steps with the same sequence of operations and batch shape: one captured graph."""

    def __init__(self, batch: Batch, parameters: Mapping[str, Tensor], record: Record) -> None:
        self._program, self._parameters = batch.program, parameters
        self._samples = len(batch.shown[0])
        self._inputs = Inputs(batch.shown[0].device, record)
        self._names = [str(place) for place in range(len(batch.shown))]
        self._step = Step(self._run, self._samples, self._inputs)
        self._trips: list[Contribution] = []

    def begin(self, batch: Batch) -> Advancing:
        for name, shown in zip(self._names, batch.shown, strict=True):
            self._inputs.put(name, shown)
        self._step(self._samples)
        # The next step writes over these.
        return _Answers([_copied(trip) for trip in self._trips])

    def _run(self, samples: int) -> None:
        program = self._program(*(self._inputs[name] for name in self._names))
        trips = run_all_exchanges(Tape(program, self._parameters))
        for place, found in zip(self._trips, trips, strict=False):
            _fill(place, found)
        self._trips = self._trips or [_copied(trip) for trip in trips]


class _Answers:
    """The contributions of a complete step, one for each exchange."""

    def __init__(self, trips: list[Contribution]) -> None:
        self._left = iter(trips)

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Return the contribution to the next exchange; the arguments are ignored."""
        return next(self._left)


def _fill(place: Contribution, found: Contribution) -> None:
    for held, parts in zip(vars(place).values(), vars(found).values(), strict=True):
        for name, part in parts.items():
            held[name].copy_(part)


def _copied(trip: Contribution) -> Contribution:
    return Contribution(
        *({name: part.clone() for name, part in parts.items()} for parts in vars(trip).values())
    )
