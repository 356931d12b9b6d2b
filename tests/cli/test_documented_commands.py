"""Commands that README and docs show are accepted, on named data sets, up to their first round."""

import contextlib
import re
import shlex
from pathlib import Path
from string import Template
from typing import Any, NoReturn

import pytest
import torch

from ccfcpp.cli import terminal
from ccfcpp.cli.single_run import RunDisplay
from ccfcpp.clustering import setup
from ccfcpp.data.images import ImageData
from ccfcpp.data.registry import DATASETS
from ccfcpp.privacy.noise import differential_privacy
from ccfcpp.studies import parallel
from tests.support.command import ccfcpp
from tests.support.pages import DOCS, blocks_of

LOOP = re.compile(r"\bfor (\w+) in (.*?); do", re.DOTALL)
ELSEWHERE = ("--from ", "--resume", "image.yaml", "data.newcomers", "feddp.server")
"""What reads other files than those of a named data set."""
OF_COMMAND = ("cluster", "compare")


class Accepted(Exception):  # noqa: N818 - it is no error
    """The command has checked everything that it checks before its first round."""


def commands(page: Path) -> list[str]:
    """Each command of a page that runs on a named data set, with the first values of its loops.

    Where a file takes the settings of a named data set, that data set stands in for it. Of commands
    that differ in the seed alone there is one.
    """
    found = []
    for block in blocks_of(page.read_text()):
        if block.language != "sh":
            continue
        text = block.text.replace("\\\n", " ")
        first = {name: shlex.split(values)[0] for name, values in LOOP.findall(text)}
        for line in text.splitlines():
            if re.match(r"\s*ccfcpp ", line):
                command = Template(line).safe_substitute(first)
                command = re.sub(r" --seed \d+", "", command)
                found.append(re.split(r" (?:\||&&) ", command)[0].strip())
    return list(dict.fromkeys(filter(_on_named_data, map(_standing_in, found))))


def _standing_in(command: str) -> str:
    return re.sub(r"(--config cluster/(\S+)) --dataset \S+", r"\1 --dataset \2", command)


def _on_named_data(command: str) -> bool:
    words = shlex.split(command, comments=True)
    named = words[words.index("--dataset") + 1] in DATASETS if "--dataset" in words else True
    elsewhere = any(word in command for word in ELSEWHERE)
    return words[1] in OF_COMMAND and named and not elsewhere


def blank(name: str, *_: object, **__: object) -> ImageData:
    """Black images, of the number, the size and the classes of a named data set."""
    about = DATASETS[name]
    labels = torch.arange(about.images) % about.classes
    images = torch.zeros(1, dtype=torch.uint8).expand(about.images, *about.shape)
    return ImageData(name, images, labels, tuple(map(str, range(about.classes))))


def begin(shown: Any, asked: Any, given: Any, profile: bool) -> NoReturn:
    """A run without its rounds."""
    with terminal.usage_errors():
        shown.pipeline.start(shown.pipeline.open(given, asked.out, asked.resume))
    raise Accepted


def begin_study(*_: object) -> NoReturn:
    """A study, of which each cell has been checked, without its runs."""
    raise Accepted


RECORD = pytest.mark.nightly(
    "docs/results-log.md", "configs", "ccfcpp/cli", "ccfcpp/clustering/config.py"
)
"""Of the page with the most commands, those by which results were found."""
PAGES = [
    pytest.param(page, marks=[RECORD] if page.name == "results-log.md" else [], id=page.name)
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
    if commands(page)
]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_accepted(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "open_dataset", blank)
    monkeypatch.setattr(RunDisplay, "run", begin)
    monkeypatch.setattr(
        differential_privacy, "least_noise", lambda *_: 10.0
    )  # It takes seconds to find.
    monkeypatch.setattr(parallel, "run_in_processes", begin_study)
    refused = []
    for number, command in enumerate(commands(page)):
        words = shlex.split(command, comments=True)[1:]
        if "--out" in words:
            words[words.index("--out") + 1] = f"run-{number}"
        with contextlib.suppress(Accepted):
            refused.append(f"{command}\n    {ccfcpp(*words).stderr}")
    assert not refused, "\n".join(refused)
