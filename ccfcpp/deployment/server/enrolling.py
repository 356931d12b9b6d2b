"""Admission of clients to a run: before it begins, when it is resumed, and during the run."""

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


_LONG = 30 * 86_400.0
"""Seconds for which an answer waits to be read: in a run it is read when the round is over."""


def enrol(
    channel: Channel,
    config: RunConfig,
    names: Sequence[str],
    least: int | None,
    roster: "SignedRoster | None" = None,
) -> Enrolment:
    """Ask clients for facts (such as their number of images) until enough can take part.

    ``names`` are those of all clients, in the order of their numbers; the other arguments are those
    of ``Enroller``.
    """
    spec = first_spec(config)
    if roster is not None:
        spec = spec.model_copy(update={"roster": roster.digest})
    nobody = Enrolment(new_token(), spec, (), math.inf)
    return Enroller(channel, nobody, config, names, roster=roster, least=least).gather()


def wait_for_clients(channel: Channel, enrolment: Enrolment, least: int | None) -> None:
    """Wait until ``least`` clients of a resumed run (None: all) are online again."""
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
    """Asks new clients for facts on their images, and adds those that are suitable to a run.

    Args:
        channel: Connection to the clients.
        enrolment: The clients that take part already; none before the run.
        config: Configuration of the run.
        admitted: Names of all clients that may ever join; a client's number is its position here,
            unless another client has that number.
        on_growth: Called with the larger enrolment when clients have joined.
        roster: For secure sums: the signed list of clients' keys, which is sent to each client.
        least: Number of clients that ``gather`` waits for; None: all that can take part.

    Attributes:
        names: Names of the clients that may join.
    """

    def __init__(
        self,
        channel: Channel,
        enrolment: Enrolment,
        config: RunConfig,
        admitted: Sequence[str],
        on_growth: Callable[[Enrolment], None] = lambda enrolment: None,
        roster: "SignedRoster | None" = None,
        least: int | None = None,
    ) -> None:
        self.enrolment = enrolment
        self.config = config
        self.admitted = admitted
        self.on_growth = on_growth
        there = {member.name for member in enrolment.members}
        spec = enrolment.spec
        absent = [name for name in admitted if name not in there]
        self.names = absent if not there or _may_join(spec, roster) else []
        required = _required_facts(spec) if there else None
        # During a run, only clustering can add classes.
        classes = spec.classes if there and spec.command == "classify" else None
        self._admission = Admission(self.names, least, channel.observer, required, classes)
        self._channel = channel
        # Clients are not sent the classes, since they would refuse new ones.
        self._spec = spec.model_copy(update={"classes": ()})
        self._payload = roster.content if roster else b""
        self._quickest = min(enrolment.seconds, channel.timeouts.answer)
        self._asked: dict[str, tuple[Request, str, float]] = {}

    def gather(self) -> Enrolment:
        """Wait without time limit until enough clients can take part; return the run's clients.

        Raises:
            UsageError: There are no new clients, or too few of them can take part.
        """
        if not self.names:
            raise UsageError(
                "no client of the roster is new: put the .pub files of new clients there"
            )
        while not self._admission.is_complete:
            self._poll_clients()
            if self._admission.waiting:
                time.sleep(self._channel.timeouts.poll)
        enrolment = self.enrol_newcomers()
        assert enrolment is not None
        return enrolment

    def enrol_newcomers(self) -> Enrolment | None:
        """Ask new clients, without waiting; return the run's clients if some joined, else None."""
        if not self.names:
            return None
        self._poll_clients()
        there = {member.name for member in self.enrolment.members}
        admitted = self._admission.admitted().items()
        new = {name: facts for name, facts in admitted if name not in there}
        if not new:
            return None
        self.enrolment = self._enrolment_with(new)
        self.on_growth(self.enrolment)
        return self.enrolment

    def _poll_clients(self) -> None:
        """Ask clients that are newly online for facts; process the responses that have arrived."""
        self._ask()
        for name, (request, ticket, since) in list(self._asked.items()):
            answer, seconds = self._channel.link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < self._channel.timeouts.answer:
                continue
            del self._asked[name]
            # A client that has not answered in time is asked again.
            if answer is not None and not isinstance(answer, Undelivered):
                self._admission.record_answer(name, request, answer)
                self._quickest = min(self._quickest, seconds)

    def _ask(self) -> None:
        link = self._channel.link
        online = link.online()
        for name in self._admission.waiting:
            if name in self._asked or name not in online:
                continue
            run, nonce = self.enrolment.run, new_token()
            request = Request(kind="hello", run=run, nonce=nonce, spec=self._spec)
            packet = Packet(request.to_json(), self._payload)
            ticket = link.push(online[name], packet, max(_LONG, self._channel.timeouts.life))
            if ticket is not None:
                self._asked[name] = request, ticket, time.monotonic()

    def _enrolment_with(self, new: Mapping[str, Facts]) -> Enrolment:
        """Return the run's clients with the ``new`` ones, whose facts are given by name."""
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
            known |= _shared_settings(spec, list(new.values()), samples, self.config)
        return replace(
            before,
            spec=spec.model_copy(update=known),
            members=tuple(members[number] for number in sorted(members)),
            seconds=self._quickest,
            skipped=before.skipped + sum(facts.skipped for facts in new.values()),
        )


def _shared_settings(
    spec: RunSpec, known: Sequence[Facts], samples: int, config: RunConfig
) -> Tree:
    """Return the fields of a run's description that follow from its first clients' facts."""
    first = known[0]
    shape: tuple[int, ...] = (first.length,)
    if not first.length:
        sizes = [facts.sizes for facts in known if facts.sizes]
        shape = common_shape(sizes, spec.config["data"]["image_size"])
    clusters = 0
    if isinstance(config, ClusterConfig):
        clusters = config.most_clusters(samples, 0, first.unit)
    settings: Tree = {"image_shape": shape, "columns": first.columns, "clusters": clusters}
    if first.encoder:
        settings["config"] = merge(spec.config, {"data": {"encoder_hash": first.encoder}})
    return settings


def _may_join(spec: RunSpec, roster: "SignedRoster | None") -> bool:
    """Return whether clients may join after the start of a run.

    With differential privacy they may not, since the noise is for a fixed number of clients. Secure
    sums need the list of keys (roster) signed at the start, which a resumed run does not have.
    """
    known = not spec.privacy.secure_sums or (roster is not None and roster.digest == spec.roster)
    return spec.privacy.level == "none" and known


def _required_facts(spec: RunSpec) -> Facts:
    """Return facts whose kind of samples, columns and encoder a new client must match."""
    length = spec.image_shape[0] if spec.unit == "vector" else 0
    encoder = spec.config.get("data", {}).get("encoder_hash") or ""
    own = {"columns": spec.columns, "encoder": encoder, "classes": spec.classes}
    return Facts(samples=1, length=length, **own)
