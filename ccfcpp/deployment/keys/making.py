"""Making the keys of a federation, as files.

There are three kinds, each made where it is needed:

- An **authority**: ``ca.key``, which signs, and ``ca.crt``, by which clients verify what it signed.
- A **server**: ``server.key`` and ``server.crt``, which the authority signs, for TLS.
- A **client**: ``clients/NAME.key``, with which it signs its requests, in the format that
  ``flower-supernode --auth-supernode-private-key`` reads; and ``roster/NAME.pub``. A server admits
  the clients whose public keys are in its roster, each under the name of its file.

Only its owner may read a private key, and no file is ever replaced.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.files import (
    PRIVATE,
    PUBLIC,
    PUBLIC_SUFFIX,
    ROSTER,
    check_client_name,
    write_new,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Names by which a server's own processes reach each other, also over TLS."""


@dataclass(frozen=True)
class CertifiedKey:
    """The files of an authority or of a server.

    Attributes:
        key: The private key. Whoever has an authority's can pretend to be the server.
        certificate: The certificate, which is public.
        ends: When the certificate expires.
    """

    key: Path
    certificate: Path
    ends: datetime


@dataclass(frozen=True)
class ClientKey:
    """The files of a client.

    Attributes:
        key: The private key. Whoever has it can pretend to be the client.
        public: The public key, for the server's roster.
    """

    key: Path
    public: Path


def make_authority(folder: Path, days: int) -> CertifiedKey:
    """Make the key and the certificate of an authority.

    Args:
        folder: Folder of the keys; created if it is missing, for its owner alone.
        days: How long the certificate is valid.

    Raises:
        UsageError: There is an authority already, the folder cannot be written, or
            ``cryptography`` is missing.
    """
    require_cryptography()
    from ccfcpp.deployment.keys.certificates import authority_certificate, new_key

    key = new_key()
    return _written(folder, "ca", key, authority_certificate(key, days))


def make_server(folder: Path, host: str, days: int) -> CertifiedKey:
    """Make a server's key and a certificate, which the authority signs.

    Args:
        folder: Folder of the authority's and of the server's keys.
        host: The name or the address by which clients reach the server. The certificate also
            holds this machine's own names.
        days: How long the certificate is valid; at most as long as the authority's.

    Raises:
        UsageError: The host is neither a name nor an address, there is no authority, there is a
            server's key already, the folder cannot be written, or ``cryptography`` is missing.
    """
    require_cryptography()
    from ccfcpp.deployment.keys.certificates import host_of, new_key, server_certificate

    hosts = dict.fromkeys(map(host_of, (host, *_THIS_MACHINE)))
    authority, authority_key = _read_authority(folder)
    key = new_key()
    certificate = server_certificate(key, list(hosts), days, authority, authority_key)
    return _written(folder, "server", key, certificate)


def make_client(folder: Path, name: str) -> ClientKey:
    """Make a client's key pair, by which the server recognises it. It needs no authority.

    Args:
        folder: Folder of the keys; created if it is missing, for its owner alone.
        name: The client's name.

    Raises:
        UsageError: The name is of another form, there is such a key already, the folder cannot be
            written, or ``cryptography`` is missing.
    """
    check_client_name(name)
    require_cryptography()
    from cryptography.hazmat.primitives import serialization

    from ccfcpp.deployment.keys.certificates import new_key

    key = new_key()
    # Flower reads OpenSSH's format only.
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    files = ClientKey(
        folder / "clients" / f"{name}.key", folder / ROSTER / f"{name}{PUBLIC_SUFFIX}"
    )
    line = b"%s %s\n" % (public, name.encode())
    write_new(folder, {files.key: (private, PRIVATE), files.public: (line, PUBLIC)})
    return files


def require_cryptography() -> None:
    """Raise ``UsageError`` if the package that makes and reads keys is missing."""
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError(
            "keys need the package cryptography, which is not installed: pip install "
            "'ccfcpp[flower]'"
        )


def _written(
    folder: Path, stem: str, key: EllipticCurvePrivateKey, certificate: Certificate
) -> CertifiedKey:
    from ccfcpp.deployment.keys.certificates import private_pem, public_pem

    files = CertifiedKey(
        folder / f"{stem}.key", folder / f"{stem}.crt", certificate.not_valid_after_utc
    )
    contents = {
        files.key: (private_pem(key), PRIVATE),
        files.certificate: (public_pem(certificate), PUBLIC),
    }
    write_new(folder, contents)
    return files


def _read_authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """Return the certificate and the private key of the authority in a folder.

    Raises:
        UsageError: There is none, its files do not belong together, or it has expired.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    key_file, file = folder / "ca.key", folder / "ca.crt"
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
        certificate = load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no authority in {folder} ({error.filename} is missing): make one with "
            "ccfcpp keys authority, or give its folder with --out"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"the authority in {folder} cannot be read ({error}): get it again") from (
            error
        )
    if not isinstance(key, EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise UsageError(f"{key_file} is not the key to {file}: put the two together that belong")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise UsageError(
            f"the authority {file} ended on {certificate.not_valid_after_utc:%Y-%m-%d}: make one "
            "in a new folder, and give its ca.crt to every client"
        )
    return certificate, key
