"""Flower's fleet API for the clients of a ``Fleet``, on a Unix socket of this user.

Only the calls that this package's clients make are served, by Flower's handlers and with Flower's
check of signatures. In addition:

- A client that asks for messages gets its response when there is a message, and need not poll.
- Each response has the server's time and, if the call was signed, its progress.
- A large body is read only if the time of the call is signed, and one at a time for each client.
- A body is parsed only if it is signed.
- Clients can send only replies to what they were asked.
"""

import asyncio
import logging
import threading
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from email.utils import format_datetime
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException
from starlette import status
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.fleet_calls import LARGE, PATHS, PULL, SIGNATURE, UNSIGNED, signed_part
from ccfcpp.deployment.link.server_status import HEADER, STRANGER
from ccfcpp.deployment.server import flower_internals as flower
from ccfcpp.deployment.server.clock import BEAT
from ccfcpp.deployment.server.fleet import Fleet
from ccfcpp.deployment.server.gate import HTTP_SERVER, wait_for_disconnect

_HOLD = 10.0
"""Seconds until a client's request for messages is answered if there is none."""
_CLOSE = {"connection": "close"}
"""Header of a response before the whole body was read."""
_LOOK = 0.02
"""Seconds between checks whether the server has started."""


def fleet_app(fleet: Fleet) -> ASGIApp:
    """Return the ASGI application that answers HTTP calls from the clients of a fleet."""
    app = FastAPI(
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=flower.http_error_translator),
            Middleware(flower.ProtobufTranslationMiddleware),
            Middleware(flower.NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=_refuse_non_replies),
        ],
    )
    app.state.fleet, app.state.linkstate_factory = fleet, fleet.factory
    app.state.enable_supernode_auth = True
    app.router.routes.extend(
        route for route in flower.router.routes if getattr(route, "path", "") in PATHS
    )
    return _SignedCalls(app, fleet)


