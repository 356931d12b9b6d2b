"""What clients and servers may be called."""

import ipaddress
import re

from ccfcpp.core.errors import UsageError

ROSTER = "roster"
"""Folder of the clients' public keys."""
PUBLIC_SUFFIX = ".pub"
"""What the name of a public key's file ends with."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLIENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LONGEST_HOST = 253


def check_client_name(name: str) -> None:
    """Refuse a name that could not be that of a file, or that leads into another folder.

    Raises:
        UsageError: It is of another form.
    """
    if not _CLIENT.fullmatch(name):
        raise UsageError(
            f"client name {name!r} is refused: give 1 to 64 letters (a to z), digits, dashes, "
            "underscores and dots, the first of them a letter, a digit or an underscore"
        )


def host_of(text: str) -> str | Address:
    """A name in the form of DNS, or an address.

    Raises:
        UsageError: It is neither.
    """
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        # What ends with a number is a mistyped address.
        is_name = all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
        if is_name and len(text) <= _LONGEST_HOST:
            return text
        raise UsageError(
            f"host {text!r} is refused: give a name such as server.example.org, or an IP address, "
            "without a port and without https://"
        ) from None
