"""X.509 certificates by which clients recognise their server.

Keys are on the curve P-384, like the clients' keys.
"""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from ccfcpp.core.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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


def new_key() -> ec.EllipticCurvePrivateKey:
    """Generate a private key."""
    return ec.generate_private_key(ec.SECP384R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as TLS servers read it, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM format."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """Return a self-signed certificate that signs others.

    Args:
        key: The authority's private key.
        days: How long the certificate is valid.
    """
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        _unsigned(_AUTHORITY, _AUTHORITY, key, end)
        # The certificates that it signs cannot sign others.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str | Address],
    days: int,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return a server's certificate, signed by the authority.

    Args:
        key: The server's private key.
        hosts: Names and addresses by which clients reach it.
        days: How long it is valid; at most as long as the authority's certificate.
        authority: The authority's certificate.
        authority_key: The authority's private key.
    """
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


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
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
