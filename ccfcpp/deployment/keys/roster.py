"""The roster: the public keys of the clients that a server admits.

It is a folder with a file for each client. For secure sums there is also one file with all keys,
signed by the authority, from which clients know each other's keys without trusting the server.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import with_last_name
from ccfcpp.deployment.keys.certificates import (
    Certificate,
    PrivateKey,
    PublicKey,
    check_signature,
    sign,
)
from ccfcpp.deployment.keys.files import PUBLIC_SUFFIX, check_client_name

_TITLE = b"ccfcpp roster "
"""Prefix of the file and of the signed content, so that no other signature is valid here."""


@dataclass(frozen=True)
class SignedRoster:
    """All clients of a federation with their public keys, signed by the authority.

    Attributes:
        keys: Public key of each client by its name. Its position here is the client's number.
        content: Content of the file: a line with the signature, and a line for each client.
    """

    keys: Mapping[str, PublicKey]
    content: bytes

    @staticmethod
    def read(content: bytes, authority: Certificate) -> "SignedRoster":
        """Parse a signed roster and check its signature.

        Args:
            content: Content of the file.
            authority: The authority's certificate.

        Raises:
            UsageError: The authority has not signed the content, or it is no roster.
        """
        head, _, body = content.partition(b"\n")
        try:
            signature = base64.b64decode(head.removeprefix(_TITLE), validate=True)
            signer = authority.public_key()
            if not isinstance(signer, PublicKey):
                raise ValueError("an authority's key is on a curve")
            check_signature(signer, signature, _TITLE + body)
            keys = dict(map(parse_roster_line, body.decode().splitlines()))
        except (InvalidSignature, ValueError) as error:
            raise UsageError("the roster is not signed by the authority of this client") from error
        return SignedRoster(keys, content)

    @staticmethod
    def sign(keys: Mapping[str, PublicKey], authority: PrivateKey) -> "SignedRoster":
        """Sign clients' public keys, given by name, with the authority's private key."""
        body = "".join(f"{roster_line(name, key)}\n" for name, key in keys.items()).encode()
        signature = base64.b64encode(sign(authority, _TITLE + body))
        return SignedRoster(keys, _TITLE + signature + b"\n" + body)

    @property
    def digest(self) -> str:
        """SHA-256 of the clients' names and keys, in hexadecimal; the signature is left out."""
        return hashlib.sha256(self.content.partition(b"\n")[2]).hexdigest()


def signed_file(roster: Path) -> Path:
    """Return the path of a roster's signed file, beside the folder ``roster``."""
    roster = with_last_name(roster)
    return roster.with_name(f"{roster.name}.signed")


def public_file(name: str, key: PublicKey) -> bytes:
    """Return the content of a public key file: key in OpenSSH's format, and the client's name."""
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return b"%s %s\n" % (text, name.encode())


def fingerprint(key: PublicKey) -> str:
    """Return a short hash of a public key, 20 hexadecimal digits, for two people to compare."""
    digest = hashlib.sha256(roster_line("", key).encode()).hexdigest()[:20]
    return " ".join(digest[start : start + 4] for start in range(0, 20, 4))


def revoked_suffix(key: PublicKey) -> str:
    """Return how the name of a revoked key's file ends, which is kept in the roster's folder."""
    return f".{fingerprint(key).replace(' ', '')}{PUBLIC_SUFFIX}.revoked"


def roster_names(folder: Path) -> set[str]:
    """Return the names of the clients in a roster's folder, without reading their keys.

    Raises:
        OSError: The roster cannot be read.
    """
    names = {path.name for path in folder.iterdir()}
    return {name.removesuffix(PUBLIC_SUFFIX) for name in names if name.endswith(PUBLIC_SUFFIX)}


def read_roster(folder: Path) -> dict[str, PublicKey]:
    """Read the public keys of all clients from a roster's folder, with files ``NAME.pub``.

    Returns:
        The keys by the client's name, sorted by name.

    Raises:
        UsageError: There is no such folder, it is empty, a file cannot be read, two clients have
            the same key, or a key has been revoked.
    """
    if not folder.is_dir():
        raise UsageError(
            f"there is no roster {folder}: make a folder, and put the clients' .pub files there"
        )
    keys: dict[str, PublicKey] = {}
    owners: dict[str, str] = {}
    revoked = [*folder.glob(f"*{PUBLIC_SUFFIX}.revoked")]
    for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
        name = path.name.removesuffix(PUBLIC_SUFFIX)
        check_client_name(name)
        keys[name] = read_public_key(path)
        owner = owners.setdefault(_format_key(keys[name]), name)
        if owner != name:
            raise UsageError(
                f"{path} is the key of {owner}, too: let each client make its own with "
                "ccfcpp keys client"
            )
        if former := [file for file in revoked if file.name.endswith(revoked_suffix(keys[name]))]:
            raise UsageError(
                f"the key {path} has been revoked: remove it, or, if it was revoked by mistake, "
                f"remove {former[0]}"
            )
    if not keys:
        raise UsageError(f"the roster {folder} holds no key: put the clients' .pub files there")
    return keys


def read_public_key(path: Path) -> PublicKey:
    """Read a client's public key from its file.

    Raises:
        UsageError: The file cannot be read, or holds no key on the curve P-384.
    """
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} cannot be read as a public key: get it from the client again"
        ) from error
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UsageError(
            f"{path} is no key on the curve P-384: let the client make one with ccfcpp keys client"
        )
    return key


def _format_key(key: PublicKey) -> str:
    """Return a public key as base64 of its compressed point (X9.62), on one line."""
    point = key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    return base64.b64encode(point).decode()


def roster_line(name: str, key: PublicKey) -> str:
    """Return a client's name and public key as one line of a signed roster."""
    return f"{name} {_format_key(key)}"


def parse_roster_line(line: str) -> tuple[str, PublicKey]:
    """Return the client's name and public key in a line that ``roster_line`` has made.

    Raises:
        ValueError: The line has another format.
    """
    name, key = line.split(" ")
    return name, PublicKey.from_encoded_point(ec.SECP384R1(), base64.b64decode(key))
