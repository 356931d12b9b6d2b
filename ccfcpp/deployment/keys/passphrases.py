"""Passphrases of private keys: typed at the terminal, or in a file that the environment names."""

import getpass
import os
import sys
from pathlib import Path

from ccfcpp.core.errors import UsageError

FILE = "CCFCPP_PASSPHRASE_FILE"
"""The environment's variable. A passphrase on the command line would be seen by all users."""
_MOST_BYTES = 1000


def passphrase_of(key: Path) -> str:
    """Return the passphrase of a sealed key.

    Raises:
        UsageError: There is neither a file nor a terminal, or the passphrase is empty or too long.
    """
    found = _read()
    return _checked(_typed(f"passphrase of {key}: ") if found is None else found)


def new_passphrase(key: str) -> str:
    """Return a passphrase for a new key, which is typed twice.

    Raises:
        UsageError: As for ``passphrase_of``, or the two differ.
    """
    if (found := _read()) is not None:
        return _checked(found)
    typed = _checked(_typed(f"new passphrase for {key}: "))
    if _typed("the same again: ") != typed:
        raise UsageError("the two passphrases differ: no key is made, try again")
    return typed


def _read() -> str | None:
    """Return the first line of the file that the environment names; None if it names none."""
    if not (name := os.environ.get(FILE)):
        return None
    try:
        return Path(name).read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{FILE}={name} cannot be read as text: name another file") from error


def _typed(question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question.rstrip(': ')} is needed, and there is no terminal to type it: name a file "
            f"that holds it in {FILE}"
        )
    return getpass.getpass(question)


def _checked(passphrase: str) -> str:
    if not 0 < len(passphrase.encode()) <= _MOST_BYTES:
        raise UsageError(f"a passphrase has 1 to {_MOST_BYTES} bytes: give another one")
    return passphrase
