"""What a client does with answers that no gate gives, and with proxies of its environment."""

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.connection import NOT_A_GATE, CallSigner, Connection
from ccfcpp.deployment.client.fleet import FleetClient
from ccfcpp.deployment.client.proxy import Proxy, explain, find_proxy
from ccfcpp.deployment.keys.certificates import read_key
from ccfcpp.deployment.link.fleet_calls import ANSWERS, PULL, SMALL
from tests.support.gates import served

ACTIVATE = ActivateNodeRequest(public_key=b"k", heartbeat_interval=10)
GOOD = ActivateNodeResponse(node_id=7).SerializeToString()
FAR = "server.example.org:9092"


class Rogue:
    """What listens where a gate should, and answers as it likes."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.answer: Callable[[], Response] = lambda: Response(GOOD)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await request.body()
        self.seen.append(dict(request.headers))
        await self.answer()(scope, receive, send)


@contextmanager
def listening(app: Rogue, **tls: Any) -> Iterator[int]:
    with served(app, port=0, **tls) as server:
        yield server.servers[0].sockets[0].getsockname()[1]


@pytest.fixture(scope="module")
def signing(keys: Path) -> CallSigner:
    return CallSigner(read_key(keys / "clients" / "clinic-1.key"))


@pytest.fixture(scope="module")
def rogue_at(keys: Path) -> Iterator[tuple[Rogue, int]]:
    app, tls = Rogue(), {"ssl_certfile": keys / "server.crt", "ssl_keyfile": keys / "server.key"}
    with listening(app, **tls) as port:
        yield app, port


@pytest.fixture
def rogue(rogue_at: tuple[Rogue, int]) -> Rogue:
    rogue_at[0].__init__()  # type: ignore[misc] # as new
    return rogue_at[0]


@pytest.fixture
def connection(
    keys: Path, signing: CallSigner, rogue_at: tuple[Rogue, int], rogue: Rogue
) -> Iterator[Connection]:
    with Connection(f"localhost:{rogue_at[1]}", keys / "ca.crt", signing) as found:
        yield found


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_nothing_of_the_environment_is_used(
    connection: Connection, rogue: Rogue, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    base = str(connection._client.base_url.netloc, "ascii")
    with Connection(base, keys / "ca.crt", connection._signing) as again:
        assert again.ActivateNode(ACTIVATE).node_id == 7


def test_a_redirection_is_not_followed(connection: Connection, rogue: Rogue) -> None:
    """Elsewhere there need be no TLS, and the body and its signature would be anybody's."""
    elsewhere = Rogue()
    with listening(elsewhere) as port:
        for status in (301, 302, 307, 308):
            rogue.answer = partial(RedirectResponse, f"http://127.0.0.1:{port}/", status)
            with pytest.raises(ValueError, match=NOT_A_GATE):
                connection.ActivateNode(ACTIVATE)
    assert elsewhere.seen == []


def test_what_is_compressed_is_not_unpacked(connection: Connection, rogue: Rogue) -> None:
    bomb = gzip.compress(bytes(2**20))
    for coding in ("gzip", "br", "identity, gzip"):
        rogue.answer = partial(Response, bomb, headers={"content-encoding": coding})
        with pytest.raises(ValueError, match=NOT_A_GATE):
            connection.ActivateNode(ACTIVATE)
    assert {headers["accept-encoding"] for headers in rogue.seen} == {"identity"}


@pytest.mark.parametrize("status", [200, 500])
def test_no_more_is_read_than_a_gate_would_send(
    status: int, connection: Connection, rogue: Rogue
) -> None:
    """Whoever read such an answer to its end would wait for ever."""

    async def endless(most: int) -> AsyncIterator[bytes]:
        yield bytes(most)
        yield b"1"
        await asyncio.Event().wait()

    def stream(most: int) -> Response:
        return StreamingResponse(endless(most), status)

    for most, call in (
        (SMALL, lambda: connection.ActivateNode(ACTIVATE)),
        (ANSWERS[PULL], lambda: connection.PullMessages(PullMessagesRequest())),
    ):
        rogue.answer = partial(stream, most)
        with pytest.raises(ValueError, match=NOT_A_GATE):
            call()


