"""A client's HTTPS connection to the server's gate (its reverse proxy), for Flower's calls.

Flower's own client follows redirections, even to a server without TLS, decompresses responses, and
accepts responses of any size. This client does none of that.
"""

import ssl
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ccfcpp.deployment.keys.certificates import PrivateKey, public_pem
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

NOT_A_GATE = "no answer of a gate"
"""Text of the error if the response cannot be from a gate."""
_SECONDS = 30.0
"""Timeout for the next bytes, in seconds."""


class CallSigner:
    """Signs a client's HTTP calls with its private key and the server's time.

    The server accepts a call whose time is at most five minutes old or five seconds ahead. The
    clocks of two machines may differ by more, so the signer takes the time from the server's
    responses.

    Args:
        private: The client's private key.

    Attributes:
        public_key: The client's public key, in PEM format.
    """

    def __init__(self, private: PrivateKey) -> None:
        self._private = private
        self.public_key = public_pem(private.public_key())
        self._ahead = timedelta(0)

    def headers(self, path: str, body: bytes) -> dict[str, str]:
        """Return the HTTP headers with the signatures of a call, given the call's path and body."""
        time = (now() + self._ahead).isoformat()
        return {
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_key).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: self._signature(time.encode("ascii")),
            SIGNATURE: self._signature(signed_part(path, time, body)),
        }

    def set_clock(self, date: str) -> None:
        """Set this signer's clock to the server's time: the ``date`` header of a response."""
        self._ahead = parsedate_to_datetime(date) - now()

    def _signature(self, content: bytes) -> str:
        return b64encode(self._private.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


class Connection(FleetHttpClient):
    """Client side of an HTTPS connection to the server's gate (its proxy), for Flower's calls.

    Args:
        server: Host and port of the gate.
        authority: Certificate file of the authority (CA) that has signed the server's certificate.
        signer: Signs the calls.
        proxy: URL of a proxy. Environment variables for proxies and certificates are ignored.
        on_status: Called for each response, with the header that states the server's progress.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        signer: CallSigner,
        proxy: str | None = None,
        on_status: Callable[[str], None] = lambda header: None,
    ) -> None:
        self._signing, self._on_status = signer, on_status
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
        answer = self._post(path, body, timeout)
        if answer.status_code == httpx.codes.UNAUTHORIZED and "date" in answer.headers:
            self._signing.set_clock(answer.headers["date"])
            answer = self._post(path, body, timeout)
        answer.raise_for_status()
        self._on_status(answer.headers.get(HEADER, ""))
        response = response_type()
        response.ParseFromString(answer.content)
        return response

    def _post(self, path: str, body: bytes, timeout: float) -> httpx.Response:
        """Send a POST request and return the response.

        Raises:
            ValueError: The response is a redirection, compressed or too large, so that it is not
                from a gate (the server's proxy).
        """
        headers, most = self._signing.headers(path, body), ANSWERS.get(path, SMALL)
        content = bytearray()
        with self._client.stream(
            "POST", path, content=body, headers=headers, timeout=timeout
        ) as answer:
            if answer.is_redirect or "content-encoding" in answer.headers:
                raise ValueError(NOT_A_GATE)
            for part in answer.iter_raw():
                content += part
                if len(content) > most:
                    raise ValueError(NOT_A_GATE)
        whole = httpx.Response(answer.status_code, headers=answer.headers, content=bytes(content))
        whole.request = answer.request
        return whole
