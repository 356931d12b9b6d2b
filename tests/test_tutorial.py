"""Everything that docs/tutorial.md shows is run as it stands there, and says what is shown."""

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import succeeded
from tests.support.pages import DOCS, blocks

PAGE = "tutorial.md"


class Reader:
    """Someone who types what the page shows."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.seen: list[str] = []
        """What each block of commands printed."""

    def type(self, language: str, text: str) -> None:
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(text, self.names)  # noqa: S102 - our own page
            self.seen.append(printed.getvalue())
        elif language == "sh":
            self.seen.append("".join(map(printed_by, text.splitlines())))


def printed_by(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "ccfcpp":
        return succeeded(*arguments).stdout
    return subprocess.run(
        [program, *arguments], check=True, capture_output=True, text=True
    ).stdout


def without_numbers(printed: str) -> list[str]:
    """Its lines without frames and without what differs from machine to machine."""
    lines = (re.sub(r"[^\S\n]+", " ", line.strip(" │")) for line in printed.splitlines())
    return [re.sub(r"\d+", "#", line) for line in lines]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who has read the page to its end, in a folder of his own."""
    reader = Reader()
    with contextlib.chdir(tmp_path_factory.mktemp("tutorial")):
        for block in blocks(PAGE):
            if block.language == "text":
                shown = without_numbers(block.text)
                assert [line for line in without_numbers(reader.seen[-1]) if line in shown] == shown
            reader.type(block.language, block.text)
        yield reader


def test_the_page_is_run_to_its_end(reader: Reader) -> None:
    assert Path("runs/first/report.html").stat().st_size > 10_000
    zeros_ones_twos = reader.names["wanted"]
    found = dict(line.rsplit(",", 1) for line in Path("photos.csv").read_text().splitlines()[1:])
    assert len(found) == 90
    clusters = {name: {*(found[n] for n in found if n == name)} for name in found}
    assert clusters
    assert zeros_ones_twos is not None


def test_its_picture_is_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]*\]\((\S+)\)", (DOCS / PAGE).read_text())
    assert pictures
    assert all(0 < (DOCS / picture).stat().st_size < 100_000 for picture in pictures)
