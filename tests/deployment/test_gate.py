"""The gate: what clients need gets through whole, and nothing else at all."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.link.fleet_calls import SMALL
from ccfcpp.deployment.server import connections, gate, gate_server
from ccfcpp.deployment.server.gate import OPEN
from ccfcpp.deployment.server.gate_process import gate_process
from ccfcpp.deployment.server.gate_server import GateSetting, open_socket
from tests.support.gates import open_gate, served

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"
MOST = SMALL


class FakeFleet:
    """Answers everything, and remembers what came in whole.

    Attributes:
        waits: Whether it answers nobody, and waits until who has asked is gone.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.broken = 0
        self.answer: Callable[[bytes], Response] = lambda body: Response(b"answer to " + body)
        self.waits = False
        self.arrived, self.gone = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            self.broken += 1
            return
        self.seen.append((request.url.path, dict(request.headers), body))
        self.arrived.set()
        while self.waits:
            if (await receive())["type"] == "http.disconnect":
                self.gone.set()
                return
        await self.answer(body)(scope, receive, send)


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[FakeFleet, Path]]:
    app = FakeFleet()
    # The path of a socket must be short. Its name is not a server's: other tests look for those.
    with tempfile.TemporaryDirectory() as folder, served(app, uds=f"{folder}/fake"):
        yield app, Path(folder) / "fake"


@pytest.fixture(scope="module")
def setting(keys: Path, upstream: tuple[FakeFleet, Path]) -> GateSetting:
    return GateSetting("127.0.0.1", 0, keys / "server.crt", keys / "server.key", upstream[1])


@pytest.fixture(scope="module")
def port(setting: GateSetting) -> Iterator[int]:
    with open_gate(setting) as port:
        yield port


@pytest.fixture(autouse=True)
def link(upstream: tuple[FakeFleet, Path]) -> FakeFleet:
    upstream[0].__init__()  # type: ignore[misc] # as new
    return upstream[0]


@pytest.fixture
def client(keys: Path, port: int) -> Iterator[httpx.Client]:
    with client_of(keys, port) as client:
        yield client


def trusting(keys: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=keys / "ca.crt")


def client_of(keys: Path, port: int) -> httpx.Client:
    return httpx.Client(
        base_url=f"https://localhost:{port}", verify=trusting(keys), trust_env=False
    )


