"""Clients that come while a run is under way: between two rounds they are asked and taken in."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.admission import Admission
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.handshake import Handshake
from ccfcpp.engine.client import Member

if TYPE_CHECKING:
    from ccfcpp.deployment.keys.roster import SignedRoster


class Latecomers:
    """The admitted clients that take no part in a run yet.

    Args:
        channel: The way to the clients.
        enrolment: The clients that take part.
        admitted: All clients that are admitted; a client's number is its place here, where no
            other client has it.
        grew: Called with the enrolment when clients have been taken in.
        roster: With secure sums: what clients are sent, to know each other by.

    Attributes:
        names: Of those that may come.
    """

    def __init__(
        self,
        channel: Channel,
        enrolment: Enrolment,
        admitted: Sequence[str],
        grew: Callable[[Enrolment], None] = lambda enrolment: None,
        roster: "SignedRoster | None" = None,
    ) -> None:
        self.enrolment = enrolment
        self.admitted = admitted
        self.grew = grew
        there = {member.name for member in enrolment.members}
        spec = enrolment.spec
        absent = [name for name in admitted if name not in there]
        self.names = absent if may_come(spec, roster) else []
        # Only a clustering may learn of new classes while it runs.
        known = spec.classes if spec.command == "classify" else None
        self._admission = Admission(self.names, None, channel.observer, _alike(spec), known)
        # Of classes the run may learn more, and a client must not refuse what it adds.
        told = spec.model_copy(update={"classes": ()})
        payload = roster.content if roster else b""
        self._handshake = Handshake(channel, told, enrolment.run, payload, self._admission)

    def gathered(self, least: int | None) -> Enrolment:
        """Wait for so many of them, or for all that can; return the enrolment with these.

        Raises:
            UsageError: There are none, or too few can take part.
        """
        if not self.names:
            raise UsageError(
                "no client of the roster is new: put the .pub files of new clients there"
            )
        self._admission.least = least
        self._handshake.complete()
        found = self.come()
        assert found is not None
        return found

    def come(self) -> Enrolment | None:
        """Ask who has come online; return the enrolment with those that have answered, if any."""
        if not self.names:
            return None
        self._handshake.look()
        facts = self._admission.admitted()
        there = {member.name for member in self.enrolment.members}
        new = {name: found for name, found in facts.items() if name not in there}
        if not new:
            return None
        self.enrolment = enlarged(self.enrolment, new, self.admitted)
        self.grew(self.enrolment)
        return self.enrolment


def may_come(spec: RunSpec, roster: "SignedRoster | None") -> bool:
    """Whether clients may come after the start.

    Noise is for a fixed number of clients. Secure sums need the roster that was signed at the
    start, which a resumed run does not have.
    """
    known = not spec.privacy.secure_sums or (roster is not None and roster.digest == spec.roster)
    return spec.privacy.level == "none" and known


def _alike(spec: RunSpec) -> Facts:
    """Facts of a client that fits the run."""
    length = spec.image_shape[0] if spec.unit == "vector" else 0
    encoder = spec.config.get("data", {}).get("encoder_hash") or ""
    own = {"columns": spec.columns, "encoder": encoder, "classes": spec.classes}
    return Facts(samples=1, length=length, **own)


def enlarged(enrolment: Enrolment, facts: dict[str, Facts], admitted: Sequence[str]) -> Enrolment:
    """Return the enrolment with more clients, of which these facts are known."""
    spec, members = enrolment.spec, {member.id: member for member in enrolment.members}
    for name, found in facts.items():
        place = admitted.index(name)
        number = place if place not in members else max(members) + 1
        members[number] = Member(number, name, found.samples)
    classes = set(spec.classes).union(*(found.classes for found in facts.values()))
    more = {
        "classes": tuple(sorted(classes)),
        "samples": spec.samples + sum(found.samples for found in facts.values()),
        "clients": len(members),
    }
    return replace(
        enrolment,
        spec=spec.model_copy(update=more),
        members=tuple(members[number] for number in sorted(members)),
        skipped=enrolment.skipped + sum(found.skipped for found in facts.values()),
    )
