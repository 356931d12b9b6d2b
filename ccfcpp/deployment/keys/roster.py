"""The roster: the folder of the public keys of the clients that a server admits."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.files import PUBLIC_SUFFIX, check_client_name


def read_roster(folder: Path) -> dict[str, bytes]:
    """Read the public keys of the clients that a server admits, each in a file of its name.

    Returns:
        The keys by name, in the order of names. Each is a PEM block of its
        ``SubjectPublicKeyInfo``, which is what Flower registers.
    """
    if not folder.is_dir():
        raise UsageError(
            f"there is no roster {folder}: make a folder, and put the clients' .pub files there"
        )
    owners: dict[bytes, str] = {}
    for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
        name = path.name.removesuffix(PUBLIC_SUFFIX)
        check_client_name(name)
        key = _read(path)
        if key in owners:
            raise UsageError(
                f"{path} is the key of {owners[key]}, too: let each client make its own with "
                "ccfcpp keys client"
            )
        owners[key] = name
    if not owners:
        raise UsageError(f"the roster {folder} holds no key: put the clients' .pub files there")
    return {name: key for key, name in owners.items()}


def _read(path: Path) -> bytes:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} cannot be read as a public key: get it from the client again"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UsageError(
            f"{path} is no key on the curve P-384: let the client make one with ccfcpp keys client"
        )
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
