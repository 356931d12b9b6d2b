"""The connection to a client's server: its proxy, and reasons of failure."""

import os
import re
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from typing import NamedTuple
from urllib.request import proxy_bypass

import httpx

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.connection import OTHER
from ccfcpp.deployment.link.fleet_calls import UNSIGNED
from ccfcpp.deployment.link.messages import printable
from ccfcpp.deployment.link.server_status import HEADER, STRANGER

_VARIABLES = "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"


class Proxy(NamedTuple):
    """A proxy.

    Attributes:
        variable: The variable of the environment that names it.
        url: Its address, which may hold a password.
        host: The server that is reached through it.
    """

    variable: str
    url: str
    host: str

    def __str__(self) -> str:
        shown = re.sub(r"//.*@", "//", self.url)
        return f"the proxy of {self.variable} ({printable(shown)})"


def proxy_to(server: str) -> Proxy | None:
    """Return the proxy for a server, given by host and port; None if none is to be used.

    Raises:
        UsageError: The proxy cannot be used.
    """
    host = server.rpartition(":")[0].strip("[]")
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return None
    if variable is None or proxy_bypass(server):
        return None
    value = os.environ[variable]
    found = Proxy(variable, value if "://" in value else f"http://{value}", host)
    try:
        scheme = httpx.Proxy(found.url).url.scheme
    except (ValueError, httpx.InvalidURL):
        raise UsageError(
            f"{found} cannot be used: give http://HOST:PORT there, or set NO_PROXY={host}"
        ) from None
    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise UsageError(
            f"{found} needs a package that is missing: pip install 'httpx[socks]', or set "
            f"NO_PROXY={host}"
        )
    return found


class Reason(NamedTuple):
    """Why the server cannot be reached.

    Attributes:
        text: For the owner of the client, with the remedy.
        final: Whether a retry is useless, so that the client ends at the start.
    """

    text: str
    final: bool = False


ENDED = Reason("the server has ended its run")
_CLOSES = "the server closes"
"""Answer of the gate at the end of a run."""
_REASONS = {
    STRANGER: Reason(
        "the server does not know this key: give its .pub file to the server's owner for the "
        "roster, or give the right --key",
        final=True,
    ),
    "2004": Reason(
        "the key is in use: end the other ccfcpp join (after a crash a key is in use for half a "
        "minute)"
    ),
    _CLOSES: ENDED,
    "Name or service not known": Reason(
        "there is no host of this name: give --server as the server's certificate has it",
        final=True,
    ),
    "Connection refused": Reason(
        "nobody listens there: the server is not running, or --server has another port"
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", OTHER),
        Reason(
            "what listens there is no ccfcpp serve: give the --server that its owner names",
            final=True,
        ),
    ),
    UNSIGNED: Reason(
        "the server cannot check this client's signatures: let both have the same version of ccfcpp"
    ),
    "not valid for": Reason(
        "the server's certificate is for another name: give --server as the certificate has it",
        final=True,
    ),
    "certificate has expired": Reason(
        "the server's certificate has expired, or the clock here is wrong: let the server's owner "
        "run ccfcpp keys renew",
        final=True,
    ),
    "CERTIFICATE_VERIFY_FAILED": Reason(
        "the server's certificate is not of this authority: ask the server's owner for its ca.crt "
        "(--authority)",
        final=True,
    ),
}
"""Texts in errors, and the reason that each stands for."""


def reason(error: Exception, proxy: Proxy | None = None) -> Reason:
    """Return why the server cannot be reached, directly or through a proxy."""
    text, kind = str(error), type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        answer = error.response
        text, kind = f"{answer.headers.get(HEADER, '')} {answer.text}", str(answer.status_code)
    known = (why for sign, why in _REASONS.items() if sign in text)
    found = next(known, Reason(f"the server cannot be reached ({kind}: {printable(text)})"))
    if proxy is None or not isinstance(error, httpx.TransportError):
        return found
    away = f"set NO_PROXY={proxy.host} to go without it"
    if "SSL" in text:
        return found._replace(text=f"{found.text}; or {proxy} stands between: {away}")
    refused = text[:3] in ("403", "407")
    return Reason(f"{proxy} does not connect ({printable(text)}): {away}", final=refused)
