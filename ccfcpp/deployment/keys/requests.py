"""Requests of clients to be put on a roster (the admitted public keys), or to renew a key there.

A request is a file with the client's name and public key, signed by its private key: nobody
else can ask for that key. A request to replace a key is also signed by the old key.
"""

import base64
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.keys.certificates import (
    PrivateKey,
    PublicKey,
    check_signature,
    is_encrypted,
    read_key,
    sign,
)
from ccfcpp.deployment.keys.creation import make_client
from ccfcpp.deployment.keys.files import (
    PUBLIC,
    PUBLIC_SUFFIX,
    ROSTER,
    check_client_name,
    private_path,
    public_path,
    write_new,
)
from ccfcpp.deployment.keys.roster import (
    fingerprint,
    parse_roster_line,
    public_file,
    read_public_key,
    read_roster,
    revoked_suffix,
    roster_line,
)

SUFFIX = ".request"
_TITLE = b"ccfcpp request\n"
"""Prefix of the signed content, so that a signature of other content is not valid here."""
_MOST_BYTES = 4096


@dataclass(frozen=True)
class RosterRequest:
    """A client's request to put its public key on the roster, the list of admitted clients.

    Attributes:
        name: The client's name.
        key: The client's new public key.
        before: Signature of name and key by the old key; empty if there is none to replace.
    """

    name: str
    key: PublicKey
    before: bytes = b""

    @staticmethod
    def read(file: Path) -> "RosterRequest":
        """Read a request from a file, and check its signature.

        Raises:
            UsageError: The file is not a request, or its signature is wrong.
        """
        try:
            with file.open("rb") as opened:
                title, line, own, before, _ = opened.read(_MOST_BYTES).split(b"\n")
            name, key = parse_roster_line(line.decode())
            check_client_name(name)
            if title + b"\n" != _TITLE:
                raise ValueError("another title")
            check_signature(key, _decode_base64(own), _TITLE + line)
            return RosterRequest(name, key, _decode_base64(before))
        except (OSError, ValueError, InvalidSignature) as error:
            raise UsageError(
                f"{file} is no request of a client: let it make one with ccfcpp keys request"
            ) from error

    @staticmethod
    def encode(name: str, key: PrivateKey, before: PrivateKey | None = None) -> bytes:
        """Return a request file's bytes, signed by the new ``key`` and the old one, ``before``."""
        line = roster_line(name, key.public_key()).encode()
        signatures = [sign(each, _TITLE + line) if each else b"" for each in (key, before)]
        return b"\n".join([_TITLE + line, *map(base64.b64encode, signatures), b""])

    def replaces(self, key: PublicKey) -> bool:
        """Return whether the old key ``key``, which this request would replace, has signed it."""
        try:
            check_signature(key, self.before, _TITLE + roster_line(self.name, self.key).encode())
        except InvalidSignature:
            return False
        return True


def _decode_base64(text: bytes) -> bytes:
    """Decode canonical base64; raise ``ValueError`` for any other text."""
    content = base64.b64decode(text, validate=True)
    if base64.b64encode(content) != text:
        raise ValueError("another form of base64")
    return content


def make_request(folder: Path, name: str, passphrase: str | None = None) -> tuple[Path, str]:
    """Write a client's request that a server admit its key; create a key in ``folder`` if needed.

    Returns:
        The request's file, and the fingerprint of the key.
    """
    check_client_name(name)
    key = private_path(folder, name)
    if not key.exists():
        make_client(folder, name, passphrase)
    return _write_request(folder, name, read_key(key, passphrase))


def renew_client(folder: Path, name: str, passphrase: str | None = None) -> tuple[Path, str]:
    """Create a new key for a client, and write a request that a server replace the old one.

    The old key is kept as ``NAME.key.old``. Arguments and results are those of ``make_request``.

    Raises:
        UsageError: The client has no key here, there is a ``NAME.key.old`` already, or the old key
            is sealed, and the new one would not be.
    """
    key, public = private_path(folder, name), public_path(folder / ROSTER, name)
    old = key.with_suffix(".key.old")
    if not key.is_file():
        raise UsageError(f"{key} is missing: make one with ccfcpp keys request {name}")
    if old.exists():
        raise UsageError(f"{old} is kept of an earlier renewal: move it away")
    if passphrase is None and is_encrypted(key):
        raise UsageError(f"{key} is sealed, and the new one would not be: give --seal")
    # The public key may have gone to the server.
    before, content = read_key(key), public.read_bytes() if public.exists() else None
    key.rename(old)
    public.unlink(missing_ok=True)
    try:
        make_client(folder, name, passphrase)
    except UsageError:
        old.rename(key)
        if content is not None:
            write_atomically(public, content)
        raise
    return _write_request(folder, name, read_key(key, passphrase), before)


def _write_request(
    folder: Path, name: str, key: PrivateKey, before: PrivateKey | None = None
) -> tuple[Path, str]:
    path = folder / f"{name}{SUFFIX}"
    write_atomically(path, RosterRequest.encode(name, key, before))
    return path, fingerprint(key.public_key())


def accept_request(file: Path, roster: Path) -> tuple[RosterRequest, Path]:
    """Accept the request in a file: write the client's public key to the folder ``roster``.

    Returns:
        The request, and the client's public key file in the roster.

    Raises:
        UsageError: The name is on the roster with a key that has not signed the request, or the key
            is that of another client, or has been revoked.
    """
    request = RosterRequest.read(file)
    if former := [*roster.glob(f"*{revoked_suffix(request.key)}")]:
        raise UsageError(
            f"the key of {file} has been revoked: ask for a request with a new key, or, if it was "
            f"revoked by mistake, remove {former[0]}"
        )
    path = public_path(roster, request.name)
    known = read_roster(roster) if any(roster.glob(f"*{PUBLIC_SUFFIX}")) else {}
    there = known.pop(request.name, None)
    if request.key in known.values():
        raise UsageError(f"the key of {file} is on the roster under another name: refuse it")
    if there is not None and there != request.key and not request.replaces(there):
        raise UsageError(
            f"{request.name} is on the roster {roster} with a key that has not signed {file}: if "
            f"it is the same client, take it off first with ccfcpp keys revoke {request.name}"
        )
    content = public_file(request.name, request.key)
    if there is None:
        write_new(roster, {path: (content, PUBLIC)})
    else:
        write_atomically(path, content)
    return request, path


def take_off_roster(name: str, roster: Path) -> Path:
    """Revoke a client's key in folder ``roster``: rename its file; return the new path.

    Raises:
        UsageError: The client is not on the roster, or its file holds no key.
    """
    check_client_name(name)
    path = public_path(roster, name)
    if not path.is_file():
        raise UsageError(f"{name} is not on the roster {roster}: there is no {path.name}")
    return path.replace(path.with_name(f"{name}{revoked_suffix(read_public_key(path))}"))
