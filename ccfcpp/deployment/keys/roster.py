"""The roster: the public keys of the clients that a server admits.

It is a folder of files, and for secure sums it is also one file that the authority has signed. By
that file clients know each other's keys without trusting their server.
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
from ccfcpp.deployment.keys.certificates import (
    Certificate,
    PrivateKey,
    PublicKey,
    check_signature,
    signed,
)
from ccfcpp.deployment.keys.files import PUBLIC_SUFFIX, check_client_name, public_path

_TITLE = b"ccfcpp roster "
"""Before the signature, and in front of what is signed: nothing else that an authority signs begins
so."""


@dataclass(frozen=True)
class SignedRoster:
    """The clients of a federation, signed by its authority.

    Attributes:
        keys: Their public keys by name. Clients have their numbers in this order.
        content: The file: the title with the signature, and a line for each client.
    """

    keys: Mapping[str, PublicKey]
    content: bytes

    @staticmethod
    def read(content: bytes, authority: Certificate) -> "SignedRoster":
        """Check the signature, and read the clients.

        Raises:
            UsageError: The authority has not signed it, or it is of another form.
        """
        head, _, body = content.partition(b"\n")
        try:
            signature = base64.b64decode(head.removeprefix(_TITLE), validate=True)
            signer = authority.public_key()
            if not isinstance(signer, PublicKey):
                raise ValueError("an authority's key is on a curve")
            check_signature(signer, signature, _TITLE + body)
            keys = dict(map(entry_of, body.decode().splitlines()))
        except (InvalidSignature, ValueError) as error:
            raise UsageError("the roster is not signed by the authority of this client") from error
        return SignedRoster(keys, content)

    @staticmethod
    def signed(keys: Mapping[str, PublicKey], authority: PrivateKey) -> "SignedRoster":
        """Return a roster that the authority's key has signed."""
        body = "".join(f"{roster_line(name, key)}\n" for name, key in keys.items()).encode()
        signature = base64.b64encode(signed(authority, _TITLE + body))
        return SignedRoster(keys, _TITLE + signature + b"\n" + body)

    @property
    def digest(self) -> str:
        """Digest of its clients, which does not depend on the signature."""
        return hashlib.sha256(self.content.partition(b"\n")[2]).hexdigest()


def signed_file(roster: Path) -> Path:
    """Return the path of the signed file, beside the folder of a roster."""
    return roster.with_name(f"{roster.name}.signed")


def public_file(name: str, key: PublicKey) -> bytes:
    """Return the content of a client's file on a roster."""
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return b"%s %s\n" % (text, name.encode())


def names_on(folder: Path) -> set[str]:
    """Return the names of the clients on a roster, without reading their keys.

    Raises:
        OSError: The roster cannot be read.
    """
    names = {path.name for path in folder.iterdir()}
    return {name.removesuffix(PUBLIC_SUFFIX) for name in names if name.endswith(PUBLIC_SUFFIX)}


def key_on(folder: Path, name: str) -> bytes:
    """Return the public key of a client on a roster, as ``read_roster`` does.

    Raises:
        OSError: Its file cannot be read.
        UsageError: It holds no such key.
    """
    return _as_pem(_read(public_path(folder, name)))


def read_roster(folder: Path) -> dict[str, bytes]:
    """Read the public keys of the clients that a server admits, each in a file of its name.

    Returns:
        The keys by name, in the order of names. Each is a PEM block of its
        ``SubjectPublicKeyInfo``, the form that Flower registers.
    """
    return {name: _as_pem(key) for name, key in roster_keys(folder).items()}


def _as_pem(key: PublicKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def roster_keys(folder: Path) -> dict[str, PublicKey]:
    """Read the same keys as ``read_roster``, as objects."""
    if not folder.is_dir():
        raise UsageError(
            f"there is no roster {folder}: make a folder, and put the clients' .pub files there"
        )
    keys: dict[str, PublicKey] = {}
    owners: dict[str, str] = {}
    for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
        name = path.name.removesuffix(PUBLIC_SUFFIX)
        check_client_name(name)
        keys[name] = _read(path)
        owner = owners.setdefault(_written(keys[name]), name)
        if owner != name:
            raise UsageError(
                f"{path} is the key of {owner}, too: let each client make its own with "
                "ccfcpp keys client"
            )
    if not keys:
        raise UsageError(f"the roster {folder} holds no key: put the clients' .pub files there")
    return keys


def _read(path: Path) -> PublicKey:
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


def _written(key: PublicKey) -> str:
    """Format a key on one line."""
    point = key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    return base64.b64encode(point).decode()


def roster_line(name: str, key: PublicKey) -> str:
    """Return a client's name and key on one line."""
    return f"{name} {_written(key)}"


def entry_of(line: str) -> tuple[str, PublicKey]:
    """Return the client's name and key in a line of ``roster_line``.

    Raises:
        ValueError: The line is of another form.
    """
    name, key = line.split(" ")
    return name, PublicKey.from_encoded_point(ec.SECP384R1(), base64.b64decode(key))
