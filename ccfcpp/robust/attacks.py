"""Simulated hostile clients, which send false updates, so that the effect can be measured.

No attack uses labels or other clients' updates. An attacker's local state is as if it were honest.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import list_first
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyExchange,
    RefusedUpdateError,
    Task,
    cohort_without_sums,
)
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.update_format import (
    Count,
    Mean,
    Part,
    Sum,
    Votes,
    find_part,
    is_statistic,
    sibling_name,
)
from ccfcpp.robust.config import AttackOfSome, ScaledAttack


def choose_attackers(config: AttackOfSome, clients: Sequence[int], seed: int) -> list[int]:
    """Draw the hostile clients from the seed; return their numbers in ascending order.

    Raises:
        UsageError: No client is hostile, or none is honest.
    """
    count = math.floor(config.attackers * len(clients) + 0.5)
    if not 0 < count < len(clients):
        raise UsageError(
            KeyValue("attack.attackers", config.attackers),
            f" makes {count} of {len(clients)} clients hostile: give a share that leaves one of "
            "either kind at least",
        )
    order = torch.randperm(len(clients), generator=Randomness(seed).generator("attackers"))
    there = sorted(clients)
    return sorted(there[index] for index in order[:count].tolist())


class Attack:
    """A simulated attack: the hostile clients of a run, and how they falsify their updates.

    Args:
        exchanges: All exchanges of the system.
        members: All clients with their true sizes.

    Attributes:
        attackers: The hostile clients' numbers, ascending.

    Raises:
        UsageError: The attack changes no exchange, or no client is hostile, or none is honest.
    """

    def __init__(
        self,
        config: AttackOfSome,
        system: str,
        exchanges: Iterable[AnyExchange],
        members: Sequence[Member],
        randomness: Randomness,
    ) -> None:
        self.config = config
        self.scale = config.scale if isinstance(config, ScaledAttack) else 1.0
        self.randomness = randomness
        self.attackers = choose_attackers(config, [m.id for m in members], randomness.seed)
        self._honest = {member.id: member.samples for member in members}
        if not any(acts_on(config.kind, exchange) for exchange in exchanges):
            raise UsageError(
                KeyValue("attack.kind", config.kind),
                f" finds nothing to act on in {system}: take another attack, or another system",
            )

    def works(self, works: Mapping[str, AnyClientWork]) -> dict[str, AnyClientWork]:
        """Wrap each ``ClientWork``, by the exchange's name; attackers then send false updates."""
        return {name: AttackedWork(work, self) for name, work in works.items()}

    def reported_members(self, members: Sequence[Member]) -> list[Member]:
        """Return the clients with the sizes that they report to the server."""
        return [replace(member, samples=self.reported_samples(member.id)) for member in members]

    def reported_samples(self, client: int) -> int:
        """Return the number of images that a client reports."""
        held = self._honest[client]
        lies = self.config.kind == "false-sizes" and client in self.attackers
        return max(1, round(held * self.scale)) if lies else held

    def falsify(
        self, exchange: AnyExchange, task: Task, message: object, update: object, client: int
    ) -> object:
        """Return the false update that an attacker sends in place of its true one."""
        draw = self.randomness.at_round(task.round).of_client(client)
        generator = draw.generator(f"attack {task.index}")
        honest = HonestUpdate(exchange.parts, pack(update), pack(message), self.scale, generator)
        tensors = honest.tensors | ATTACKS[self.config.kind](honest)
        if self.config.kind == "false-sizes":
            means = [part.weight for part in exchange.parts.values() if isinstance(part, Mean)]
            for name in tensors.keys() & means:
                tensors[name] = torch.tensor(
                    self.reported_samples(client), dtype=tensors[name].dtype
                )
        return unpack(type(update), tensors)

    def header(self) -> str:
        """Return a line about the attack for the start of a run."""
        return (
            f"ATTACK, to measure its effect: {self.config.kind} by {len(self.attackers)} of "
            f"{len(self._honest)} clients ({list_first(self.attackers)})"
        )

    def describe(self) -> dict[str, object]:
        """Return the attack's facts for the summary of a run."""
        return {
            "kind": self.config.kind,
            "attackers": self.attackers,
            "share": len(self.attackers) / len(self._honest),
            "scale": self.scale,
        }


