"""The signature of a client's calls, as Flower's fleet API asks for it: of the time of the call.

What is called and what is sent is not signed. TLS protects it on its way to the gate.
"""

from base64 import b64encode
from datetime import timedelta
from email.utils import parsedate_to_datetime

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from ccfcpp.deployment.keys.certificates import PrivateKey


class Signing:
    """Signs the time of each call.

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

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sign a call; sign it again by the server's clock if the signature is refused."""
        self._sign(context.request)
        answer = call_next(context)
        if answer.status_code == httpx.codes.UNAUTHORIZED and "date" in answer.headers:
            self._ahead = parsedate_to_datetime(answer.headers["date"]) - now()
            self._sign(context.request)
            answer = call_next(context)
        return answer

    def _sign(self, request: httpx.Request) -> None:
        time = (now() + self._ahead).isoformat()
        signature = self._private.sign(time.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        request.headers[TIMESTAMP_HEADER] = time
        request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = b64encode(self.public_key).decode()
        request.headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(signature).decode()