def told(keys: Path, port: int, sent: bytes) -> bytes:
    """What comes back for bytes that no client library would send, until the gate closes."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        trusting(keys).wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(sent)
        received = b""
        while part := connection.recv(4096):
            received += part
    return received


def post(target: str, *headers: str, body: str = "") -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: localhost", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("latin-1")


# --- what gets through ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", OPEN.values())
def test_what_clients_need_gets_through(client: httpx.Client, link: FakeFleet, path: str) -> None:
    reply = client.post(path, content=b"\x00body\xff")
    assert (reply.status_code, reply.content) == (200, b"answer to \x00body\xff")
    ((seen, headers, body),) = link.seen
    assert (seen, body) == (path, b"\x00body\xff")
    assert headers["content-length"] == "6"


def test_only_the_headers_that_matter_get_through(client: httpx.Client, link: FakeFleet) -> None:
    link.answer = lambda body: Response(
        b"no", 401, {"flwr-version-incompatibility-message": "old", "set-cookie": "a=b",
                     "content-type": "application/json", "location": "https://elsewhere"},
    )  # fmt: skip
    wanted = {
        "content-type": "application/protobuf", "accept": "application/protobuf",
        "flwr-public-key": "a2V5", "flwr-signature": "c2ln", "flwr-timestamp": "2026-11-23",
        "flwr-package-name": "flwr", "flwr-package-version": "1.41.0",
        "flwr-component-name": "SuperNode",
    }  # fmt: skip
    others = {
        "cookie": "a=b", "authorization": "Bearer x", "x-forwarded-for": "127.0.0.1",
        "flwr-task-token": "t", "flwr-superexec-signature": "s", "x-flwr-client": "c",
    }  # fmt: skip
    reply = client.post(PULL, content=b"", headers=wanted | others)
    ((_, headers, _),) = link.seen
    assert wanted.items() <= headers.items()
    assert not others.keys() & headers.keys()
    assert (reply.status_code, reply.content) == (401, b"no")
    assert reply.headers["flwr-version-incompatibility-message"] == "old"
    assert set(reply.headers) - {"date"} == {
        *("content-type", "content-length", "flwr-version-incompatibility-message")
    }


def test_the_calls_are_flowers() -> None:
    translation = pytest.importorskip("flwr.supercore.protobuf.translation")
    paths = {path for _, path in translation.PROTOBUF_REQUEST_TYPES if "/fleet/" in path}
    # Those admit keys that are not in the roster, and give clients code.
    left_out = {"register-node", "unregister-node", "get-run", "get-fab"}
    assert set(OPEN.values()) == paths - {f"/v1/fleet/{call}" for call in left_out}


def test_a_large_message_gets_through_by_default(
    keys: Path, setting: GateSetting, link: FakeFleet
) -> None:
    piece = bytes(range(256)) * 2**12 * 6
    link.answer = lambda body: Response(body)
    with (
        open_gate(setting) as port,
        client_of(keys, port) as client,
    ):
        assert client.post("/v1/fleet/push-object", content=piece).content == piece


def test_pieces_get_through_as_they_come(client: httpx.Client, link: FakeFleet) -> None:
    go_on = threading.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        yield b"second"

    link.answer = lambda body: StreamingResponse(pieces())
    with client.stream("POST", PUSH, content=iter([b"a", b"b"])) as reply:
        parts = reply.iter_raw()
        assert next(parts) == b"first"
        go_on.set()
        assert b"".join(parts) == b"second"
    # A request of a test before this one may come late.
    (headers,) = [headers for path, headers, body in link.seen if (path, body) == (PUSH, b"ab")]
    assert headers["transfer-encoding"] == "chunked"


# --- what is waited for --------------------------------------------------------------------------


def test_what_is_behind_learns_that_a_client_is_gone(
    keys: Path, port: int, link: FakeFleet
) -> None:
    """A message that is fetched for it would be lost."""
    link.waits = True
    with begun(port, keys, post(PULL, "Content-Length: 1", body="a")):
        assert link.arrived.wait(10)
    assert link.gone.wait(10)


def test_a_gate_that_closes_keeps_nobody(keys: Path, setting: GateSetting, link: FakeFleet) -> None:
    link.waits = True
    codes: list[int] = []

    def wait(at: int) -> None:
        with client_of(keys, at) as client:
            codes.append(client.post(PULL).status_code)

    with open_gate(setting) as at:
        waiting = threading.Thread(target=wait, args=(at,))
        waiting.start()
        assert link.arrived.wait(10)
    waiting.join()
    assert codes == [503]


# --- what does not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/health", "/docs", "/openapi.json", "*"),
        *("/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/acquire-task"),
        *("/v1/fleet", "/v1/fleet/", "/v1/fleet/register-node", "/v1/fleet/unregister-node"),
        *("/v1/fleet/../control/list-runs", "/v1/fleet/./pull-messages"),
        *("/v1/fleet/pull-messages/../../control/list-runs", "/v1/control/../fleet/pull-messages"),
        *("/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol/list-runs"),
        *("/v1/fleet%2fpull-messages", "/v1/fleet/pull%2dmessages", "/v1/fleet/pull-messages%00"),
        *("/v1/fleet/pull-messages%0a", "/v1/fleet/pull-messages%20", "/v1%2f..%2fv1/fleet"),
        *("//v1/fleet/pull-messages", "/v1//fleet/pull-messages", "/v1/fleet//pull-messages"),
        *("/v1/fleet/pull-messages/", "/v1/fleet/pull-messages?a", "/v1/fleet/pull-messages?a=b"),
        *("/v1/fleet/pull-messages#a", "/v1/fleet/pull-messages;a", "/V1/Fleet/Pull-Messages"),
        *("\\v1\\fleet\\pull-messages", "/v1/fleet\\..\\control/list-runs", "v1/fleet/get-run"),
        *("https://127.0.0.1/v1/control/list-runs", "http://127.0.0.1:1/v1/fleet/pull-messages"),
        *("https://localhost/v1/fleet/pull-messages", "//127.0.0.1:1/v1/fleet/pull-messages"),
        *("@127.0.0.1/v1/fleet/pull-messages", ":1/v1/fleet/pull-messages"),
    ],
)
def test_all_else_is_not_there(keys: Path, port: int, link: FakeFleet, target: str) -> None:
    reply = told(keys, port, post(target, "Content-Length: 1", body="a"))
    assert reply.startswith(b"HTTP/1.1 404 ")
    assert link.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "post"])
def test_other_methods_are_not_there(client: httpx.Client, link: FakeFleet, method: str) -> None:
    request = client.build_request(method, PULL)
    request.method = method  # which httpx would write in capitals
    assert client.send(request).status_code == 404
    assert link.seen == []


@pytest.mark.parametrize(
    "sent",
    [
        post("/v1/fleet/pull messages"),
        post(f"{PULL} /v1/control/list-runs"),
        post(PULL + "\xe4"),
        b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/control/list-runs\r\n\r\n",
        post(PULL, "Content-Length: 1", "Transfer-Encoding: chunked", body="1\r\na\r\n0\r\n\r\n"),
        post(PULL, "Content-Length: 1", "Content-Length: 2", body="ab"),
        post(PULL, "Content-Length: -1"),
        post(PULL, "Content-Length: +1", body="a"),
        post(PULL, "Transfer-Encoding: gzip, chunked", body="0\r\n\r\n"),
        post(PULL, "flwr-signature: a", "flwr-signature: b", "Content-Length: 0"),
    ],
)
def test_requests_that_can_be_read_in_two_ways_are_refused(
    keys: Path, port: int, link: FakeFleet, sent: bytes
) -> None:
    status = told(keys, port, sent).split()[1]
    assert status in (b"400", b"404", b"501")
    assert link.seen == []


def test_headers_without_end_are_not_kept(keys: Path, port: int, link: FakeFleet) -> None:
    endless = post(PULL, "flwr-signature: " + "a" * 200_000)
    # The gate may hang up while more comes in.
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        assert told(keys, port, endless).split()[1] == b"400"
    assert link.seen == []


def test_a_second_request_behind_the_first_is_looked_at_too(
    keys: Path, port: int, link: FakeFleet
) -> None:
    first = post(PULL, "Content-Length: 1", body="a")
    reply = told(keys, port, first + post("/v1/control/list-runs", "Content-Length: 0"))
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200", b"404"]
    assert [path for path, _, _ in link.seen] == [PULL]


def test_an_upgrade_is_none(keys: Path, port: int, link: FakeFleet) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: YQ==",
               "Sec-WebSocket-Version: 13")  # fmt: skip
    reply = told(keys, port, post("/v1/control/stream-logs", *upgrade, "Content-Length: 0"))
    assert reply.startswith(b"HTTP/1.1 404 ")
    assert link.seen == []


def test_a_body_that_is_announced_too_large_is_not_read(
    keys: Path, port: int, link: FakeFleet
) -> None:
    for length in (MOST + 1, 10**18):
        assert b" 413 " in told(keys, port, post(PULL, f"Content-Length: {length}"))
    assert (link.seen, link.broken) == ([], 0)


def test_a_body_that_grows_too_large_is_cut_off(
    keys: Path, port: int, client: httpx.Client, link: FakeFleet
) -> None:
    piece = f"{MOST:x}\r\n{'a' * MOST}\r\n"
    whole = post(PULL, "Transfer-Encoding: chunked", "Connection: close", body=piece + "0\r\n\r\n")
    assert b" 200 " in told(keys, port, whole)
    assert len(link.seen) == 1
    longer = post(PULL, "Transfer-Encoding: chunked", body=piece + "1\r\na\r\n")
    assert b" 413 " in told(keys, port, longer)
    assert client.post(PULL, content=b"b" * MOST).status_code == 200
    assert [len(body) for _, _, body in link.seen] == [MOST, MOST]


def test_a_client_that_goes_away_leaves_nothing_behind(
    keys: Path, port: int, client: httpx.Client, link: FakeFleet
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as plain:
        connection = trusting(keys).wrap_socket(plain, server_hostname="localhost")
        connection.sendall(post(PULL, "Content-Length: 500", body="a" * 100))
        time.sleep(0.1)
        connection.close()
    assert client.post(PULL, content=b"b").status_code == 200
    assert [body for _, _, body in link.seen] == [b"b"]


# --- what is behind ------------------------------------------------------------------------------


def test_redirections_lead_nowhere(client: httpx.Client, link: FakeFleet) -> None:
    link.answer = lambda body: RedirectResponse("/v1/control/list-runs", 307)
    reply = client.post(PULL, content=b"a", follow_redirects=True)
    assert reply.status_code == 502
    assert "location" not in reply.headers
    assert [path for path, _, _ in link.seen] == [PULL]


def test_a_fleet_that_is_not_there(keys: Path, tmp_path: Path, setting: GateSetting) -> None:
    nowhere = replace(setting, behind=tmp_path / "none")
    with open_gate(nowhere) as port, client_of(keys, port) as client:
        reply = client.post(PULL, content=b"a")
    assert reply.status_code == 502
    assert reply.text == "the fleet cannot be reached\n"


def test_a_fleet_that_does_not_answer(
    keys: Path, setting: GateSetting, link: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_server, "_ANSWER", 0.2)
    link.waits = True
    with open_gate(setting) as port, client_of(keys, port) as client:
        assert client.post(PULL, content=b"a").status_code == 504


def test_proxies_of_the_environment_are_not_asked(
    keys: Path, setting: GateSetting, link: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with open_gate(setting) as port, client_of(keys, port) as client:
        assert client.post(PULL, content=b"a").status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(
    keys: Path, port: int, link: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LONGEST", 0.2)
    reply = told(keys, port, post(PULL, "Content-Length: 100", body="a"))
    assert b" 504 " in reply
    assert link.seen == []


# --- limits --------------------------------------------------------------------------------------


@pytest.fixture
def narrow(setting: GateSetting, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    for name, limit in {"_CONNECTIONS": 12, "_FROM_ONE": 8, "_PATIENCE": 0.5}.items():
        monkeypatch.setattr(connections, name, limit)
    with open_gate(setting) as port:
        yield port


def begun(port: int, keys: Path, sent: bytes) -> socket.socket:
    """A connection that has sent something, with TLS if that is not nothing."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    if not sent:
        return plain
    connection = trusting(keys).wrap_socket(plain, server_hostname="localhost")
    connection.sendall(sent)
    return connection


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except OSError:
        return True


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"], ids=["TLS", "head"]
)
def test_who_does_not_ask_in_time_is_shown_out(
    keys: Path, narrow: int, link: FakeFleet, sent: bytes
) -> None:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(begun(narrow, keys, sent)) for _ in range(6)]
        assert all(ended(connection) for connection in waiting)
    assert 0.4 < time.monotonic() - began < 5
    with client_of(keys, narrow) as client:
        assert client.post(PULL, content=b"a").status_code == 200


