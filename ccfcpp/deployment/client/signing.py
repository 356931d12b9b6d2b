"""The signatures of a client's calls: Flower's, of the time alone, and one of all that is sent."""

from base64 import b64encode
from datetime import timedelta
from email.utils import parsedate_to_datetime

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ccfcpp.deployment.keys.certificates import PrivateKey
from ccfcpp.deployment.link.fleet_calls import SIGNATURE, signed_part
from ccfcpp.deployment.link.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    now,
)


class Signing:
    """Signs calls, each with its time.

    The server accepts a time that is five minutes old, or five seconds ahead of its own. The clocks
    of two machines may differ by more, so the server's answers tell its time.

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
        """Return the headers that sign a call: for Flower its time, for our server all of it."""
        time = (now() + self._ahead).isoformat()
        return {
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_key).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: self._signature(time.encode("ascii")),
            SIGNATURE: self._signature(signed_part(path, time, body)),
        }

    def follow(self, date: str) -> None:
        """Sign by the clock of the server from now on, whose time this is, as in a header."""
        self._ahead = parsedate_to_datetime(date) - now()

    def _signature(self, content: bytes) -> str:
        return b64encode(self._private.sign(content, ec.ECDSA(hashes.SHA256()))).decode()
