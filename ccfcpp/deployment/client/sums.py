"""Signatures of clients in secure sums, checked with the roster: a signed list of their keys."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import utils

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.core.units import list_first
from ccfcpp.deployment.client.rules import NO_ROSTER, ForbiddenError
from ccfcpp.deployment.keys.certificates import (
    PrivateKey,
    PublicKey,
    check_signature,
    read_certificate,
    sign,
)
from ccfcpp.deployment.keys.roster import SignedRoster
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.identity import SIGNATURE_BYTES, Before, Floor, Safeguard

_NUMBER_BYTES = SIGNATURE_BYTES // 2
_TITLE = b"ccfcpp secure sum\n"
"""Prefix of the signed content, so that a signature of other content is not valid here."""


class KeyIdentity:
    """A client's identity in secure sums: its private key, and the public keys of all clients.

    Args:
        private: The client's private key.
        keys: Public keys of all clients; the position is the client's number.
        context: Prefix of everything that is signed: a hash of the run and its description.
    """

    def __init__(self, private: PrivateKey, keys: Sequence[PublicKey], context: bytes) -> None:
        self._private = private
        self._keys = keys
        self._context = _TITLE + context

    def signed(self, content: bytes) -> bytes:
        """Return the ECDSA signature of ``content`` by this client: r and s, of 48 bytes each."""
        made = sign(self._private, self._context + content)
        numbers = utils.decode_dss_signature(made)
        return b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers)

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Raise ``RefusedUpdateError`` unless client number ``client`` has signed ``content``."""
        halves = signature[:_NUMBER_BYTES], signature[_NUMBER_BYTES:]
        one, other = (int.from_bytes(half, "big") for half in halves)
        try:
            if not 0 <= client < len(self._keys):
                raise InvalidSignature
            encoded = utils.encode_dss_signature(one, other)
            check_signature(self._keys[client], encoded, self._context + content)
        except InvalidSignature as error:
            raise RefusedUpdateError(
                f"the keys of client {client} are not signed by that client of the roster"
            ) from error


class Rosters:
    """The rosters (signed lists of all clients' keys) that a client has received, for secure sums.

    Args:
        private: The client's private key.
        authority: Certificate file of the authority (CA) that signs rosters.
        folder: Folder of the stored rosters.
        say: Shows the owner a message.
    """

    def __init__(
        self, private: PrivateKey, authority: Path, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._private = private
        self._authority = read_certificate(authority)
        self._folder = folder
        self._say = say
        self._before: dict[str, dict[tuple[int, int], Before]] = defaultdict(dict)

    def store(self, content: bytes) -> None:
        """Check and store a signed roster (list of all clients' keys); tell the owner if it is new.

        Raises:
            ForbiddenError: The authority has not signed it, or this client is not on it.
        """
        if not content:
            raise ForbiddenError(NO_ROSTER)
        roster = self._read(content)
        path = self._path(roster.digest)
        if not path.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, content)
            self._say(
                f"secure sums with {len(roster.keys)} clients, signed by the authority: "
                f"{list_first([*roster.keys])} (roster {roster.digest[:16]})"
            )

    def safeguard(self, run: str, spec: RunSpec, number: int, floor: Floor) -> Safeguard:
        """Return what protects this client in the secure sums of a run: its signatures and limits.

        Args:
            run: Token of the run.
            spec: Description of the run. It is part of what clients sign, so that all must have
                the same: with different ones a server could leave one client alone in a sum.
            number: Number of this client; it must be its position in the signed list of clients.
            floor: The smallest protection that the owner accepts in a sum.

        Raises:
            ForbiddenError: The run's list (roster) is not stored, or has another number for it.
        """
        path = self._path(spec.roster)
        if not spec.roster or not path.exists():
            raise ForbiddenError(NO_ROSTER)
        roster = self._read(path.read_bytes())
        keys = [*roster.keys.values()]
        if roster.digest != spec.roster or keys.index(self._private.public_key()) != number:
            raise ForbiddenError("the run's numbers are not those of the signed roster")
        description = json.dumps([run, spec.model_dump(mode="json")], sort_keys=True)
        context = hashlib.sha256(description.encode()).digest()
        return Safeguard(KeyIdentity(self._private, keys, context), floor, self._before[run])

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.signed"

    def _read(self, content: bytes) -> SignedRoster:
        try:
            roster = SignedRoster.read(content, self._authority)
        except UsageError as error:
            raise ForbiddenError(f"{error} (ca.crt)") from error
        if self._private.public_key() not in roster.keys.values():
            raise ForbiddenError("this client is not on the signed roster: ccfcpp keys roster")
        return roster
