"""A client's connection to the gate: Flower's calls over HTTPS, under settings of our own.

Flower's client follows redirections, to a server without TLS too, unpacks what is compressed, and
holds an answer of any size. This one takes the answers that a gate gives, and no others.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from ccfcpp.deployment.client.signing import Signing
from ccfcpp.deployment.link.fleet_calls import ANSWERS, SMALL
from ccfcpp.deployment.link.flower_internals import PROTOBUF_MEDIA_TYPE, FleetHttpClient
from ccfcpp.deployment.link.news import HEADER

OTHER = "no answer of a gate"
"""Text of an error where something else than a gate answers."""
_SECONDS = 30.0
"""Seconds to wait for the next bytes."""


class Connection(FleetHttpClient):
    """Flower's calls to a server.

    Args:
        server: Host and port of the gate.
        authority: File of the certificate of the server's authority.
        signing: Signs the calls.
        proxy: URL of a proxy. What the environment says is not asked: of proxies, authorities.
        heard: Called with what stands beside each good answer of how far the server is.
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
        """Return a whole answer of one of the forms that a gate's have."""
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
