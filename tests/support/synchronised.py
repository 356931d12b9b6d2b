"""Programs of several clients, driven by hand."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ccfcpp.engine.payload import sum_updates
from ccfcpp.engine.synchronised.contract import Contribution
from ccfcpp.engine.synchronised.tape import Tape
from ccfcpp.models.pooled import Program


def driven(
    program: Callable[[Tensor], Program],
    batches: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
) -> tuple[Contribution, int]:
    """A step of a client for each batch: the sums of the last trip, and the number of trips."""
    tapes = [Tape(program(batch), parameters) for batch in batches]
    known, trips = Contribution(), 0
    while not known.gradient:
        known = sum_updates([tape.advance(known.sums, known.slopes) for tape in tapes])
        trips += 1
    return known, trips
