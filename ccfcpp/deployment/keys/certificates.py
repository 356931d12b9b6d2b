"""Private keys on the curve P-384, and X.509 certificates for TLS between clients and server.

Raises:
    UsageError: On import, if the package ``cryptography`` is missing.
"""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.passphrases import read_passphrase

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as error:
    raise UsageError(
        "keys need the package cryptography, which is not installed: pip install '.[flower]'"
    ) from error

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Certificate = x509.Certificate
PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LONGEST_HOST = 253
_AUTHORITY = x509.Name.from_rfc4514_string("CN=ccfcpp authority")
# The host is in the extension for it; a common name would hold 64 characters at most.
_SERVER = x509.Name.from_rfc4514_string("CN=ccfcpp server")
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from this time before now, since a client's clock may be behind."""
_SOON = timedelta(days=14)
"""The owner is warned if a certificate expires within this time."""
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def parse_host(text: str) -> str | Address:
    """Return a host's DNS name as text, or its IP address as an object.

    Raises:
        UsageError: The text is neither a DNS name nor an IP address.
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


def sign(key: PrivateKey, content: bytes) -> bytes:
    """Return the ECDSA signature of ``content`` (SHA-384), DER-encoded."""
    return key.sign(content, ec.ECDSA(hashes.SHA384()))


def check_signature(key: PublicKey, signature: bytes, content: bytes) -> None:
    """Raise ``InvalidSignature`` if a signature is not by this key and of this content."""
    key.verify(signature, content, ec.ECDSA(hashes.SHA384()))


def new_key() -> PrivateKey:
    """Generate a private key on the curve P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def private_pem(key: PrivateKey, passphrase: str | None) -> bytes:
    """Return a private key in PEM format (PKCS #8), encrypted if a passphrase is given."""
    sealing = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealing)


def public_pem(key: PublicKey) -> bytes:
    """Return a public key in PEM format (``SubjectPublicKeyInfo``), as Flower registers it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: Certificate) -> bytes:
    """Return a certificate in PEM format."""
    return certificate.public_bytes(Encoding.PEM)


def client_pem(key: PrivateKey, passphrase: str | None = None) -> bytes:
    """Return a client's private key in OpenSSH's format, the only one that Flower reads.

    With a passphrase, the format is PKCS #8: encrypted OpenSSH keys would need another package.
    """
    if passphrase:
        return private_pem(key, passphrase)
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def is_encrypted(file: Path) -> bool:
    """Return whether the private key in a file is encrypted (PKCS #8) and needs a passphrase."""
    return file.read_bytes().startswith(_ENCRYPTED)


def read_key(file: Path, passphrase: str | None = None) -> PrivateKey:
    """Read the private key of an authority, a server or a client from a file.

    Args:
        file: The key file.
        passphrase: Passphrase of an encrypted key; None: the user is asked for it.

    Raises:
        UsageError: The passphrase is wrong, or the file holds no elliptic-curve key.
        OSError: The file cannot be read.
    """
    content, encrypted = file.read_bytes(), is_encrypted(file)
    secret = (passphrase or read_passphrase(file)).encode() if encrypted else None
    load = load_ssh_private_key if content.startswith(_OPENSSH) else load_pem_private_key
    try:
        key = load(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = f"{file} cannot be read as a private key: get it again"
        if encrypted:
            why = f"the passphrase does not open {file}: give the one with which it was sealed"
        raise UsageError(why) from error
    if not isinstance(key, PrivateKey):
        raise UsageError(f"{file} is of another kind: make a key with ccfcpp keys")
    return key


def authority_certificate(key: PrivateKey, days: int) -> Certificate:
    """Return an authority's self-signed certificate, valid for ``days`` days."""
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        _certificate_builder(_AUTHORITY, _AUTHORITY, key.public_key(), end)
        # The certificates that it signs cannot sign others.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: PublicKey,
    hosts: Sequence[str | Address],
    days: int,
    authority: Certificate,
    authority_key: PrivateKey,
) -> Certificate:
    """Return a certificate for a server's public key and hosts, signed by the authority.

    It is valid for ``days`` days, but at most as long as the authority's certificate.
    """
    end = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    names = [x509.DNSName(it) if isinstance(it, str) else x509.IPAddress(it) for it in hosts]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _certificate_builder(_SERVER, authority.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def read_authority(folder: Path) -> tuple[Certificate, PrivateKey]:
    """Read the certificate and private key of the authority (CA) whose files are in a folder.

    Raises:
        UsageError: A file is missing or damaged, the two do not match, or the certificate has
            expired.
    """
    key_file, file = folder / "ca.key", folder / "ca.crt"
    try:
        key = read_key(key_file)
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no authority in {folder} ({error.filename} is missing): make one with "
            "ccfcpp keys authority, or give its folder with --out"
        ) from error
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        why = f"the authority in {folder} cannot be read ({error}): get it again"
        raise UsageError(why) from error
    if certificate.public_key() != key.public_key():
        raise UsageError(f"{key_file} is not the key to {file}: put the two together that belong")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise UsageError(
            f"the authority {file} ended on {certificate.not_valid_after_utc:%Y-%m-%d}: make one "
            "in a new folder, and give its ca.crt to every client"
        )
    return certificate, key


def read_certificate(file: Path) -> Certificate:
    """Read a certificate from a PEM file.

    Raises:
        UsageError: The file cannot be read as a certificate.
    """
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as a certificate: get it again") from error


def hosts_of(certificate: Certificate) -> list[str]:
    """Return the DNS names and IP addresses for which a certificate is valid; may be empty."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names = extension.value
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def check_server(file: Path, authority: Path) -> str:
    """Check that the server's certificate in ``file`` is valid and signed by that in ``authority``.

    Returns:
        A warning for the owner if the certificate expires soon; else an empty string.

    Raises:
        UsageError: The certificate has expired, or the authority has not signed it.
    """
    certificate = read_certificate(file)
    renew = "renew it with ccfcpp keys renew server, beside ca.key"
    end = certificate.not_valid_after_utc
    left = end - datetime.now(UTC)
    if not is_signed_by(certificate, read_certificate(authority)):
        raise UsageError(f"{file} is not signed by {authority}: put the two together that belong")
    if left <= timedelta(0):
        raise UsageError(f"{file} ended on {end:%Y-%m-%d}, so that no client accepts it: {renew}")
    return f"{file} ends on {end:%Y-%m-%d}: {renew}" if left < _SOON else ""


def is_signed_by(certificate: Certificate, authority: Certificate) -> bool:
    """Return whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, end: datetime
) -> x509.CertificateBuilder:
    """Return the builder of a certificate, with the fields that all certificates here have."""
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


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})
