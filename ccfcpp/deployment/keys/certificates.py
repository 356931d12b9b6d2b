"""Certificates (X.509) by which clients know their server.

Keys are on the curve P-384, which is also that of the clients' keys.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from ccfcpp.deployment.keys.names import Address

_AUTHORITY = x509.Name.from_rfc4514_string("CN=ccfcpp authority")
# The host stands in the extension for it; a common name would hold 64 characters at most.
_SERVER = x509.Name.from_rfc4514_string("CN=ccfcpp server")
_CLOCKS_DIFFER = timedelta(hours=1)
"""A certificate is valid from so long ago: a client's clock may be behind."""
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key."""
    return ec.generate_private_key(ec.SECP384R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as TLS servers read it, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as a file holds it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """A certificate that signs others, and itself.

    Args:
        key: The authority's.
        days: How long it is valid.
    """
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        _begun(_AUTHORITY, _AUTHORITY, key, end)
        # What it signs cannot sign anything.
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
    """A server's certificate.

    Args:
        key: The server's.
        hosts: Names and addresses by which it is reached.
        days: How long it is valid; at most as long as the authority's.
        authority: Who signs it.
        authority_key: The key to that.
    """
    end = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    names = [x509.DNSName(it) if isinstance(it, str) else x509.IPAddress(it) for it in hosts]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _begun(_SERVER, authority.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    """What both kinds have in common, not signed yet."""
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})
