"""A client that answers what it should not: ``python -m tests.support.rogue FAULT join ...``.

All else is as in ``ccfcpp join``: its key, its node and its worker.
"""

import sys
import time
from collections.abc import Callable

import torch
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.cli.app import main
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.packet import Parcel

LATE, NEVER = 90.0, 3600.0
"""Seconds that an answer takes."""


def _changed(change: Callable[[Tensor], Tensor]) -> Callable[[Parcel], Parcel]:
    def tampered(parcel: Parcel) -> Parcel:
        return parcel._replace(
            payload=save({name: change(tensor) for name, tensor in load(parcel.payload).items()})
        )

    return tampered


def _slow(seconds: float) -> Callable[[Parcel], Parcel]:
    def tampered(parcel: Parcel) -> Parcel:
        time.sleep(seconds)
        return parcel

    return tampered


FAULTS: dict[str, Callable[[Parcel], Parcel]] = {
    "nan": _changed(lambda t: t * float("nan") if t.is_floating_point() else t),
    "shape": _changed(lambda t: torch.zeros(*t.shape, 3, dtype=t.dtype)),
    # A safetensors file begins with the length of what comes first.
    "huge": lambda parcel: parcel._replace(payload=(2 << 30).to_bytes(8, "little") + b"{}"),
    "late": _slow(LATE),
    "never": _slow(NEVER),
}


def spoil(fault: str) -> None:
    """Let the first update that this client sends go wrong; ``never`` is for all of them."""
    honest, left = Worker.answer, [1]

    def answer(worker: Worker, parcel: Parcel) -> Parcel:
        found = honest(worker, parcel)
        if not found.payload or (not left and fault != "never"):
            return found
        left.clear()
        return FAULTS[fault](found)

    setattr(Worker, "answer", answer)  # noqa: B010 - for the whole of this process


if __name__ == "__main__":
    spoil(sys.argv.pop(1))
    main()