class AttackedWork(AnyClientWork):
    """Clients' half of an exchange in which attackers send false updates."""

    def __init__(self, work: AnyClientWork, attack: Attack) -> None:
        self.work = work
        self.attack = attack
        self.exchange = work.exchange
        # Each client sends its own update: an attacker cannot falsify its part of a sum.
        self.cohort = cohort_without_sums(work)

    def local_updates(
        self, task: Task, message: object, clients: Sequence[Client], randomness: Randomness
    ) -> list[object]:
        """Return each client's update; attackers' are false."""
        updates = self.work.local_updates(task, message, clients, randomness)
        return [
            update
            if isinstance(update, RefusedUpdateError) or client.id not in self.attack.attackers
            else self.attack.falsify(self.exchange, task, message, update, client.id)
            for client, update in zip(clients, updates, strict=True)
        ]


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class HonestUpdate:
    """An attacker's true update, and what its attack uses to falsify it.

    Attributes:
        parts: Declared meaning of the update's parts, by name.
        tensors: The update, as tensors by name.
        message: The message from the server, likewise.
        scale: Strength of the attack.
        generator: Source of the attack's random numbers.
    """

    parts: Mapping[str, Part]
    tensors: Tensors
    message: Tensors
    scale: float
    generator: torch.Generator

    @property
    def learned(self) -> list[str]:
        """Names of the tensors that attacks change: those that a client has learned.

        Running statistics, sizes and sums that the server checks stay true, since false ones would
        be refused. So do parts that are used only in the report.
        """
        floats = [name for name, tensor in self.tensors.items() if tensor.is_floating_point()]
        return [name for name in floats if self._is_learned(name)]

    def _is_learned(self, name: str) -> bool:
        match find_part(self.parts, name):
            case Mean(report=report):
                return not report and not is_statistic(name)
            case Sum(report=report, statistic=statistic):
                return not report and not statistic
            case part:
                return isinstance(part, Votes)

    def with_changes(self, other: Callable[[Tensor], Tensor]) -> Tensors:
        """Return the learned tensors, by name, with each change replaced by ``other(change)``.

        The change of a mean is from the message; that of other parts is from 0.
        """
        false: Tensors = {}
        for name in self.learned:
            tensor, start = self.tensors[name], torch.zeros_like(self.tensors[name])
            if isinstance(find_part(self.parts, name), Mean):
                start = self.message.get(name, start)
            false[name] = start + other(tensor - start)
        return false

    def noise_like(self, change: Tensor) -> Tensor:
        """Draw normal noise with ``scale`` times the root mean square of a change."""
        size = change.square().mean().sqrt()
        drawn = torch.randn(change.shape, generator=self.generator, dtype=torch.float64)
        return self.scale * size * drawn.to(change)


def acts_on(kind: str, exchange: AnyExchange) -> bool:
    """Return whether an attack of this kind changes the updates of an exchange."""
    parts = exchange.parts.values()
    if not exchange.travels:
        return False
    if kind == "one-point":
        return any(isinstance(p, Votes) or (isinstance(p, Sum) and p.count) for p in parts)
    if kind == "false-sizes":
        return any(isinstance(part, Count | Sum) for part in parts)
    return any(isinstance(part, Mean | Votes | Sum) for part in parts)


def _constant(honest: HonestUpdate) -> Tensors:
    """Return all learned tensors, filled with a constant: 0.1 for models, 1 for others."""
    return {
        name: torch.full_like(
            honest.tensors[name],
            0.1 if isinstance(find_part(honest.parts, name), Mean) else 1.0,
        )
        for name in honest.learned
    }


def _false_sizes(honest: HonestUpdate) -> Tensors:
    """Return all sums and counts, multiplied by ``scale``."""
    return {
        name: honest.scale * tensor
        for name, tensor in honest.tensors.items()
        if tensor.is_floating_point() and isinstance(find_part(honest.parts, name), Sum | Count)
    }


def _one_point(honest: HonestUpdate) -> Tensors:
    """Return all centroids, or clusters' means, moved to the client's first non-empty one."""
    changed: Tensors = {}
    for name, tensor in honest.tensors.items():
        part = find_part(honest.parts, name)
        if isinstance(part, Votes):
            changed[name] = tensor[:1].expand_as(tensor).clone()
        elif isinstance(part, Sum) and part.count is not None:
            counts = honest.tensors[sibling_name(name, part.count)]
            held = int((counts > 0).to(torch.uint8).argmax())
            point = tensor[held] / counts[held].clamp(min=1)
            changed[name] = counts.unsqueeze(1) * point
    return changed


ATTACKS: dict[str, Callable[[HonestUpdate], Tensors]] = {
    "sign-flip": lambda honest: honest.with_changes(torch.neg),
    "scaled": lambda honest: honest.with_changes(lambda change: honest.scale * change),
    "noise": lambda honest: honest.with_changes(honest.noise_like),
    "constant": _constant,
    "false-sizes": _false_sizes,
    "one-point": _one_point,
}
"""Functions that return the false tensors of an update, by the attack's kind."""
