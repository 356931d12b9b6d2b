"""Everything that docs/tutorial.md shows is run as it stands there, and says what is shown."""

import contextlib
import csv
import io
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import succeeded
from tests.support.pages import DOCS, blocks

PAGE = "tutorial.md"


class Reader:
    """Someone who types what the page shows."""

    def __init__(self, place: Path) -> None:
        self.place = place
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
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def without_numbers(printed: str) -> list[str]:
    """Its lines without frames and without what differs from machine to machine."""
    lines = (re.sub(r"[^\S\n]+", " ", line.strip(" │")) for line in printed.splitlines())
    return [re.sub(r"\d+", "#", line) for line in lines]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who has read the page to its end, in a folder of his own."""
    reader = Reader(tmp_path_factory.mktemp("tutorial"))
    with contextlib.chdir(reader.place):
        for block in blocks(PAGE):
            if block.language == "text":
                shown = without_numbers(block.text)
                assert [line for line in without_numbers(reader.seen[-1]) if line in shown] == shown
            reader.type(block.language, block.text)
        yield reader


def clusters(table: Path) -> dict[str, str]:
    """The cluster of each photo, by its file."""
    with table.open(newline="") as file:
        return {row["file"]: row["cluster"] for row in csv.DictReader(file)}


def purity(found: Sequence[object], classes: Sequence[int]) -> float:
    """Share of the photos that are of the most frequent class of their cluster."""
    by_cluster: dict[object, list[int]] = {}
    for cluster, one in zip(found, classes, strict=True):
        by_cluster.setdefault(cluster, []).append(one)
    return sum(max(map(own.count, own)) for own in by_cluster.values()) / len(classes)


def test_its_photos_are_clustered_by_what_they_show(reader: Reader) -> None:
    there = reader.place / "photos.csv"
    digits = [int(one) for one in reader.names["wanted"][:102]]
    shown = {f"photo-{number:03}.png": digit for number, digit in enumerate(digits)}
    old, new = clusters(there), clusters(there.with_name("new.csv"))
    assert (len(old), len(new)) == (90, 12)
    classes = [shown[Path(file).name] for file in [*old, *new]]
    assert purity([*old.values(), *new.values()], classes) > 0.9
    labels = reader.names["model"].labels_
    assert purity(labels.tolist(), [shown[Path(file).name] for file in old]) > 0.9


def test_its_page_has_the_photos_nearest_to_each_cluster(reader: Reader) -> None:
    page = (reader.place / "runs" / "first" / "report.html").read_text()
    assert 'id="figure-nearest"' in page


def test_its_models_agree_on_new_photos(reader: Reader) -> None:
    by_command = clusters(reader.place / "new.csv")
    in_python = reader.names["assigned"].tolist()
    assert [int(cluster) for cluster in by_command.values()] == in_python


def test_its_picture_is_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]*\]\((\S+)\)", (DOCS / PAGE).read_text())
    assert pictures
    assert all(0 < (DOCS / picture).stat().st_size < 100_000 for picture in pictures)