async def _refuse_non_replies(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse clients' messages that are no replies: Flower would take them for the server's own."""
    pushed = getattr(request.state, "protobuf_request", None)
    if isinstance(pushed, flower.PushMessagesRequest):
        messages = [message.metadata for message in pushed.messages_list]
        roots = [tree.object_id for tree in pushed.message_object_trees]
        node, ticket = pushed.node.node_id, "".join(each.reply_to_message_id for each in messages)
        senders = [each.src_node_id for each in messages]
        names = [each.message_id for each in messages]
        if not ticket or senders != [node] or roots != names:
            raise HTTPException(status.HTTP_403_FORBIDDEN, "it is no reply of this client")
        if not request.app.state.fleet.expects_reply(node, ticket, *names):
            # The request has expired or is answered already: the reply is dropped.
            request.state.protobuf_response = flower.PushMessagesResponse()
            return Response()
    return await call_next(request)


class _SignedCalls:
    """ASGI middleware that forwards signed calls; a call for messages waits until there is one."""

    def __init__(self, app: ASGIApp, fleet: Fleet) -> None:
        self._app = app
        self._fleet = fleet
        self._turns: dict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._announced: Counter[str] = Counter()
        self._arrivals: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._loop: asyncio.AbstractEventLoop | None = None
        fleet.announce = self._announce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        send, path = self._with_headers(scope, send), scope["path"]
        if path not in PATHS:
            await self._app(scope, receive, send)  # responds with status 404
            return
        name = self._fleet.name_of(_header(scope, flower.FLEET_HTTP_PUBLIC_KEY_HEADER))
        # One large body at a time for each client, to limit memory.
        async with self._turns[name] if path in LARGE else nullcontext():
            may_read = path not in LARGE or self._is_signed(scope)
            body = await _read_body(receive) if may_read else None
            if body is None or not self._is_signed(scope, body):
                refusal = PlainTextResponse(f"{UNSIGNED}\n", status.HTTP_401_UNAUTHORIZED, _CLOSE)
                await refusal(scope, receive, send)
            elif path == PULL and name is not None:
                await self._pull(name, scope, body, receive, send)
            else:
                await self._app(scope, _replay(body), send)

    async def _pull(
        self, name: str, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Answer a client's call for messages once there is one, or after ``_HOLD`` seconds."""
        arrival, has_message = self._arrivals[name], False
        gone = asyncio.create_task(wait_for_disconnect(receive))
        arrived = asyncio.create_task(arrival.wait())
        try:
            await asyncio.wait({gone, arrived}, timeout=_HOLD, return_when="FIRST_COMPLETED")
            if gone.done():  # A message would be lost: Flower delivers it once.
                return
        finally:
            gone.cancel()
            arrived.cancel()

        async def send_noted(message: Message) -> None:
            nonlocal has_message
            has_message = has_message or bool(message.get("body"))
            await send(message)

        known = self._announced[name]
        await self._app(scope, _replay(body), send_noted)
        # If there was no message, all announced ones have expired.
        self._announced[name] = max(0, self._announced[name] - (1 if has_message else known))
        if not self._announced[name]:
            arrival.clear()

    def _is_signed(self, scope: Scope, body: bytes | None = None) -> bool:
        """Return whether a call's signature is valid; Flower checks its age and node later.

        With ``body=None`` only the call's time must be signed, by a client of this fleet.
        """
        key = _header(scope, flower.FLEET_HTTP_PUBLIC_KEY_HEADER)
        stamp = _header(scope, flower.TIMESTAMP_HEADER)
        if body is None and self._fleet.name_of(key) is None:
            return False
        name = flower.FLEET_HTTP_SIGNATURE_HEADER if body is None else SIGNATURE
        try:
            content = stamp if body is None else signed_part(scope["path"], stamp.decode(), body)
            public, signature = b64decode(key), b64decode(_header(scope, name))
            return flower.verify_signature(flower.bytes_to_public_key(public), content, signature)
        except Exception:  # Untrusted bytes can make parsers fail in any way.
            return False

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        """Return a ``send`` that adds headers: the server's time and, on success, its progress."""
        key = _header(scope, flower.FLEET_HTTP_PUBLIC_KEY_HEADER)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(b"date", format_datetime(flower.now(), usegmt=True).encode())]
                code, own = message["status"], self._fleet.name_of(key)
                if code == status.HTTP_200_OK:
                    self._fleet.record_call(key)
                    more.append((HEADER.encode(), self._fleet.status().encode()))
                elif code == status.HTTP_412_PRECONDITION_FAILED and own is None:
                    more.append((HEADER.encode(), STRANGER.encode()))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        return send_with_headers

    def _announce(self, name: str) -> None:
        def arrive() -> None:
            self._announced[name] += 1
            self._arrivals[name].set()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(arrive)


def _header(scope: Scope, name: str) -> bytes:
    value: bytes = dict(scope.get("headers", ())).get(name.encode(), b"")
    return value


async def _read_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replay(body: bytes) -> Receive:
    async def receive_again() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


@contextmanager
def serve_fleet(fleet: Fleet, path: Path, log: Path) -> Iterator[None]:
    """Serve the HTTP API for a fleet's clients at a Unix socket, in a thread, within the context.

    Args:
        fleet: The clients, and the messages for them.
        path: Path of the socket, in a folder that only its owner may enter.
        log: File for Flower's warnings and errors.
    """
    _redirect_flower_log(log)
    config = uvicorn.Config(
        fleet_app(fleet), uds=str(path), timeout_graceful_shutdown=1, **HTTP_SERVER
    )
    server = uvicorn.Server(config)
    over = threading.Event()

    def keep_alive() -> None:
        while not over.wait(BEAT):
            fleet.keep_alive()

    serving = threading.Thread(target=server.run, name="fleet", daemon=True)
    beating = threading.Thread(target=keep_alive, name="beat", daemon=True)
    serving.start()
    beating.start()
    try:
        while not server.started:
            if not serving.is_alive():
                raise FederationError(f"the socket for the clients' calls cannot be opened: {path}")
            time.sleep(_LOOK)
        yield
    finally:
        over.set()
        server.should_exit = True
        serving.join()
        beating.join()


def _redirect_flower_log(log: Path) -> None:
    """Write Flower's warnings and errors to a file, in place of its usual log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("flwr")
    logger.handlers = [logging.FileHandler(log)]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
