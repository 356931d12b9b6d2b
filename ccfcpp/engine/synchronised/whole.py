"""Steps of a process that holds all clients: captured whole on an accelerator, with all trips.

What such a process adds up is what all clients add up to, so that nothing that comes down in a step
is new to it. It then runs the step's trips at once, as one graph, and answers with one after the
other. Numbers and bytes are those of a step that travels.
"""

from collections.abc import Hashable, Mapping

from torch import Tensor

from ccfcpp.engine.synchronised.contract import Advancing, Batch, Contribution
from ccfcpp.engine.synchronised.tape import Tape, all_trips
from ccfcpp.models.steps import Inputs, Record, Step


class WholeSteps:
    """The steps of one network.

    Args:
        parameters: What they move, by name; it stays where it is.
        record: What captures steps.
    """

    def __init__(self, parameters: Mapping[str, Tensor], record: Record) -> None:
        self._parameters, self._record = parameters, record
        self._kinds: dict[Hashable, _Kind] = {}

    def begin(self, batch: Batch) -> Advancing:
        """Run or replay a step on a batch whose course is known."""
        key = batch.course, tuple((each.shape, each.dtype) for each in batch.shown)
        if key not in self._kinds:
            self._kinds[key] = _Kind(batch, self._parameters, self._record)
        return self._kinds[key].begin(batch)


class _Kind:
    """Steps of one course, on batches of one shape."""

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
        trips = all_trips(Tape(program, self._parameters))
        for place, found in zip(self._trips, trips, strict=False):
            _fill(place, found)
        self._trips = self._trips or trips


class _Answers:
    """What a step came to, trip by trip."""

    def __init__(self, trips: list[Contribution]) -> None:
        self._left = iter(trips)

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Return the next trip's; what comes down is known."""
        return next(self._left)


def _fill(place: Contribution, found: Contribution) -> None:
    for held, parts in zip(vars(place).values(), vars(found).values(), strict=True):
        for name, part in parts.items():
            held[name].copy_(part)


def _copied(trip: Contribution) -> Contribution:
    return Contribution(
        *({name: part.clone() for name, part in parts.items()} for parts in vars(trip).values())
    )
