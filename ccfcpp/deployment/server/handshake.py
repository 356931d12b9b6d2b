"""The handshake: a server asks clients what they hold, before a run or while it is under way."""

import time

from ccfcpp.deployment.link.messages import Request, new_token
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.admission import Admission
from ccfcpp.deployment.server.channel import Channel


class Handshake:
    """Asks clients for their facts as they come online.

    Args:
        channel: The way to the clients.
        spec: Description of the run.
        run: Token of the run.
        payload: What is sent with them, such as a roster.
        admission: Takes the answers.

    Attributes:
        quickest: The seconds of the quickest response so far.
    """

    def __init__(
        self, channel: Channel, spec: RunSpec, run: str, payload: bytes, admission: Admission
    ) -> None:
        self.channel = channel
        self.spec = spec
        self.run = run
        self.payload = payload
        self.admission = admission
        self.quickest = channel.timeouts.answer
        self._asked: dict[str, tuple[Request, str, float]] = {}

    def complete(self) -> None:
        """Ask all clients until the run can begin. There is no limit of time for that."""
        while not self.admission.is_complete:
            self.look()
            if self.admission.waiting:
                time.sleep(self.channel.timeouts.poll)

    def look(self) -> None:
        """Ask those that have come online, and take the answers that have come."""
        self._ask()
        for name, (request, ticket, since) in list(self._asked.items()):
            answer, seconds = self.channel.link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < self.channel.timeouts.answer:
                continue
            del self._asked[name]
            # A client without an answer is asked again.
            if answer is not None and not isinstance(answer, Undelivered):
                self.admission.take(name, request, answer)
                self.quickest = min(self.quickest, seconds)

    def _ask(self) -> None:
        link = self.channel.link
        online = link.online()
        for name in self.admission.waiting:
            if name in self._asked or name not in online:
                continue
            request = Request(kind="hello", run=self.run, nonce=new_token(), spec=self.spec)
            packet = Packet(request.written(), self.payload)
            ticket = link.push(online[name], packet, self.channel.timeouts.life)
            if ticket is not None:
                self._asked[name] = request, ticket, time.monotonic()
