"""Selection of the clients that may take part in a run, by facts that they send on their data."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count
from ccfcpp.deployment.link.messages import MessageError, Request, Response
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts
from ccfcpp.deployment.link.server_status import LEFT_OUT
from ccfcpp.deployment.server.channel import Observer

_MOST_SAMPLES = 10**7
_MOST_CLASSES, _MOST_LETTERS = 2000, 2**18
"""Largest number of classes of a client, and largest total length of all clients' class names."""


@dataclass
class Admission:
    """Clients that may take part in a run, chosen by facts on their data (number, type, classes).

    A client with invalid or unsuitable facts is refused, so that the others can run without it.

    Attributes:
        names: Names of all clients that may take part.
        least: Smallest number of clients that must take part; None: all that can.
        observer: Notified of each client.
        required: Facts whose type of samples (images, or vectors of some length and encoder) all
            clients must match; None: the majority decides.
        classes: All classes that a client may have; None: any.
        facts: Facts of the clients that can take part, by name.
        refused: Names of the clients that cannot take part.
    """

    names: Sequence[str]
    least: int | None
    observer: Observer
    required: Facts | None = None
    classes: Collection[str] | None = None
    facts: dict[str, Facts] = field(default_factory=dict, init=False)
    refused: set[str] = field(default_factory=set, init=False)

    @property
    def waiting(self) -> list[str]:
        """Names of the clients that have not answered yet."""
        return [n for n in self.names if n not in self.facts and n not in self.refused]

    @property
    def is_complete(self) -> bool:
        """Whether enough suitable clients have answered for the run to begin.

        Those whose type of samples differs from the majority's are refused here.

        Raises:
            UsageError: The run can never begin, since too many clients are refused.
        """
        if len(self.facts) >= self._wanted and not self._refuse_minority():
            return False
        wanted = self._wanted
        if len(self.facts) >= wanted:
            return True
        if len(self.names) - len(self.refused) < wanted or not self.waiting:
            raise UsageError(
                f"{len(self.refused)} of {len(self.names)} clients cannot take part, and the run "
                f"needs {wanted}: see their reasons above"
            )
        return False

    def record_answer(self, name: str, request: Request, packet: Packet) -> None:
        """Record a client's facts from its response; refuse the client if they are not suitable.

        Args:
            name: The client's name.
            request: The request for facts, which the response answers.
            packet: The response.
        """
        try:
            facts = _read_facts(request, packet)
            if self.required:
                _check_sample_type(facts, self.required)
            self._check_classes(facts)
        except MessageError as error:
            self.refuse(name, str(error))
        else:
            other = any(_sample_type(each) != _sample_type(facts) for each in self.facts.values())
            self.facts[name] = facts
            skipped = f", {format_count(facts.skipped, 'file')} left out" if facts.skipped else ""
            unlike = "; not all clients hold this kind: most of them decide" if other else ""
            self.observer.on_answer(name, f"{facts.samples:,} {facts.unit}s{skipped}{unlike}")

    def refuse(self, name: str, reason: str) -> None:
        """Exclude a client from the run, and tell the observer the reason."""
        self.facts.pop(name, None)
        self.refused.add(name)
        self.observer.on_answer(name, f"{LEFT_OUT}: {reason}")

    def admitted(self) -> dict[str, Facts]:
        """Return the facts of the clients that take part, by name, in the order of ``names``."""
        return {name: self.facts[name] for name in self.names if name in self.facts}

    @property
    def _wanted(self) -> int:
        return self.least or max(1, len(self.names) - len(self.refused))

    def _refuse_minority(self) -> bool:
        """Refuse clients whose samples differ in type from those of the majority.

        Returns:
            Whether there is a majority. While some clients have not answered, it must be as large
            as the run needs.
        """
        sample_types = Counter(map(_sample_type, self.facts.values()))
        counts = sorted(sample_types.values())
        if self.waiting and (counts[-1] < self._wanted or counts[-1:] == counts[-2:-1]):
            return False
        usual = max(self.facts.values(), key=lambda facts: sample_types[_sample_type(facts)])
        for name, facts in list(self.facts.items()):
            try:
                _check_sample_type(facts, usual)
            except MessageError as error:
                self.refuse(name, str(error))
        return True

    def _check_classes(self, facts: Facts) -> None:
        if self.classes is not None and (new := sorted(set(facts.classes) - set(self.classes))):
            raise MessageError(f"the run knows no class {new[0]!r}")
        known = {name for each in self.facts.values() for name in each.classes}
        known |= set(self.required.classes) if self.required else set()
        together = known.union(facts.classes)
        letters = len(json.dumps(list(together), ensure_ascii=False).encode())
        if len(facts.classes) > _MOST_CLASSES or letters > _MOST_LETTERS:
            raise MessageError(
                f"it names {len(facts.classes):,} classes; a client may name {_MOST_CLASSES:,}, "
                f"and all together may have {_MOST_LETTERS:,} letters"
            )


def _sample_type(facts: Facts) -> tuple[object, ...]:
    """Return the properties of samples in which all clients of a run must agree."""
    return facts.unit, facts.encoder, facts.length, frozenset(facts.columns)


def _check_sample_type(facts: Facts, usual: Facts) -> None:
    """Raise ``MessageError`` if ``facts`` and ``usual`` differ in the type of their samples."""
    if facts.unit != usual.unit:
        raise MessageError(f"it holds {facts.unit}s, and the others hold {usual.unit}s")
    if facts.encoder != usual.encoder:
        raise MessageError(
            f"its vectors are of {_encoder(facts)}, and those of the others of {_encoder(usual)}: "
            "all need the same"
        )
    if facts.length != usual.length:
        raise MessageError(
            f"its vectors have {facts.length} columns, and those of the others {usual.length}"
        )
    if set(facts.columns) != set(usual.columns):
        raise MessageError("its columns have other names than those of the others")


def _encoder(facts: Facts) -> str:
    return f"an encoder with content hash {facts.encoder[:12]}…" if facts.encoder else "no encoder"


def _read_facts(request: Request, packet: Packet) -> Facts:
    response = Response.read_reply(request, packet.header)
    if response.status != "done" or response.facts is None:
        raise MessageError(response.why)
    samples = response.facts.samples
    if samples == 0:
        raise MessageError(f"it holds no {response.facts.unit}")
    if samples > _MOST_SAMPLES:
        raise MessageError(f"it claims {samples:,} {response.facts.unit}s, over {_MOST_SAMPLES:,}")
    sizes, length, columns = response.facts.sizes, response.facts.length, response.facts.columns
    if (sizes is None) != (length > 0):
        raise MessageError("it must say how large its images are, or how long its vectors")
    if sizes and not (sizes.is_sound and samples <= sizes.images <= _MOST_SAMPLES):
        raise MessageError("what it says of its images' sizes cannot be")
    if columns and (len(columns) != length or len(set(columns)) < length):
        raise MessageError("what it says of its vectors' columns cannot be")
    return response.facts
