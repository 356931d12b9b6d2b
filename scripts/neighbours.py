"""How often neighbours are of the same class: ``python -m scripts.neighbours cifar10_jpeg.tar.gz``.

For each kind of features: the share of an image's nearest 1, 5, 10, 20 and 50 images of its client
that have its class, and the accuracy of a vote of 20. Labels serve these figures alone.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.model import load_model
from ccfcpp.clustering.scan.neighbours import (
    DESCRIBE,
    FEATURES,
    first_features,
    nearest_neighbours,
)
from ccfcpp.clustering.transform.lessons import transform_stage
from ccfcpp.core.config_layers import validate
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.sources import load
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.engine.payload import pack, size

_COUNTS = 1, 5, 10, 20, 50
_VOTE = 20
_ALONE = "alone"
_CPU = torch.device("cpu")


def main(
    dataset: Annotated[str, typer.Argument(help="A data set's name or path, with labels.")],
    images: Annotated[int, typer.Option(help="Drawn at random.")] = 18_000,
    clients: Annotated[int, typer.Option(help="Among which they are divided at random.")] = 3,
    atoms: Annotated[str, typer.Option(help="Sizes of the transform, with commas.")] = "1024",
    model: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of a run on such images, for its latents. May be repeated."),
    ] = None,
) -> None:
    """Print a line for each kind of features."""
    data = load(dataset)
    assert data.labels is not None
    # Not in their order, in which the classes may come one after the other.
    generator = Randomness(0).generator("neighbours")
    chosen = torch.randperm(len(data), generator=generator)[:images]
    shown, labels = data.images[chosen], data.labels[chosen]
    holders = [Client(n, f"client {n}", part) for n, part in enumerate(shown.chunk(clients))]
    print("| features | 1 | 5 | 10 | 20 | 50 | vote | seconds | MB up a client |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in FEATURES:
        _line(kind, kind, holders, labels)
    for number in map(int, atoms.split(",")):
        began = time.monotonic()
        described, sent = _learnt(holders, number)
        spent = time.monotonic() - began
        _line(f"transform, {number} atoms, alone", _ALONE, described, labels, spent, sent)
        _line(f"transform, {number} atoms", "transform", described, labels, spent, sent)
    for folder in model or []:
        _line(f"latents of {folder.name}", _ALONE, _of_run(folder, holders), labels)


def _learnt(holders: Sequence[Client], atoms: int) -> tuple[list[Client], int]:
    """Holders that have learnt the transform together, and the bytes that each has sent."""
    tree = {"scan": {"first_neighbours": "transform", "atoms": atoms}}
    config, shape = validate(ClusterConfig, tree), tuple(holders[0].images.shape[1:])
    stage = transform_stage(Problem(config, shape, 2, _CPU, sum(map(len, holders))))
    known, sent = stage.knowledge(), 0
    for number, lesson in enumerate(stage.lessons):
        work = lesson.work(Crew.of(holders))
        assert isinstance(work, SummedWork)
        task = Task("fed-scan", lesson.exchange.name, 0, number)
        total = work.local_sum(task, known, holders, Randomness(0))
        known, sent = lesson.learn(known, total, Randomness(0)), sent + size(pack(total))
    return [stage.holder(known, holder) for holder in holders], sent


def _of_run(folder: Path, holders: Sequence[Client]) -> list[Client]:
    """Holders that describe images by the latents of a finished run."""
    made = load_model(folder)
    latents = partial(made.algorithm.represent, made.delivery)
    return [replace(each, scratch={DESCRIBE: partial(latents, each)}) for each in holders]


def _line(
    title: str,
    kind: str,
    holders: Sequence[Client],
    labels: Tensor,
    spent: float = 0.0,
    sent: int = 0,
) -> None:
    began = time.monotonic()
    found = torch.cat(list(_same(kind, holders, labels)))
    seconds = spent + time.monotonic() - began
    shares = " | ".join(f"{found[:, :count].mean():.3f}" for count in _COUNTS)
    print(f"| {title} | {shares} | {found[:, -1].mean():.3f} | {seconds:.0f} | {sent / 1e6:.1f} |")


def _same(kind: str, holders: Sequence[Client], labels: Tensor) -> Iterator[Tensor]:
    """Whether neighbours have an image's class, and, in the last column, whether a vote has."""
    for holder, own in zip(holders, torch.split(labels, list(map(len, holders))), strict=True):
        points = holder.scratch[DESCRIBE]() if kind == _ALONE else first_features(kind, holder)
        classes = own[nearest_neighbours(points, max(_COUNTS)).long()]
        votes = F.one_hot(classes[:, :_VOTE]).sum(dim=1).argmax(dim=1)
        yield torch.cat([classes == own[:, None], (votes == own)[:, None]], dim=1).float()


if __name__ == "__main__":
    typer.run(main)
