"""Admission of clients to a run: before it begins, when it is resumed, and during it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import merge
from ccfcpp.core.errors import UsageError
from ccfcpp.data.image_size import common_shape
from ccfcpp.deployment.link.messages import Request, new_token
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.admission import Admission
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolment import Enrolment, first_spec
from ccfcpp.engine.client import Member

if TYPE_CHECKING:
    from ccfcpp.deployment.keys.roster import SignedRoster


def enrol(
    channel: Channel,
    config: RunConfig,
    command: str,
    names: Sequence[str],
    least: int | None,
    roster: "SignedRoster | None" = None,
) -> Enrolment:
    """Ask the admitted clients for facts on their images, until ``least`` can take part.

    With None, it is until all that can take part have answered. Clients are numbered in the order
    of ``names``. With secure sums each is sent the roster that the authority has signed.
    """
    spec = first_spec(command, config.model_dump(mode="json"))
    if roster is not None:
        spec = spec.model_copy(update={"roster": roster.digest})
    nobody = Enrolment(new_token(), spec, (), math.inf)
    return Enroller(channel, nobody, config, names, roster=roster, least=least).gathered()


def wait_for_clients(channel: Channel, enrolment: Enrolment, least: int | None) -> None:
    """Wait until the clients of a resumed run are connected again."""
    names = [member.name for member in enrolment.members]
    wanted = min(least or len(names), len(names))
    known: set[str] = set()
    while True:
        online = channel.link.online().keys() & names
        for name in sorted(online - known):
            channel.observer.on_answer(name, "there")
        if len(online) >= wanted:
            return
        known = online
        time.sleep(channel.timeouts.poll)


class Enroller:
    """Enrols admitted clients that do not take part in a run yet.

    In the handshake a server asks a client for facts on its images.

    Args:
        channel: The channel to the clients.
        enrolment: The clients that take part; none before the run.
        config: Configuration of the run.
        admitted: All clients that are admitted; a client's number is its position here, unless
            another client has it.
        grew: Called with the enrolment when clients have joined.
        roster: With secure sums: the roster that clients are sent, to identify each other.
        least: Number of clients that ``gathered`` waits for; None: all that can take part.

    Attributes:
        names: Names of the clients that may join.
    """

    def __init__(
        self,
        channel: Channel,
        enrolment: Enrolment,
        config: RunConfig,
        admitted: Sequence[str],
        grew: Callable[[Enrolment], None] = lambda enrolment: None,
        roster: "SignedRoster | None" = None,
        least: int | None = None,
    ) -> None:
        self.enrolment = enrolment
        self.config = config
        self.admitted = admitted
        self.grew = grew
        there = {member.name for member in enrolment.members}
        spec = enrolment.spec
        absent = [name for name in admitted if name not in there]
        self.names = absent if not there or _may_come(spec, roster) else []
        like = _alike(spec) if there else None
        # Only a clustering may learn of new classes while it runs.
        classes = spec.classes if there and spec.command == "classify" else None
        self._admission = Admission(self.names, least, channel.observer, like, classes)
        self._channel = channel
        # Of classes the run may learn more, and a client must not refuse what it adds.
        self._told = spec.model_copy(update={"classes": ()})
        self._payload = roster.content if roster else b""
        self._quickest = min(enrolment.seconds, channel.timeouts.answer)
        self._asked: dict[str, tuple[Request, str, float]] = {}

    def gathered(self) -> Enrolment:
        """Wait for as many clients as the run needs; return the enrolment with these.

        There is no time limit.

        Raises:
            UsageError: There are none, or too few can take part.
        """
        if not self.names:
            raise UsageError(
                "no client of the roster is new: put the .pub files of new clients there"
            )
        while not self._admission.is_complete:
            self._look()
            if self._admission.waiting:
                time.sleep(self._channel.timeouts.poll)
        found = self.come()
        assert found is not None
        return found

    def come(self) -> Enrolment | None:
        """Ask clients that came online; return the enrolment with those that answered, if any."""
        if not self.names:
            return None
        self._look()
        there = {member.name for member in self.enrolment.members}
        admitted = self._admission.admitted().items()
        new = {name: facts for name, facts in admitted if name not in there}
        if not new:
            return None
        self.enrolment = self._with(new)
        self.grew(self.enrolment)
        return self.enrolment

    def _look(self) -> None:
        """Ask clients that have come online, and process the answers that have come."""
        self._ask()
        for name, (request, ticket, since) in list(self._asked.items()):
            answer, seconds = self._channel.link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < self._channel.timeouts.answer:
                continue
            del self._asked[name]
            # A client without an answer is asked again.
            if answer is not None and not isinstance(answer, Undelivered):
                self._admission.take(name, request, answer)
                self._quickest = min(self._quickest, seconds)

    def _ask(self) -> None:
        link = self._channel.link
        online = link.online()
        for name in self._admission.waiting:
            if name in self._asked or name not in online:
                continue
            run, nonce = self.enrolment.run, new_token()
            request = Request(kind="hello", run=run, nonce=nonce, spec=self._told)
            packet = Packet(request.written(), self._payload)
            ticket = link.push(online[name], packet, self._channel.timeouts.life)
            if ticket is not None:
                self._asked[name] = request, ticket, time.monotonic()

    def _with(self, new: Mapping[str, Facts]) -> Enrolment:
        """Return the enrolment with more clients, given their facts."""
        before = self.enrolment
        spec, members = before.spec, {member.id: member for member in before.members}
        for name, facts in new.items():
            place = self.admitted.index(name)
            number = place if place not in members else max(members) + 1
            members[number] = Member(number, name, facts.samples)
        classes = set(spec.classes).union(*(facts.classes for facts in new.values()))
        samples = spec.samples + sum(facts.samples for facts in new.values())
        known: Tree = {
            "classes": tuple(sorted(classes)),
            "samples": samples,
            "clients": len(members),
        }
        if not before.members:
            known |= _settled(spec, list(new.values()), samples, self.config)
        return replace(
            before,
            spec=spec.model_copy(update=known),
            members=tuple(members[number] for number in sorted(members)),
            seconds=self._quickest,
            skipped=before.skipped + sum(facts.skipped for facts in new.values()),
        )


def _settled(spec: RunSpec, known: Sequence[Facts], samples: int, config: RunConfig) -> Tree:
    """Return the settings that a run's first clients determine, such as the images' shape."""
    first = known[0]
    shape: tuple[int, ...] = (first.length,)
    if not first.length:
        sizes = [facts.sizes for facts in known if facts.sizes]
        shape = common_shape(sizes, spec.config["data"]["image_size"])
    wanted = 0
    if isinstance(config, ClusterConfig):
        wanted = config.most_clusters(samples, 0, first.unit)
    found: Tree = {"image_shape": shape, "columns": first.columns, "clusters": wanted}
    if first.encoder:
        found["config"] = merge(spec.config, {"data": {"encoder_hash": first.encoder}})
    return found


def _may_come(spec: RunSpec, roster: "SignedRoster | None") -> bool:
    """Return whether clients may join after the start.

    Noise is for a fixed number of clients. Secure sums need the roster that was signed at the
    start, which a resumed run does not have.
    """
    known = not spec.privacy.secure_sums or (roster is not None and roster.digest == spec.roster)
    return spec.privacy.level == "none" and known


def _alike(spec: RunSpec) -> Facts:
    """Return facts of a client that fits the run."""
    length = spec.image_shape[0] if spec.unit == "vector" else 0
    encoder = spec.config.get("data", {}).get("encoder_hash") or ""
    own = {"columns": spec.columns, "encoder": encoder, "classes": spec.classes}
    return Facts(samples=1, length=length, **own)
