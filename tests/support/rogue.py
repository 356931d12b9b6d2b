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
from ccfcpp.deployment.link.packet import Packet

SLOW, LATE, NEVER = 1.5, 25.0, 3600.0
"""Seconds that an answer takes."""
_ALWAYS = "slow", "never"


def _changed(change: Callable[[Tensor], Tensor]) -> Callable[[Packet], Packet]:
    def tampered(packet: Packet) -> Packet:
        return packet._replace(
            payload=save({name: change(tensor) for name, tensor in load(packet.payload).items()})
        )

    return tampered


def _slow(seconds: float) -> Callable[[Packet], Packet]:
    def tampered(packet: Packet) -> Packet:
        time.sleep(seconds)
        return packet

    return tampered


FAULTS: dict[str, Callable[[Packet], Packet]] = {
    "nan": _changed(lambda t: t * float("nan") if t.is_floating_point() else t),
    "shape": _changed(lambda t: torch.zeros(*t.shape, 3, dtype=t.dtype)),
    # A safetensors file begins with the length of what comes first.
    "huge": lambda packet: packet._replace(payload=(2 << 30).to_bytes(8, "little") + b"{}"),
    "slow": _slow(SLOW),
    "late": _slow(LATE),
    "never": _slow(NEVER),
}


def spoil(fault: str) -> None:
    """Let the first update that this client sends go wrong; some faults are for all of them."""
    honest, left = Worker.answer, [1]

    def answer(worker: Worker, packet: Packet) -> Packet:
        found = honest(worker, packet)
        if not found.payload or (not left and fault not in _ALWAYS):
            return found
        left.clear()
        return FAULTS[fault](found)

    setattr(Worker, "answer", answer)  # noqa: B010 - for the whole of this process


if __name__ == "__main__":
    spoil(sys.argv.pop(1))
    main()
