"""Clients that send something false: a fault injector at the transport.

No attack looks at a label, and none at what other clients send. What an attacker remembers is what
an honest client would.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member, by_size
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError, Task
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.privacy.hostile_config import AttackConfig
from ccfcpp.privacy.in_words import listed

Parts = dict[str, Tensor]
"""An update, packed."""

_STATISTICS = ("running_mean", "running_var")
_SIZES = ("samples", "sizes", "counts", "supports")


def chosen_attackers(config: AttackConfig, clients: Sequence[int], seed: int) -> list[int]:
    """The hostile ones among some clients, ascending; they follow from the seed alone.

    Raises:
        UsageError: None is hostile, or none is honest.
    """
    count = math.floor(config.attackers * len(clients) + 0.5)
    if not 0 < count < len(clients):
        raise UsageError(
            f"attack.attackers = {config.attackers:g} makes {count} of {len(clients)} clients "
            "hostile: give a share that leaves one of either kind at least"
        )
    order = torch.randperm(len(clients), generator=Randomness(seed).generator("attackers"))
    there = sorted(clients)
    return sorted(there[index] for index in order[:count].tolist())


class Attack:
    """An attack on a run.

    Args:
        config: Which one.
        system: The system's name.
        exchanges: All that its clients can be asked for.
        members: The connected clients.
        randomness: The run's source.

    Attributes:
        attackers: The hostile clients' numbers, ascending.

    Raises:
        UsageError: The attack finds nothing to act on, or a kind of client is missing.
    """

    def __init__(
        self,
        config: AttackConfig,
        system: str,
        exchanges: Iterable[Exchange[Any, Any]],
        members: Sequence[Member],
        randomness: Randomness,
    ) -> None:
        self.config = config
        self.randomness = randomness
        self.attackers = chosen_attackers(config, [m.id for m in members], randomness.seed)
        self._honest = {member.id: member.samples for member in members}
        if not any(acts_on(config.kind, exchange) for exchange in exchanges):
            raise UsageError(
                f"attack.kind = {config.kind} finds nothing to act on in {system}: take another "
                "attack, or another system"
            )

    def between(self, inner: Transport) -> Transport:
        """The transport of the loop, from that of the clients, each of which answers by itself."""
        return Hostile(inner, self)

    def known(self, members: Sequence[Member]) -> list[Member]:
        """What the server knows of the clients: it takes their sizes for what they say."""
        return [replace(member, samples=self.claimed(member.id)) for member in members]

    def true(self, members: Sequence[Member]) -> list[Member]:
        """What clients really are, in the order in which they work."""
        return by_size(replace(member, samples=self._honest[member.id]) for member in members)

    def claimed(self, client: int) -> int:
        """As how many images a client has it passes itself off."""
        held = self._honest[client]
        lies = self.config.kind == "false-sizes" and client in self.attackers
        return max(1, round(held * self.config.scale)) if lies else held

    def falsified(self, task: Task, message: Any, update: Any, client: int) -> Any:
        """What an attacker sends for what it should."""
        draw = self.randomness.at_round(task.round).of_client(client)
        generator = draw.generator(f"attack {task.index}")
        before = pack(message)
        parts = _ATTACKS[self.config.kind](pack(update), before, self.config.scale, generator)
        for name, part in parts.items():
            if name == "samples":
                parts[name] = torch.tensor(self.claimed(client), dtype=part.dtype)
        return unpack(type(update), parts)

    def header(self) -> str:
        """What a run says before its first round."""
        return (
            f"ATTACK, to measure its effect: {self.config.kind} by {len(self.attackers)} of "
            f"{len(self._honest)} clients ({listed(self.attackers)})"
        )

    def describe(self) -> dict[str, object]:
        """What a summary says of it."""
        return {
            "kind": self.config.kind,
            "attackers": self.attackers,
            "share": len(self.attackers) / len(self._honest),
            "scale": self.config.scale,
        }


@dataclass
class Hostile:
    """A transport on which some clients' updates are false.

    Attributes:
        inner: Takes tasks to the clients.
        attack: What becomes of the updates.
    """

    inner: Transport
    attack: Attack

    def __post_init__(self) -> None:
        self.save = self.inner.save
        self.restore = self.inner.restore
        self.settle = self.inner.settle

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """The clients' replies, those of attackers falsified."""
        # Their owners' machines know how many images there are.
        for reply in self.inner.deliver(task, message, self.attack.true(members)):
            hostile = reply.client in self.attack.attackers
            if hostile and not isinstance(reply.update, RefusedUpdateError):
                update = self.attack.falsified(task, message, reply.update, reply.client)
                reply = replace(reply, update=update)
            yield reply


