"""A client that answers late, or what it should not: ``python -m tests.support.rogue join ...``.

All else is as in ``ccfcpp join``: its key, its node and its worker.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.cli.app import main
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.packet import Packet

_SLOW = 1.5
"""Seconds by which each answer of a slow client is late."""


def _changed(change: Callable[[Tensor], Tensor]) -> Callable[[Packet], Packet]:
    def tampered(packet: Packet) -> Packet:
        return packet._replace(
            payload=save({name: change(tensor) for name, tensor in load(packet.payload).items()})
        )

    return tampered


def _flipped(packet: Packet) -> Packet:
    """Some bits of the packet are others."""
    content, source = bytearray(packet.payload), random.Random(packet.payload)  # noqa: S311
    for _ in range(20):
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    return packet._replace(payload=bytes(content))


FAULTS: dict[str, Callable[[Packet], Packet]] = {
    "flipped": lambda packet: packet._replace(header=_flipped(Packet(b"", packet.header)).payload),
    "garbage": lambda packet: Packet(random.Random(0).randbytes(5000), b"\xff" * 5000),  # noqa: S311
    "half": lambda packet: packet._replace(payload=packet.payload[: len(packet.payload) // 2]),
    "nothing": lambda packet: Packet(b""),
    "nan": _changed(lambda t: t * float("nan") if t.is_floating_point() else t),
    "shape": _changed(lambda t: torch.zeros(*t.shape, 3, dtype=t.dtype)),
    # A safetensors file begins with the length of what comes first.
    "huge": lambda packet: packet._replace(payload=(2 << 30).to_bytes(8, "little") + b"{}"),
}


def slow_down() -> None:
    """Let each answer of this client take longer."""
    honest = Worker.answer

    def answer(worker: Worker, packet: Packet) -> Packet:
        time.sleep(_SLOW)
        return honest(worker, packet)

    setattr(Worker, "answer", answer)  # noqa: B010 - for the whole of this process


def obey(path: Path) -> None:
    """Do, once, what a file says, and delete it: a fault, so many seconds' delay, a clock's jump.

    It happens with the next update that is sent. ``repeat`` sends the last one again in its place,
    and ``twice`` sends it twice.
    """
    from ccfcpp.deployment.client.fleet import _Calls
    from tests.support.clocks import follow_flower

    answer, send, last, ahead = Worker.answer, _Calls.send, [Packet(b"")], [0.0]
    twice: list[str] = []
    follow_flower(lambda: ahead[0])

    def spoilt(worker: Worker, packet: Packet) -> Packet:
        found = answer(worker, packet)
        if not found.payload:
            return found
        before, last[0], word = last[0], found, ""
        with suppress(OSError):
            word = path.read_text()
            path.unlink()
        what, _, value = word.partition(" ")
        if what == "late":
            time.sleep(float(value))
        elif what == "clock":
            ahead[0] += float(value)
        elif what == "repeat":
            return before
        elif what == "twice":
            twice.append(what)
        return FAULTS[what](found) if what in FAULTS and not value else found

    def again(calls: _Calls, *reply: object) -> None:
        for _ in range(1 + len(twice)):
            send(calls, *reply)  # type: ignore[arg-type]
        twice.clear()

    setattr(Worker, "answer", spoilt)  # noqa: B010 - for the whole of this process
    setattr(_Calls, "send", again)  # noqa: B010


if __name__ == "__main__":
    slow_down()
    main()
