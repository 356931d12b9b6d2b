"""The gate: the server's reverse proxy, which forwards only the calls that clients need.

Clients make eight calls, each a POST with its own path. The gate forwards a request only if its
path is exactly one of these, to a constant path on a Unix socket of the server's user.

The gate does not authenticate clients. The server behind it does, by the signature in the headers.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ccfcpp.deployment.link.fleet_calls import CLOSES, LARGE, PATHS, PULL, SIGNATURE, SMALL
from ccfcpp.deployment.link.server_status import HEADER

HTTP_SERVER: dict[str, Any] = {
    # The alternative, httptools, accepts headers of any length and hides absolute URLs.
    **{"http": "h11", "ws": "none", "lifespan": "off", "log_config": None, "log_level": "error"},
    **{"access_log": False, "date_header": False},  # the date is the fleet's
}
"""uvicorn's settings of the gate's HTTP server and of the fleet's."""
OPEN = {path.encode(): path for path in PATHS}
"""The allowed paths: as received, in bytes, and as forwarded."""

_REQUEST_HEADERS = (
    *("accept", "content-type", "content-length"),
    *("flwr-public-key", "flwr-signature", "flwr-timestamp", SIGNATURE),
    *("flwr-package-name", "flwr-package-version", "flwr-component-name"),
)
_RESPONSE_HEADERS = (
    *("content-type", "content-length", "date"),
    *("flwr-version-incompatibility-message", HEADER),
)
_LOOK = 0.2
"""Seconds between checks whether the gate closes."""
_LONGEST = 300.0
"""Time limit to receive and answer a request, in seconds; more than any real one takes."""
_START, _SLOWEST = 10.0, 32 * 2**10
"""Time limit for a body: ``_START`` seconds, and one more for each ``_SLOWEST`` bytes received."""


class _TooLargeError(Exception):
    """The body of an HTTP request is larger than allowed."""


class Gate:
    """The gate, a reverse proxy: an ASGI application that forwards clients' calls to a Unix socket.

    Args:
        link: HTTP client for the socket of the server's API for clients (the fleet). It must not
            follow redirections or use a proxy.

    Attributes:
        closing: Whether the server is closing, so that waiting requests are refused.
    """

    def __init__(self, link: httpx.AsyncClient) -> None:
        self.link = link
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the server's fleet API and send back its response, or refuse it."""
        assert scope["type"] == "http"  # the server is configured for nothing else
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
            headers = _select(answer.headers, _RESPONSE_HEADERS)
            body = StreamingResponse(answer.aiter_raw(), answer.status_code, headers)
            await body(scope, receive, send)
        finally:
            await answer.aclose()

    def _refusal(self, request: Request) -> Response | None:
        """Return the response that refuses a request; None if it may be forwarded."""
        names_call = request.scope["raw_path"] in OPEN and not request.scope["query_string"]
        if request.method != "POST" or not names_call:
            return _refused(404, "there is no such call")
        given = [name for name in request.headers if name in _REQUEST_HEADERS]
        in_two_ways = {"content-length", "transfer-encoding"} <= set(request.headers)
        if len(set(given)) < len(given) or in_two_ways:
            return _refused(400, "the headers contradict each other")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return _refused(400, "the length of the body is no number")
        most = _max_bytes(request)
        return _too_large(most) if int(length) > most else None

    async def _ask(self, request: Request) -> httpx.Response | Response:
        """Forward a request; return the response, with its body unread, or one with an error."""
        most = _max_bytes(request)
        body = _limited(request.stream(), most)
        try:
            if request.url.path == PULL:
                whole = b"".join([part async for part in body])
                return await self._forward_while_connected(request, whole)
            return await self._forward(request, body)
        except _TooLargeError:
            return _too_large(most)
        except httpx.TimeoutException:
            return _refused(504, "the fleet does not answer")
        except httpx.HTTPError:
            return _refused(502, "the fleet cannot be reached")

    async def _forward_while_connected(
        self, request: Request, body: bytes
    ) -> httpx.Response | Response:
        """Forward a call for messages; wait for the response only while the client is connected.

        The fleet API responds when there is a message. If it did so after the client has
        disconnected, the message would be lost.
        """
        asking = asyncio.create_task(self._forward(request, body))
        going = asyncio.create_task(wait_for_disconnect(request.receive))
        try:
            while not asking.done():
                await asyncio.wait({asking, going}, timeout=_LOOK, return_when="FIRST_COMPLETED")
                if going.done():
                    raise ClientDisconnect
                if self.closing:
                    return _refused(503, CLOSES)
            return await asking
        finally:
            asking.cancel()
            going.cancel()

    async def _forward(
        self, request: Request, body: bytes | AsyncIterable[bytes]
    ) -> httpx.Response | Response:
        going_on = self.link.build_request(
            "POST",
            OPEN[request.scope["raw_path"]],
            headers=_select(request.headers, _REQUEST_HEADERS),
            content=body,
        )
        answer = await self.link.send(going_on, stream=True)
        if answer.is_redirect:
            await answer.aclose()
            return _refused(502, "the fleet answers with a redirection")
        return answer


def _max_bytes(request: Request) -> int:
    return LARGE.get(request.url.path, SMALL)


async def wait_for_disconnect(receive: Receive) -> None:
    """Receive what a client sends, and drop it, until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _limited(body: AsyncIterable[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the parts of a request's body, with limits for its size and speed.

    Raises:
        _TooLargeError: The body is larger than ``most_bytes``, whatever its announced length.
        TimeoutError: The body is received too slowly.
    """
    size, parts, began = 0, aiter(body), asyncio.get_running_loop().time()
    while True:
        async with asyncio.timeout_at(began + _START + size / _SLOWEST):
            part = await anext(parts, None)
        if part is None:
            return
        size += len(part)
        if size > most_bytes:
            raise _TooLargeError
        yield part


def _select(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _too_large(most_bytes: int) -> Response:
    return _refused(413, f"the body holds more than {most_bytes} bytes")


def _refused(status: int, reason: str) -> Response:
    # The rest of the request is not read.
    return PlainTextResponse(f"{reason}\n", status, {"connection": "close"})