def acts_on(kind: str, exchange: Exchange[Any, Any]) -> bool:
    """Whether an attack changes anything in the updates of an exchange."""
    if not exchange.travels:
        return False
    fields = {field.name for field in dataclasses.fields(exchange.update)}
    if kind == "one-point":
        return bool(fields & {"centroids", "local"}) or fields == {"sums", "counts"}
    if kind == "false-sizes":
        return bool(fields & set(_SIZES)) or "gradient" in fields
    return bool(fields & {"model", "centroids", "sums", "gradient"})


def _learned(parts: Mapping[str, Tensor]) -> list[str]:
    """The parts that say what a client has learned.

    Running statistics, sizes and sums that must fit each other stay honest: with false ones the
    server's checks would refuse an update.
    """
    return [name for name, part in parts.items() if part.is_floating_point() and _is_learned(name)]


def _is_learned(name: str) -> bool:
    first, last = name.partition("/")[0], name.rpartition("/")[2]
    if first == "model":
        return not name.endswith(_STATISTICS)
    return first in ("gradient", "slopes") or name == "sums" or last == "centroids"


def _before(name: str, part: Tensor, message: Mapping[str, Tensor]) -> Tensor:
    """From where a part counts: a model's change is what was learned; all else counts from 0."""
    return message[name] if name.startswith("model/") else torch.zeros_like(part)


def _scaled(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    changed = {}
    for name in _learned(parts):
        start = _before(name, parts[name], message)
        changed[name] = start + scale * (parts[name] - start)
    return parts | changed


def _flipped(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    return _scaled(parts, message, -1.0, generator)


def _noise(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    changed = {}
    for name in _learned(parts):
        part = parts[name]
        start = _before(name, part, message)
        size = (part - start).square().mean().sqrt()
        drawn = torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)
        changed[name] = start + scale * size * drawn
    return parts | changed


def _constant(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    """The size of the numbers that went down, or of the client's own: alike for all attackers."""
    return parts | {
        name: torch.full_like(parts[name], 0.1 if name.startswith("model/") else 1.0)
        for name in _learned(parts)
    }


def _false_sizes(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    """All that adds up over images, so many times."""
    adding = ("sums", "slopes", "gradient", "figures", *_SIZES)
    return {
        name: scale * part
        if part.is_floating_point() and any(piece in adding for piece in name.split("/"))
        else part
        for name, part in parts.items()
    }


def _one_point(
    parts: Parts, message: Mapping[str, Tensor], scale: float, generator: torch.Generator
) -> Parts:
    """All centroids, or means of clusters, at the client's first one."""
    changed: Parts = {}
    for name, part in parts.items():
        if name.rpartition("/")[2] == "centroids":
            changed[name] = part[:1].expand_as(part).clone()
    if parts.keys() == {"sums", "counts"}:
        counts, sums = parts["counts"], parts["sums"]
        held = int((counts > 0).to(torch.uint8).argmax())
        point = sums[held] / counts[held].clamp(min=1)
        changed["sums"] = counts.unsqueeze(1) * point
    return parts | changed


_ATTACKS = {
    "sign-flip": _flipped,
    "scaled": _scaled,
    "noise": _noise,
    "constant": _constant,
    "false-sizes": _false_sizes,
    "one-point": _one_point,
}
