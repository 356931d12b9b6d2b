"""The handshake's answers, and the clients that may take part in a run."""

import json
from collections import Counter
from collections.abc import Collection, Sequence

from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count
from ccfcpp.deployment.link.messages import MessageError, Request, Response
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts
from ccfcpp.deployment.link.server_status import LEFT_OUT
from ccfcpp.deployment.server.channel import Observer

_MOST_SAMPLES = 10**7
_MOST_CLASSES, _MOST_LETTERS = 2000, 2**18
"""Largest number of classes of a client, and of the letters of all their names."""


class Admission:
    """Admits clients to a run by their answers.

    The facts that a client states on its images are checked here; it must not keep others from a
    run.

    Args:
        names: All clients that are admitted.
        least: Smallest number of clients that must take part; None: all that can.
        observer: Notified of each client.
        like: Facts that the samples of all must match; None: those of most clients that answer.
        classes: All classes that a client may have; None: any.
    """

    def __init__(
        self,
        names: Sequence[str],
        least: int | None,
        observer: Observer,
        like: Facts | None = None,
        classes: Collection[str] | None = None,
    ) -> None:
        self.names = names
        self.least = least
        self.observer = observer
        self.like = like
        self.classes = classes
        self.found: dict[str, Facts] = {}
        self.refused: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """The clients that have not answered."""
        return [n for n in self.names if n not in self.found and n not in self.refused]

    @property
    def is_complete(self) -> bool:
        """Whether the run can begin.

        Raises:
            UsageError: It never can: too many clients cannot take part.
        """
        if len(self.found) >= self._wanted and not self._leave_out_other_kinds():
            return False
        wanted = self._wanted
        if len(self.found) >= wanted:
            return True
        if len(self.names) - len(self.refused) < wanted or not self.waiting:
            raise UsageError(self._why_not(wanted))
        return False

    def take(self, name: str, request: Request, packet: Packet) -> None:
        """Record the answer of a client."""
        try:
            facts = _facts(request, packet)
            if self.like:
                _check_kind(facts, self.like)
            self._check_classes(facts)
        except MessageError as error:
            self.refuse(name, str(error))
        else:
            other = any(_kind(each) != _kind(facts) for each in self.found.values())
            self.found[name] = facts
            skipped = f", {format_count(facts.skipped, 'file')} left out" if facts.skipped else ""
            unlike = "; not all clients hold this kind: most of them decide" if other else ""
            self.observer.on_answer(name, f"{facts.samples:,} {facts.unit}s{skipped}{unlike}")

    def refuse(self, name: str, reason: str) -> None:
        """Leave a client out of the run, for a reason that the observer is told."""
        self.found.pop(name, None)
        self.refused.add(name)
        self.observer.on_answer(name, f"{LEFT_OUT}: {reason}")

    def admitted(self) -> dict[str, Facts]:
        """Return the facts of those that take part, in the order of names."""
        return {name: self.found[name] for name in self.names if name in self.found}

    @property
    def _wanted(self) -> int:
        return self.least or max(1, len(self.names) - len(self.refused))

    def _leave_out_other_kinds(self) -> bool:
        """Leave out clients whose samples are not of the kind that most clients hold.

        Returns:
            Whether that is decided: while some have not answered, it is decided by as many as the
            run needs.
        """
        kinds = Counter(map(_kind, self.found.values()))
        counts = sorted(kinds.values())
        if self.waiting and (counts[-1] < self._wanted or counts[-1:] == counts[-2:-1]):
            return False
        usual = max(self.found.values(), key=lambda facts: kinds[_kind(facts)])
        for name, facts in list(self.found.items()):
            try:
                _check_kind(facts, usual)
            except MessageError as error:
                self.refuse(name, str(error))
        return True

    def _check_classes(self, facts: Facts) -> None:
        if self.classes is not None and (new := sorted(set(facts.classes) - set(self.classes))):
            raise MessageError(f"the run knows no class {new[0]!r}")
        known = {name for each in self.found.values() for name in each.classes}
        known |= set(self.like.classes) if self.like else set()
        together = known.union(facts.classes)
        letters = len(json.dumps(list(together), ensure_ascii=False).encode())
        if len(facts.classes) > _MOST_CLASSES or letters > _MOST_LETTERS:
            raise MessageError(
                f"it names {len(facts.classes):,} classes; a client may name {_MOST_CLASSES:,}, "
                f"and all together may have {_MOST_LETTERS:,} letters"
            )

    def _why_not(self, wanted: int) -> str:
        return (
            f"{len(self.refused)} of {len(self.names)} clients cannot take part, and the run needs "
            f"{wanted}: see their reasons above"
        )


def _kind(facts: Facts) -> tuple[object, ...]:
    """Return the sample properties that all clients of a run must have in common."""
    return facts.unit, facts.encoder, facts.length, frozenset(facts.columns)


def _check_kind(facts: Facts, usual: Facts) -> None:
    """Refuse a client whose samples differ from ``usual`` in type, encoder, length or columns."""
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


def _facts(request: Request, packet: Packet) -> Facts:
    response = Response.to(request, packet.header)
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
