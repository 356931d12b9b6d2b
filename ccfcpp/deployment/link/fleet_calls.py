"""The calls of Flower's fleet API that a client of this package makes."""

import hashlib

_CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "confirm-message-received"),
    *("pull-messages", "push-messages", "pull-object", "push-object"),
)
PATHS = tuple(f"/v1/fleet/{call}" for call in _CALLS)
"""Each is a POST of its own path. Flower's ``register-node`` is missing, which admits any key, and
``get-fab``, which gives code to clients."""
PULL = "/v1/fleet/pull-messages"
LARGE = {"/v1/fleet/push-object": 8 * 2**20, "/v1/fleet/push-messages": 2**20}
"""The largest bodies, in bytes. Flower splits large objects into pieces of 5 MiB."""
SMALL = 2**16
"""The largest body of all other calls, which name a node, a message or an object."""
ANSWERS = {"/v1/fleet/pull-object": 8 * 2**20, PULL: 2**20}
"""The largest answers, in bytes; of all other calls they are ``SMALL``."""
SIGNATURE = "ccfcpp-signature"
"""Header with the signature of ``signed_part``, besides Flower's, which is of the time alone."""
UNSIGNED = "the call is not signed"
"""Answer if the signature is missing or is of another call."""


def signed_part(path: str, time: str, body: bytes) -> bytes:
    """Return the bytes of a call that a client signs: its method, path and body, and the time."""
    return "\n".join(("POST", path, time, hashlib.sha256(body).hexdigest())).encode()
