"""A client's connection to the gate: Flower's calls over HTTPS, with stricter settings.

Flower's client follows redirections, even to a server without TLS, decompresses answers, and
accepts an answer of any size. This one accepts only the answers that a gate gives.
"""

import ssl
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ccfcpp.deployment.keys.certificates import PrivateKey
from ccfcpp.deployment.link.fleet_calls import ANSWERS, SIGNATURE, SMALL, signed_part
from ccfcpp.deployment.link.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    PROTOBUF_MEDIA_TYPE,
    TIMESTAMP_HEADER,
    FleetHttpClient,
    now,
)
from ccfcpp.deployment.link.server_status import HEADER

OTHER = "no answer of a gate"
"""Text of an error if something else than a gate answers."""
_SECONDS = 30.0
"""Seconds to wait for the next bytes."""


class Signing:
    """Signs calls: for Flower the time of each, and for our server all that is sent.

    The server accepts a time that is five minutes old, or five seconds ahead of its own. The clocks
    of two machines may differ by more, so the server's answers contain its time.

    Args:
        private: The client's key.

    Attributes:
        public_key: The public key, as PEM.
    """

    def __init__(self, private: PrivateKey) -> None:
        self._private = private
        self.public_key = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._ahead = timedelta(0)

    def headers(self, path: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a call."""
        time = (now() + self._ahead).isoformat()
        return {
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_key).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: self._signature(time.encode("ascii")),
            SIGNATURE: self._signature(signed_part(path, time, body)),
        }

    def follow(self, date: str) -> None:
        """Use the server's clock from now on, given its time as in a header."""
        self._ahead = parsedate_to_datetime(date) - now()

    def _signature(self, content: bytes) -> str:
        return b64encode(self._private.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


class Connection(FleetHttpClient):
    """Flower's calls to a server.

    Args:
        server: Host and port of the gate.
        authority: File of the certificate of the server's authority.
        signing: Signs the calls.
        proxy: URL of a proxy. Proxies and authorities of the environment are ignored.
        heard: Called with the response header that states the server's progress.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        signing: Signing,
        proxy: str | None = None,
        heard: Callable[[str], None] = lambda header: None,
    ) -> None:
        self._signing, self._heard = signing, heard
        self._client = httpx.Client(
            base_url=f"https://{server}",
            verify=ssl.create_default_context(cafile=authority),
            proxy=proxy,
            trust_env=False,
            follow_redirects=False,
            timeout=_SECONDS,
            headers={"accept-encoding": "identity", "content-type": PROTOBUF_MEDIA_TYPE},
        )

    def _unary_unary(  # type: ignore[override]
        self, *, path: str, request: Any, response_type: Any, timeout: float = _SECONDS, **_: object
    ) -> Any:
        body = request.SerializeToString(deterministic=True)
        answer = self._answer(path, body, timeout)
        if answer.status_code == httpx.codes.UNAUTHORIZED and "date" in answer.headers:
            self._signing.follow(answer.headers["date"])
            answer = self._answer(path, body, timeout)
        answer.raise_for_status()
        self._heard(answer.headers.get(HEADER, ""))
        found = response_type()
        found.ParseFromString(answer.content)
        return found

    def _answer(self, path: str, body: bytes, timeout: float) -> httpx.Response:
        """Return a complete answer, if it has one of the forms of a gate's answers."""
        headers, most = self._signing.headers(path, body), ANSWERS.get(path, SMALL)
        content = bytearray()
        with self._client.stream(
            "POST", path, content=body, headers=headers, timeout=timeout
        ) as answer:
            if answer.is_redirect or "content-encoding" in answer.headers:
                raise ValueError(OTHER)
            for part in answer.iter_raw():
                content += part
                if len(content) > most:
                    raise ValueError(OTHER)
        found = httpx.Response(answer.status_code, headers=answer.headers, content=bytes(content))
        found.request = answer.request
        return found
