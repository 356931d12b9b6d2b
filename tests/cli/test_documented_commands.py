"""Commands that README and docs show are accepted, on named data sets, up to their first round."""

import itertools
import re
import shlex
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from ccfcpp.cli import terminal
from ccfcpp.cli.single import Shown
from ccfcpp.clustering import setup
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.data.images import ImageData
from ccfcpp.data.registry import DATASETS
from ccfcpp.runs import parallel
from tests.support.command import ccfcpp
from tests.support.pages import DOCS, blocks_of

PAGES = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
LOOP = re.compile(r"\bfor (\w+) in (.*?); do", re.DOTALL)
OF_COMMAND = ("cluster", "compare")


class Accepted(Exception):  # noqa: N818
    """The command has checked everything that it checks before its first round."""


def commands(page: Path) -> list[str]:
    """Each command of a page that runs on a named data set, once for each turn of its loops.

    Where a file takes the settings of a named data set, that data set stands in for it.
    """
    found = []
    for block in blocks_of(page.read_text()):
        if block.language != "sh":
            continue
        text = block.text.replace("\\\n", " ")
        loops = {name: shlex.split(values) for name, values in LOOP.findall(text)}
        lines = [line for line in text.splitlines() if re.match(r"\s*ccfcpp ", line)]
        for line, turn in itertools.product(lines, itertools.product(*loops.values())):
            command = line
            for name, value in zip(loops, turn, strict=True):
                command = command.replace(f"${name}", value)
            found.append(command.split(" | ")[0].split(" && ")[0].strip())
    return list(dict.fromkeys(filter(_on_named_data, map(_standing_in, found))))


def _standing_in(command: str) -> str:
    return re.sub(r"(--config cluster/(\S+)) --dataset \S+", r"\1 --dataset \2", command)


def _on_named_data(command: str) -> bool:
    words = shlex.split(command, comments=True)
    named = words[words.index("--dataset") + 1] in DATASETS if "--dataset" in words else True
    elsewhere = {"--from", "--resume", "image.yaml"} & set(words)
    return words[1] in OF_COMMAND and named and not elsewhere


def blank(name: str, **_: object) -> ImageData:
    """Black images, of the number, the size and the classes of a named data set."""
    about = DATASETS[name]
    labels = torch.arange(about.images) % about.classes
    images = torch.zeros(1, dtype=torch.uint8).expand(about.images, *about.shape)
    return ImageData(name, images, labels, tuple(map(str, range(about.classes))))


def begin(shown: "Shown[object, ClusteringExperiment]", asked, given, profile) -> NoReturn:  # type: ignore[no-untyped-def]
    """A run without its rounds."""
    with terminal.usage_errors():
        shown.pipeline.start(shown.pipeline.open(given, asked.out, asked.resume))
    raise Accepted


def begin_study(study, make, *_) -> NoReturn:  # type: ignore[no-untyped-def]
    """A study without its runs' rounds."""
    with terminal.usage_errors():
        for run in {run.config.method: run for run in study.runs}.values():
            make(run.config)
    raise Accepted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_accepted(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "load", blank)
    monkeypatch.setattr(Shown, "run", begin)
    monkeypatch.setattr(parallel, "run_in_processes", begin_study)
    refused = []
    for number, command in enumerate(commands(page)):
        words = shlex.split(command, comments=True)[1:]
        if "--out" in words:
            words[words.index("--out") + 1] = f"run-{number}"
        try:
            refused.append(f"{command}\n    {ccfcpp(*words).stderr}")
        except Accepted:
            pass
    assert not refused, "\n".join(refused)
