"""The greeting: a server asks clients what they hold, before a run or while it is under way."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ccfcpp.deployment.link.messages import Request, new_token
from ccfcpp.deployment.link.packet import Link, Packet, Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.reception import Reception
from ccfcpp.deployment.server.transport import Timeouts


@dataclass(frozen=True)
class Greeting:
    """The first message to a client: a run's description and token, and what comes with them."""

    spec: RunSpec
    run: str
    payload: bytes = b""


class Greeter:
    """Asks clients for their facts as they come online.

    Attributes:
        quickest: The seconds of the quickest response so far.
    """

    def __init__(self, link: Link, greeting: Greeting, timeouts: Timeouts) -> None:
        self.link = link
        self.greeting = greeting
        self.timeouts = timeouts
        self.quickest = timeouts.answer
        self._asked: dict[str, tuple[Request, str, float]] = {}

    def greet(self, reception: Reception) -> None:
        """Ask all clients until the run can begin. There is no limit of time for that."""
        while not reception.is_complete:
            self.look(reception)
            if reception.waiting:
                time.sleep(self.timeouts.poll)

    def look(self, reception: Reception) -> None:
        """Ask those that have come online, and take the answers that have come."""
        self._ask(reception.waiting)
        for name, (request, ticket, since) in list(self._asked.items()):
            answer, seconds = self.link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < self.timeouts.answer:
                continue
            del self._asked[name]
            # A client without an answer is asked again.
            if answer is not None and not isinstance(answer, Undelivered):
                reception.take(name, request, answer)
                self.quickest = min(self.quickest, seconds)

    def _ask(self, names: Sequence[str]) -> None:
        online, greeting = self.link.online(), self.greeting
        for name in names:
            if name in self._asked or name not in online:
                continue
            request = Request(kind="hello", run=greeting.run, nonce=new_token(), spec=greeting.spec)
            packet = Packet(request.written(), greeting.payload)
            ticket = self.link.push(online[name], packet, self.timeouts.life)
            if ticket is not None:
                self._asked[name] = request, ticket, time.monotonic()