def test_what_is_no_gate_is_final() -> None:
    assert explain(ValueError(NOT_A_GATE)).final
    assert "no ccfcpp serve" in explain(ValueError(NOT_A_GATE)).text


def test_each_call_is_signed_as_a_whole(connection: Connection, rogue: Rogue) -> None:
    connection.ActivateNode(ACTIVATE)
    first = connection._signing.headers("/a", b"1")
    assert rogue.seen[0].keys() >= {name.lower() for name in first}


# --- proxies --------------------------------------------------------------------------------------


def proxy(monkeypatch: pytest.MonkeyPatch, name: str, value: str, server: str = FAR) -> Any:
    monkeypatch.setenv(name, value)
    try:
        return find_proxy(server)
    finally:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proxy(monkeypatch, name, "proxy.example.org:3128")
    assert found == Proxy(name, "http://proxy.example.org:3128", "server.example.org")
    assert proxy(monkeypatch, name, "") is None
    assert proxy(monkeypatch, "http_proxy", "http://x:1") is None


@pytest.mark.parametrize("server", ["127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1"])
def test_none_is_used_for_this_machine(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy(monkeypatch, "https_proxy", "socks9://", server) is None


@pytest.mark.parametrize("names", ["server.example.org", ".example.org", "a, example.org", "*"])
def test_none_is_used_for_what_is_named(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", names)
    assert proxy(monkeypatch, "https_proxy", "http://x:1") is None
    assert (proxy(monkeypatch, "https_proxy", "http://x:1", "other.org:1") is None) == (
        names == "*"
    )


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("socks5://u:pass@127.0.0.1:9", r"\(socks5://127.0.0.1:9\) needs .* 'httpx\[socks\]'"),
        ("ftp://u:pass@x:1", r"\(ftp://x:1\) cannot be used: give http://HOST:PORT"),
        ("http://u:pass@x:port", r"\(http://x:port\) cannot be used"),
    ],
)
def test_one_that_cannot_be_used_is_refused_at_once(
    value: str, line: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccfcpp.deployment.client.proxy.find_spec", lambda name: None)
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(UsageError, match=f"the proxy of ALL_PROXY {line}") as caught:
        FleetClient(FAR, keys / "ca.crt", read_key(keys / "clients/clinic-1.key"), None, None)  # type: ignore[arg-type]
    assert "set NO_PROXY=server.example.org" in str(caught.value)
    assert "pass" not in str(caught.value).replace("a package", "")


@pytest.mark.parametrize(
    ("error", "line", "final"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "does not connect", False),
        (httpx.ConnectTimeout("timed out"), "does not connect (timed out)", False),
        (httpx.ProxyError("407 Proxy Authentication Required"), "(407 Proxy", True),
        (httpx.ProxyError("403 Forbidden"), "does not connect (403 Forbidden)", True),
        (httpx.ProxyError("503 Service Unavailable"), "(503 Service", False),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "stands between", True),
    ],
)
def test_a_proxy_that_does_not_connect_is_named(error: Exception, line: str, final: bool) -> None:
    through = Proxy("https_proxy", "http://user:a/b@c@proxy:3128", "server.example.org")
    found = explain(error, through)
    assert line in found.text
    assert "the proxy of https_proxy (http://proxy:3128)" in found.text
    assert "set NO_PROXY=server.example.org" in found.text
    assert found.final is final
    assert through.variable not in explain(error).text


def test_a_client_goes_through_its_proxy(
    keys: Path, signing: CallSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the proxy for the server by its name, which need not be known here."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as door:
        monkeypatch.setenv("https_proxy", f"http://u:p@127.0.0.1:{door.getsockname()[1]}")
        asked: list[bytes] = []

        def refuse() -> None:
            there, _ = door.accept()
            with there:
                asked.append(there.recv(4096))
                there.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()

        class Told:
            def print_line(self, text: str) -> None: ...

            def show_status(self, text: str) -> None:
                assert "p@" not in text

        key = read_key(keys / "clients" / "clinic-1.key")
        client = FleetClient(FAR, keys / "ca.crt", key, None, Told())  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"https_proxy \(http://127.0.0.1:\d+\) .*407"):
            client.run()
        thread.join()
    assert asked[0].startswith(b"CONNECT server.example.org:9092 ")
