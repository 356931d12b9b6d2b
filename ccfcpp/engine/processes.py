"""Several processes that ``torchrun`` has started, and what they send each other.

Nothing that is sent is pickled: it is JSON and the bytes of tensors, so that a message can never
run code.
"""

import atexit
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ccfcpp.core.errors import FederationError

_LONGEST = timedelta(days=7)
"""Longest time in which a process may answer: another one may train, or score, for hours."""
_MOST_PENDING = 12
"""Parts of packets that may wait for their receiver: an update may be as large as a model."""

Facts = dict[Any, Any]
"""Values of JSON, by name."""


@dataclass(frozen=True)
class Packet:
    """A message from one process to another.

    Attributes:
        facts: Values that JSON can hold.
        tensors: Tensors by name.
    """

    facts: Facts
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class EndedProcessError(FederationError):
    """Another process of the run has ended, for a reason that it says itself."""


@contextmanager
def _reachable() -> Iterator[None]:
    """Turn PyTorch's errors, which tell of the end of another process, into one line."""
    try:
        yield
    except (FederationError, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:
        raise EndedProcessError(
            "another process of the run has ended, with a reason of its own; a command goes on "
            f"with --resume ({str(error).splitlines()[0]})"
        ) from error


class Processes:
    """The processes of one run, which ``torchrun`` has started.

    Attributes:
        rank: The number of this process, from 0.
        count: Number of all processes.
        waits: Whether the others wait for a broadcast of the first one.
    """

    waits = True

    def __init__(self) -> None:
        local, together = (
            int(os.environ.get(f"LOCAL_{name}", 0)) for name in ("RANK", "WORLD_SIZE")
        )
        devices = torch.cuda.device_count()
        if devices:
            torch.cuda.set_device(local % devices)
        # NCCL allows one process for each GPU; others meet in the memory of the machine.
        alone = 0 < together <= devices
        dist.init_process_group("cpu:gloo,cuda:nccl" if alone else "gloo", timeout=_LONGEST)
        # Gloo's threads that still run when the interpreter ends would abort the process.
        atexit.register(dist.destroy_process_group)
        self._link = torch.device("cuda") if alone else torch.device("cpu")
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._pending: list[tuple[dist.Work, Tensor]] = []

    @_reachable()
    def broadcast(self, packet: Packet | None = None) -> Packet:
        """Send a packet of the first process to all others; each returns it."""
        if packet is None:
            return self._decode(lambda part: dist.broadcast(part, 0))
        for part in self._encode(packet):
            dist.broadcast(part, 0)
        return packet

    @_reachable()
    def send(self, packet: Packet, to: int = 0) -> None:
        """Send a packet to another process, which may take it later."""
        for part in self._encode(packet):
            if (work := dist.isend(part, to)) is not None:
                self._pending.append((work, part))
        while len(self._pending) > _MOST_PENDING:
            self._pending.pop(0)[0].wait()

    @_reachable()
    def receive(self, source: int) -> Packet:
        """Take the next packet that a process has sent."""
        return self._decode(lambda part: dist.recv(part, source))

    @_reachable()
    def sum_in_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum tensors of the same names, shapes and dtypes over all processes, in the first one.

        The others get numbers without a meaning.
        """
        totals: dict[str, Tensor] = {}
        ordered = sorted(tensors, key=lambda name: str(tensors[name].dtype))
        for _, names in groupby(ordered, key=lambda name: tensors[name].dtype):
            own = {name: tensors[name] for name in names}
            flat = torch.cat([each.detach().flatten() for each in own.values()]).to(self._link)
            dist.reduce(flat, 0)
            pieces = torch.split(flat, [each.numel() for each in own.values()])
            totals |= {
                name: piece.view(each.shape).to(each.device)
                for (name, each), piece in zip(own.items(), pieces, strict=True)
            }
        return {name: totals[name] for name in tensors}

    def _encode(self, packet: Packet) -> list[Tensor]:
        """Return the length of a head, the head, and the bytes of all tensors, if there are any."""
        # The widest first, so that each begins at a multiple of its width.
        ordered = sorted(packet.tensors.items(), key=lambda item: -item[1].element_size())
        listed = [
            [name, str(each.dtype).removeprefix("torch."), [*each.shape]] for name, each in ordered
        ]
        head = json.dumps([packet.facts, listed]).encode()
        parts = [torch.tensor(len(head)), torch.frombuffer(bytearray(head), dtype=torch.uint8)]
        if listed:
            flat = [each.detach().to(self._link).contiguous().view(-1) for _, each in ordered]
            parts.append(torch.cat([each.view(torch.uint8) for each in flat]))
        return parts

    def _decode(self, fill: Callable[[Tensor], object]) -> Packet:
        """Return a packet, of which ``fill`` writes one part after the other into a tensor."""
        length = torch.tensor(0)
        fill(length)
        head = torch.empty(int(length), dtype=torch.uint8)
        fill(head)
        facts, listed = json.loads(head.numpy().tobytes())
        if not listed:
            return Packet(facts)
        lengths = [_dtype(dtype).itemsize * torch.Size(shape).numel() for _, dtype, shape in listed]
        payload = torch.empty(sum(lengths), dtype=torch.uint8, device=self._link)
        fill(payload)
        pieces = zip(listed, torch.split(payload, lengths), strict=True)
        tensors = {
            name: piece.view(_dtype(dtype)).view(torch.Size(shape))
            for (name, dtype, shape), piece in pieces
        }
        return Packet(facts, tensors)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise FederationError(f"another process has sent numbers of type {name!r}")
    return found


@cache
def processes() -> Processes:
    """Return the processes of this run; the first call waits for all of them."""
    return Processes()
