"""Private keys, and the X.509 certificates by which clients recognise their server.

All keys are on the curve P-384.

Raises:
    UsageError: On import, if the package ``cryptography`` is missing.
"""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ccfcpp.core.errors import UsageError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as error:
    raise UsageError(
        "keys need the package cryptography, which is not installed: pip install 'ccfcpp[flower]'"
    ) from error

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Certificate = x509.Certificate
PrivateKey = ec.EllipticCurvePrivateKey

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LONGEST_HOST = 253
_AUTHORITY = x509.Name.from_rfc4514_string("CN=ccfcpp authority")
# The host is in the extension for it; a common name would hold 64 characters at most.
_SERVER = x509.Name.from_rfc4514_string("CN=ccfcpp server")
_CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from so long ago, since a client's clock may be behind."""
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def host_of(text: str) -> str | Address:
    """Parse the DNS name or the address of a host.

    Raises:
        UsageError: The text is neither.
    """
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        # A name whose last label is a number is a mistyped address.
        is_name = all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
        if is_name and len(text) <= _LONGEST_HOST:
            return text
        raise UsageError(
            f"host {text!r} is refused: give a name such as server.example.org, or an IP address, "
            "without a port and without https://"
        ) from None


def new_key() -> PrivateKey:
    """Generate a private key."""
    return ec.generate_private_key(ec.SECP384R1())


def pem_pair(key: PrivateKey, certificate: Certificate) -> tuple[bytes, bytes]:
    """Return a private key without a password and its certificate, as TLS servers read them."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, certificate.public_bytes(Encoding.PEM)


def openssh_pair(key: PrivateKey) -> tuple[bytes, bytes]:
    """Return a private key and its public key in OpenSSH's format, the only one Flower reads."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def authority_certificate(key: PrivateKey, days: int) -> Certificate:
    """Return an authority's self-signed certificate, which is valid for some days."""
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        _unsigned(_AUTHORITY, _AUTHORITY, key, end)
        # The certificates that it signs cannot sign others.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: PrivateKey,
    hosts: Sequence[str | Address],
    days: int,
    authority: Certificate,
    authority_key: PrivateKey,
) -> Certificate:
    """Return a server's certificate, signed by the authority."""
    end = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    names = [x509.DNSName(it) if isinstance(it, str) else x509.IPAddress(it) for it in hosts]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _unsigned(_SERVER, authority.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def read_authority(folder: Path) -> tuple[Certificate, PrivateKey]:
    """Return the certificate and the private key of the authority in a folder.

    Raises:
        UsageError: There is none, its files do not belong together, or it has expired.
    """
    key_file, file = folder / "ca.key", folder / "ca.crt"
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no authority in {folder} ({error.filename} is missing): make one with "
            "ccfcpp keys authority, or give its folder with --out"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"the authority in {folder} cannot be read ({error}): get it again") from (
            error
        )
    if not isinstance(key, PrivateKey) or certificate.public_key() != key.public_key():
        raise UsageError(f"{key_file} is not the key to {file}: put the two together that belong")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise UsageError(
            f"the authority {file} ended on {certificate.not_valid_after_utc:%Y-%m-%d}: make one "
            "in a new folder, and give its ca.crt to every client"
        )
    return certificate, key


def read_certificate(file: Path) -> Certificate:
    """Return the certificate in a file.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as a certificate: get it again") from error


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, end: datetime
) -> x509.CertificateBuilder:
    """Return what both kinds of certificate have in common."""
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})
