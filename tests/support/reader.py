"""Someone who types what a page of the documentation shows, and reads what it says is printed."""

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.command import succeeded
from tests.support.pages import blocks


class Reader:
    """Someone who types what the page shows.

    Args:
        place: Folder to work in.
        few: Flags that make clusterings short.
    """

    def __init__(self, place: Path, few: Sequence[str] = ()) -> None:
        self.place = place
        self.few = few
        self.names: dict[str, Any] = {}
        self.seen: list[str] = []
        """What each block of commands printed."""

    def type(self, language: str, text: str) -> None:
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(text, self.names)  # noqa: S102 - our own page
            self.seen.append(printed.getvalue())
        elif language == "sh":
            self.seen.append("".join(map(self.printed_by, text.splitlines())))

    def printed_by(self, command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "ccfcpp":
            return succeeded(*arguments, *(self.few if arguments[0] == "cluster" else ())).stdout
        return subprocess.run(
            [program, *arguments], check=True, capture_output=True, text=True
        ).stdout


def without_numbers(printed: str) -> list[str]:
    """Its lines without frames and without what differs from machine to machine."""
    lines = (re.sub(r"[^\S\n]+", " ", line.strip(" │")) for line in printed.splitlines())
    return [re.sub(r"\d+", "#", line) for line in lines]


def read(page: str, place: Path) -> Reader:
    """Read a page to its end, in a folder of one's own."""
    reader = Reader(place)
    for block in blocks(page):
        if block.language == "text":
            shown = without_numbers(block.text)
            assert [line for line in without_numbers(reader.seen[-1]) if line in shown] == shown
        reader.type(block.language, block.text)
    return reader