@pytest.mark.parametrize("path", [PULL, PUSH])
def test_a_body_that_trickles_in_is_shown_out(
    path: str, keys: Path, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else strangers could take all connections, at a byte now and then."""
    monkeypatch.setattr(gate, "_START", 0.5)
    monkeypatch.setattr(gate, "_SLOWEST", 100)
    head = post(path, "Content-Length: 900", body="a")
    began = time.monotonic()
    with begun(narrow, keys, head) as slow, begun(narrow, keys, head) as steady:
        answered = [b"", b""]
        for _ in range(40):
            time.sleep(0.05)
            for connection, size in ((slow, 1), (steady, 25)):
                with contextlib.suppress(OSError):
                    connection.sendall(b"a" * size)
        assert time.monotonic() - began < 5
        for number, connection in enumerate((slow, steady)):
            answered[number] = connection.recv(4096)
    assert b" 504 " in answered[0]
    assert b" 200 " in answered[1]


def test_a_second_head_has_no_more_time_than_the_first(keys: Path, narrow: int) -> None:
    request = post(PULL, "Content-Length: 0")
    with begun(narrow, keys, request) as connection:
        assert b" 200 " in connection.recv(4096)
        connection.sendall(request[:-5])
        while not ended(connection):
            pass


def test_one_address_cannot_take_all_connections(keys: Path, narrow: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(begun(narrow, keys, b""))
        assert ended(stack.enter_context(begun(narrow, keys, b"")))  # at once
        time.sleep(1)
        with client_of(keys, narrow) as client:
            assert client.post(PULL, content=b"a").status_code == 200


def test_connections_that_end_leave_room(keys: Path, narrow: int) -> None:
    for _ in range(30):
        with client_of(keys, narrow) as client:
            assert client.post(PULL, content=b"a").status_code == 200


def test_calls_that_name_something_are_small(
    keys: Path, setting: GateSetting, link: FakeFleet
) -> None:
    with (
        open_gate(setting) as port,
        client_of(keys, port) as client,
    ):
        assert client.post(PUSH, content=b"a" * 2**17).status_code == 200
        assert b" 413 " in told(keys, port, post(PULL, f"Content-Length: {2**17}"))
        assert len(link.seen) == 1


# --- opening and closing -------------------------------------------------------------------------


def test_what_is_under_way_ends_while_the_next_server_has_the_port(
    keys: Path, setting: GateSetting, link: FakeFleet
) -> None:
    arrived, taken = threading.Event(), threading.Event()
    replies = []

    async def slow() -> AsyncIterator[bytes]:
        yield b"a"
        arrived.set()
        while not taken.is_set():
            await asyncio.sleep(0.01)
        yield b"b"

    link.answer = lambda body: StreamingResponse(slow())

    def ask(port: int) -> None:
        with client_of(keys, port) as client:
            replies.append(client.post(PUSH, content=b"").content)

    def take(port: int) -> None:
        with open_socket(replace(setting, port=port), patience=60):
            taken.set()

    before = threading.active_count()
    with open_gate(setting) as port:
        asking, taking = (threading.Thread(target=does, args=(port,)) for does in (ask, take))
        asking.start()
        assert arrived.wait(10)
        taking.start()
    asking.join()
    taking.join()
    assert replies == [b"ab"]
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_gate_that_is_closed_at_once(setting: GateSetting) -> None:
    with open_gate(setting):
        pass


def test_without_tls_nothing_is_said(port: int, link: FakeFleet) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(post(PULL, "Content-Length: 0"))
        assert b"HTTP" not in plain.recv(100)
    assert link.seen == []


def test_a_setting_that_does_not_serve(
    keys: Path, tmp_path: Path, setting: GateSetting, port: int
) -> None:
    def refused(match: str, **changes: object) -> None:
        with (
            pytest.raises(UsageError, match=match) as caught,
            open_gate(replace(setting, **changes)),  # type: ignore[arg-type]
        ):
            pass
        assert "\n" not in str(caught.value)

    refused(rf"cannot listen on port {port} of 127\.0\.0\.1", port=port)
    refused("cannot listen on port 70000", port=70000)
    refused("cannot listen on port 1 of nowhere", host="nowhere.invalid", port=1)
    none, mend = "No such file", "make them with ccfcpp keys"
    for reason, changes in (
        (none, {"certificate": tmp_path / "none"}),
        (mend, {"key": keys / "ca.key"}),
        (mend, {"certificate": keys / "ca.key"}),
    ):
        refused(f"cannot be used for TLS .*{reason}", **changes)


# --- a process of its own -------------------------------------------------------------------------


def processes_for(setting: GateSetting) -> list[int]:
    """The processes of the gate, by what they were started with."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (folder / "cmdline").exists():
            command = (folder / "cmdline").read_bytes()
            if b"gate_process" in command and str(setting.behind).encode() in command:
                found.append(int(folder.name))
    return found


def answered(keys: Path, port: int) -> bytes:
    with client_of(keys, port) as client:
        return client.post(PULL, content=b"a", timeout=60).content


def test_it_serves_and_comes_back_when_it_is_killed(
    keys: Path, tmp_path: Path, setting: GateSetting
) -> None:
    with gate_process(setting, tmp_path / "gate.log") as port:
        assert answered(keys, port) == b"answer to a"
        (first,) = processes_for(setting)
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                assert answered(keys, port) == b"answer to a"
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        else:
            pytest.fail("the gate did not come back")
        (second,) = processes_for(setting)
        assert second != first
    assert processes_for(setting) == []
    with pytest.raises(httpx.ConnectError):
        answered(keys, port)


def test_what_cannot_be_used_is_refused_at_once(
    keys: Path, tmp_path: Path, setting: GateSetting
) -> None:
    wrong = replace(setting, key=keys / "none")
    with (
        pytest.raises(UsageError, match="cannot be used for TLS"),
        gate_process(wrong, tmp_path / "gate.log"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="cannot listen on port"),
        gate_process(replace(setting, host="192.0.2.1"), tmp_path / "gate.log"),
    ):
        pass
    assert not (tmp_path / "gate.log").exists()
