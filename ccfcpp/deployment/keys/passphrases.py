"""Passphrases of private keys, from the terminal or a file (``CCFCPP_PASSPHRASE_FILE``)."""

import getpass
import os
import sys
from pathlib import Path

from ccfcpp.core.errors import UsageError

FILE = "CCFCPP_PASSPHRASE_FILE"
"""Environment variable with the path of the file. All users can see a command line."""
_MOST_BYTES = 1000


def read_passphrase(key: Path) -> str:
    """Return the passphrase of an encrypted key file, from the passphrase file or the terminal.

    Raises:
        UsageError: There is neither a file nor a terminal, or the passphrase is empty or too long.
    """
    passphrase = _read_file()
    return _check(_ask(f"passphrase of {key}: ") if passphrase is None else passphrase)


def new_passphrase(key: str) -> str:
    """Return a passphrase for a new key, from the passphrase file or typed twice.

    Args:
        key: What to call the key in the question to the user.

    Raises:
        UsageError: As for ``read_passphrase``, or the two typed passphrases differ.
    """
    if (passphrase := _read_file()) is not None:
        return _check(passphrase)
    typed = _check(_ask(f"new passphrase for {key}: "))
    if _ask("the same again: ") != typed:
        raise UsageError("the two passphrases differ: no key is made, try again")
    return typed


def _read_file() -> str | None:
    """Return the first line of the file that ``CCFCPP_PASSPHRASE_FILE`` names; None if not set."""
    if not (name := os.environ.get(FILE)):
        return None
    try:
        return Path(name).read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{FILE}={name} cannot be read as text: name another file") from error


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question.rstrip(': ')} is needed, and there is no terminal to type it: name a file "
            f"that holds it in {FILE}"
        )
    return getpass.getpass(question)


def _check(passphrase: str) -> str:
    if not 0 < len(passphrase.encode()) <= _MOST_BYTES:
        raise UsageError(f"a passphrase has 1 to {_MOST_BYTES} bytes: give another one")
    return passphrase
