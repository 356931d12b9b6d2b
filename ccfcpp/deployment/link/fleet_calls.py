"""The calls of Flower's fleet API (for clients) that this package's clients make; size limits."""

import hashlib

_CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "confirm-message-received"),
    *("pull-messages", "push-messages", "pull-object", "push-object"),
)
PATHS = tuple(f"/v1/fleet/{call}" for call in _CALLS)
"""Paths of the calls; each is a POST. Left out are Flower's ``register-node``, which admits any
key, and ``get-fab``, which sends code to clients."""
PULL = "/v1/fleet/pull-messages"
LARGE = {"/v1/fleet/push-object": 8 * 2**20, "/v1/fleet/push-messages": 2**20}
"""Largest request bodies, in bytes by path. Flower splits large objects into pieces of 5 MiB."""
SMALL = 2**16
"""Largest request body of all other calls, in bytes."""
ANSWERS = {"/v1/fleet/pull-object": 8 * 2**20, PULL: 2**20}
"""Largest response bodies, in bytes by path; ``SMALL`` for all other calls."""
SIGNATURE = "ccfcpp-signature"
"""Header with the signature of ``signed_part``. Flower's own signature covers only the time."""
CLOSES = "the server closes"
"""Text of the gate's response at the end of a run."""
UNSIGNED = "the call is not signed"
"""Text of the response if the signature is missing or wrong."""


def signed_part(path: str, time: str, body: bytes) -> bytes:
    """Return the bytes that a client signs for a call: method, path, time and hash of the body."""
    return "\n".join(("POST", path, time, hashlib.sha256(body).hexdigest())).encode()
