"""The gate: a reverse proxy that lets through the calls that SuperNodes need, and nothing else.

A SuperLink of Flower 1.41 serves all its APIs on one port, over HTTP, and those that start runs and
register keys have no password. So it listens on 127.0.0.1 alone, and the network sees this gate.
SuperNodes use ten calls, each a POST of its own path. The gate forwards a request if its path is
one of these, byte for byte, and forwards it to a constant path: no part of the request decides
where it goes.

The gate does not check who calls. The SuperLink does (``--enable-supernode-auth``), by the
signature in the headers.

A SuperNode that gets no message sleeps for three seconds. So the gate does not answer it at once:
it polls the SuperLink until there is a message.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

MOST_BYTES = 16 * 2**20
"""The largest body of a request. Flower splits large objects into pieces of 5 MiB."""

# "register-node" and "unregister-node" are missing: they serve SuperNodes without a registered key.
_CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
)
OPEN = {path.encode(): path for path in (f"/v1/fleet/{call}" for call in _CALLS)}
"""The paths that are let through: as they come in, and as they are forwarded."""

_LARGE = {"push-object": MOST_BYTES, "push-messages": 2**20}
_SMALL = 2**16
"""The largest body of all other calls, which name a node, a message or an object."""
_MOST_OF = {path: _LARGE.get(path.rpartition("/")[2], _SMALL) for path in OPEN.values()}

_REQUEST_HEADERS = (
    *("accept", "content-type", "content-length"),
    *("flwr-public-key", "flwr-signature", "flwr-timestamp"),
    *("flwr-package-name", "flwr-package-version", "flwr-component-name"),
)
_RESPONSE_HEADERS = (
    *("content-type", "content-length"),
    "flwr-version-incompatibility-message",
)
_PULL = b"/v1/fleet/pull-messages"
_HOLD, _LOOK = 10.0, 0.5
"""Seconds that a SuperNode waits for a message, and between polls for it. A SuperNode gives up
after 30 s, and a SuperLink accepts a signature for five minutes."""
_LONGEST = 300.0
"""Seconds to receive and answer a request, more than any honest one takes."""


class _TooLargeError(Exception):
    """A body is larger than allowed."""


class Gate:
    """The gate, as an ASGI application.

    Args:
        link: The client that reaches the SuperLink. It must follow no redirections and use no
            proxy.

    Attributes:
        closing: Whether waiting requests are to be answered now.
    """

    def __init__(self, link: httpx.AsyncClient, most_bytes: int = MOST_BYTES) -> None:
        self.link = link
        self.most_bytes = most_bytes
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        assert scope["type"] == "http"  # the server is told to speak nothing else
        request = Request(scope, receive)
        try:
            async with asyncio.timeout(_LONGEST):
                answer = self._refusal(request) or await self._ask(request)
        except ClientDisconnect:
            return
        except TimeoutError:
            answer = _refused(504, "the request took too long")
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        try:
            headers = _only(answer.headers, _RESPONSE_HEADERS)
            body = StreamingResponse(answer.aiter_raw(), answer.status_code, headers)
            await body(scope, receive, send)
        finally:
            await answer.aclose()

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused; None if it is forwarded."""
        if (
            request.method != "POST"
            or request.scope["raw_path"] not in OPEN
            or request.scope["query_string"]
        ):
            return _refused(404, "there is no such call")
        given = [name for name in request.headers if name in _REQUEST_HEADERS]
        in_two_ways = {"content-length", "transfer-encoding"} <= set(request.headers)
        if len(set(given)) < len(given) or in_two_ways:
            return _refused(400, "the headers contradict each other")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return _refused(400, "the length of the body is no number")
        most = self._most(request)
        return _too_large(most) if int(length) > most else None

    def _most(self, request: Request) -> int:
        return min(self.most_bytes, _MOST_OF[OPEN[request.scope["raw_path"]]])

    async def _ask(self, request: Request) -> httpx.Response | Response:
        """Return the SuperLink's answer, without its body yet; a refusal if there is none."""
        most = self._most(request)
        body = _limited(request.stream(), most)
        try:
            if request.scope["raw_path"] == _PULL:
                whole = b"".join([part async for part in body])
                return await self._wait_for_message(request, whole)
            return await self._pass_on(request, body)
        except _TooLargeError:
            return _too_large(most)
        except httpx.TimeoutException:
            return _refused(504, "the SuperLink does not answer")
        except httpx.HTTPError:
            return _refused(502, "the SuperLink cannot be reached")

    async def _wait_for_message(self, request: Request, body: bytes) -> httpx.Response | Response:
        until = time.monotonic() + _HOLD
        while True:
            answer = await self._pass_on(request, body)
            nothing = answer.status_code == 200 and answer.headers.get("content-length") == "0"
            if not nothing or self.closing or time.monotonic() > until:
                return answer
            await asyncio.sleep(_LOOK)
            # A message that is fetched for a node that is gone would be lost.
            if await request.is_disconnected():
                return answer
            if isinstance(answer, httpx.Response):
                await answer.aclose()

    async def _pass_on(
        self, request: Request, body: bytes | AsyncIterable[bytes]
    ) -> httpx.Response | Response:
        going_on = self.link.build_request(
            "POST",
            OPEN[request.scope["raw_path"]],
            headers=_only(request.headers, _REQUEST_HEADERS),
            content=body,
        )
        answer = await self.link.send(going_on, stream=True)
        if answer.is_redirect:
            await answer.aclose()
            return _refused(502, "the SuperLink answers with a redirection")
        return answer


async def _limited(body: AsyncIterable[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body piece by piece.

    Raises:
        _TooLargeError: It is larger than allowed, whatever its announced length.
    """
    size = 0
    async for part in body:
        size += len(part)
        if size > most_bytes:
            raise _TooLargeError
        yield part


def _only(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _too_large(most_bytes: int) -> Response:
    return _refused(413, f"the body holds more than {most_bytes} bytes")


def _refused(status: int, reason: str) -> Response:
    # The rest of the request is not read.
    return PlainTextResponse(f"{reason}\n", status, {"connection": "close"})
