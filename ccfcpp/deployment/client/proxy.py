"""The proxy between a client and its server, and explanations of failed connections."""

import errno
import os
import re
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from typing import NamedTuple
from urllib.request import proxy_bypass

import httpx

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.connection import NOT_A_GATE
from ccfcpp.deployment.link.fleet_calls import CLOSES, UNSIGNED
from ccfcpp.deployment.link.messages import printable
from ccfcpp.deployment.link.server_status import HEADER, STRANGER

_VARIABLES = "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"


class Proxy(NamedTuple):
    """A proxy between a client and its server.

    Attributes:
        variable: The environment variable that names the proxy.
        url: The proxy's URL, which may contain a password.
        host: Host name of the server behind it.
    """

    variable: str
    url: str
    host: str

    def __str__(self) -> str:
        shown = re.sub(r"//.*@", "//", self.url)
        return f"the proxy of {self.variable} ({printable(shown)})"


def find_proxy(server: str) -> Proxy | None:
    """Return the proxy in the environment variables for a server; None if none applies.

    Args:
        server: Host and port of the server, as ``HOST:PORT``.

    Raises:
        UsageError: The variable is not a valid URL, or a package for SOCKS is missing.
    """
    host = server.rpartition(":")[0].strip("[]")
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return None
    if variable is None or proxy_bypass(server):
        return None
    value = os.environ[variable]
    proxy = Proxy(variable, value if "://" in value else f"http://{value}", host)
    try:
        scheme = httpx.Proxy(proxy.url).url.scheme
    except (ValueError, httpx.InvalidURL):
        raise UsageError(
            f"{proxy} cannot be used: give http://HOST:PORT there, or set NO_PROXY={host}"
        ) from None
    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise UsageError(
            f"{proxy} needs a package that is missing: pip install 'httpx[socks]', or set "
            f"NO_PROXY={host}"
        )
    return proxy


class Reason(NamedTuple):
    """Reason why a client cannot reach its server.

    Attributes:
        text: The reason and the remedy, for the owner of the client.
        final: Whether retries are useless.
    """

    text: str
    final: bool = False


ENDED = Reason("the server has ended its run")
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
    CLOSES: ENDED,
    "Name or service not known": Reason(
        "there is no host of this name: give --server as the server's certificate has it",
        final=True,
    ),
    "Connection refused": Reason(
        "nobody listens there: the server is not running, or --server has another port"
    ),
    os.strerror(errno.ENOSPC): Reason(
        "this machine's disk is full, and nothing is sent that is not logged: make room"
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", NOT_A_GATE),
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
"""The reason for each text that errors contain; the first match counts."""


def explain(error: Exception, proxy: Proxy | None = None) -> Reason:
    """Return why a call to the server, directly or through a proxy, has raised ``error``."""
    text, kind = str(error), type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        answer = error.response
        text, kind = f"{answer.headers.get(HEADER, '')} {answer.text}", str(answer.status_code)
    known = (why for sign, why in _REASONS.items() if sign in text)
    cause = next(known, Reason(f"the server cannot be reached ({kind}: {printable(text)})"))
    if proxy is None or not isinstance(error, httpx.TransportError):
        return cause
    hint = f"set NO_PROXY={proxy.host} to go without it"
    if "SSL" in text:
        return cause._replace(text=f"{cause.text}; or {proxy} stands between: {hint}")
    refused = text[:3] in ("403", "407")
    return Reason(f"{proxy} does not connect ({printable(text)}): {hint}", final=refused)
