"""Making the keys of a federation, as files.

There are three kinds, each made where it is needed:

- An **authority**: ``ca.key``, which signs, and ``ca.crt``, by which clients verify what it signed.
- A **server**: ``server.key`` and ``server.crt``, which the authority signs, for TLS.
- A **client**: ``clients/NAME.key``, with which it signs its requests, in the format that
  ``flower-supernode --auth-supernode-private-key`` reads; and ``roster/NAME.pub``. A server admits
  the clients whose public keys are in its roster, each under the name of its file.

For secure sums the authority signs the roster, too: ``roster.signed``, which is replaced when
clients come or go.

Only its owner may read a private key, and no key is ever replaced. With a passphrase a private key
is sealed (PKCS #8), and is of no use to who has its file alone. Folders are created if they are
missing, for their owner alone. A name or a folder that cannot be used is a ``UsageError``.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.keys.certificates import (
    Certificate,
    PrivateKey,
    PublicKey,
    authority_certificate,
    certificate_pem,
    client_pem,
    host_of,
    hosts_of,
    is_signed_by,
    new_key,
    private_pem,
    read_authority,
    read_certificate,
    server_certificate,
)
from ccfcpp.deployment.keys.files import (
    PRIVATE,
    PUBLIC,
    ROSTER,
    check_client_name,
    private_path,
    public_path,
    write_new,
)
from ccfcpp.deployment.keys.roster import (
    SignedRoster,
    public_file,
    roster_keys,
    signed_file,
)

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Names by which a server's own processes reach each other, also over TLS."""


def make_authority(folder: Path, days: int, passphrase: str | None = None) -> datetime:
    """Make the key of an authority, and a certificate for some days; return when it expires."""
    key = new_key()
    return _written(folder, "ca", key, authority_certificate(key, days), passphrase)


def make_server(folder: Path, host: str, days: int, passphrase: str | None = None) -> datetime:
    """Make a server's key, and a certificate that the authority in the same folder signs.

    Returns:
        When the certificate expires.

    Args:
        folder: Folder of the authority's and of the server's keys.
        host: The name or the address by which clients reach the server. The certificate also
            holds this machine's own names.
        days: How long the certificate is valid; at most as long as the authority's.
        passphrase: Passphrase of the server's key; None leaves it unsealed.
    """
    hosts = dict.fromkeys(map(host_of, (host, *_THIS_MACHINE)))
    authority, authority_key = read_authority(folder)
    key = new_key()
    certificate = server_certificate(key.public_key(), list(hosts), days, authority, authority_key)
    return _written(folder, "server", key, certificate, passphrase)


def renew_server(folder: Path, days: int) -> datetime:
    """Sign the certificate of a server anew, for the same key and the same hosts.

    The certificate in the folder of the authority is replaced; the server's key need not be there.

    Returns:
        When the new one expires.

    Raises:
        UsageError: There is none, or this authority has not signed it.
    """
    authority, key = read_authority(folder)
    file = folder / "server.crt"
    before = read_certificate(file)
    public = before.public_key()
    if not is_signed_by(before, authority) or not isinstance(public, PublicKey):
        raise UsageError(f"{file} is not signed by the authority in {folder}: it is not renewed")
    hosts = [host_of(host) for host in hosts_of(before)]
    certificate = server_certificate(public, hosts, days, authority, key)
    write_atomically(file, certificate_pem(certificate))
    return certificate.not_valid_after_utc


def make_client(folder: Path, name: str, passphrase: str | None = None) -> tuple[Path, Path]:
    """Make a client's key pair, by which the server recognises it. It needs no authority.

    Returns:
        The files of the private and of the public key.
    """
    check_client_name(name)
    key, private, public = new_key(), private_path(folder, name), public_path(folder / ROSTER, name)
    content = public_file(name, key.public_key())
    write_new(folder, {private: (client_pem(key, passphrase), PRIVATE), public: (content, PUBLIC)})
    return private, public


def make_roster(folder: Path, roster: Path) -> tuple[SignedRoster, Path]:
    """Sign the clients of a roster by the authority in a folder.

    Returns:
        The roster, and its file beside the folder of the roster.
    """
    _, authority = read_authority(folder)
    signed, path = SignedRoster.signed(roster_keys(roster), authority), signed_file(roster)
    write_atomically(path, signed.content)
    return signed, path


def roster_for_sums(folder: Path, roster: Path) -> tuple[SignedRoster, bool]:
    """Return the roster as the authority has signed it, for a server with secure sums.

    If that file is missing or has other clients, and the authority's key lies in the folder, it is
    signed here.

    Args:
        folder: Folder of the server's keys, and perhaps of the authority's.
        roster: Folder of the clients' public keys.

    Returns:
        The roster, and whether the authority's key lies in the folder.

    Raises:
        UsageError: The clients are not signed, and the authority's key is elsewhere.
    """
    keys, path, is_here = roster_keys(roster), signed_file(roster), (folder / "ca.key").exists()
    found = _signed(path, keys, read_certificate(folder / "ca.crt"))
    if found is None and not is_here:
        raise UsageError(
            f"secure sums need {path}, in which the authority has signed the clients of {roster}: "
            "copy their .pub files to keys/roster beside ca.key, run ccfcpp keys roster there, and "
            "copy roster.signed here"
        )
    return found or make_roster(folder, roster)[0], is_here


def _signed(
    path: Path, keys: Mapping[str, PublicKey], authority: Certificate
) -> SignedRoster | None:
    """Return the signed roster in a file; None if it is missing, or has other clients."""
    if not path.is_file():
        return None
    try:
        found = SignedRoster.read(path.read_bytes(), authority)
    except UsageError:
        return None
    return found if list(found.keys.items()) == list(keys.items()) else None


def _written(
    folder: Path, stem: str, key: PrivateKey, certificate: Certificate, passphrase: str | None
) -> datetime:
    files = {
        folder / f"{stem}.key": (private_pem(key, passphrase), PRIVATE),
        folder / f"{stem}.crt": (certificate_pem(certificate), PUBLIC),
    }
    write_new(folder, files)
    return certificate.not_valid_after_utc
