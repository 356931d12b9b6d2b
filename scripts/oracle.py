"""Fed-SCAN with true neighbours: ``python -m scripts.oracle cifar10_jpeg.tar.gz``.

Neighbours of an image are drawn from its true class. Errors of such a run come from the network and
its training; further errors of a usual run come from its neighbours. Since labels are used, the
scores are not those of a clustering method.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from unittest import mock

import torch
import typer
from torch import Tensor

from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.fed_scan.clients import Pairs
from ccfcpp.core.config_layers import read_configs, unflatten
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client


def main(
    dataset: Annotated[str, typer.Argument(help="A data set's name or path, with labels.")],
    images: Annotated[int, typer.Option(help="Drawn at random.")] = 20_000,
    steps: Annotated[int, typer.Option(help="Of Fed-SCAN.")] = 150,
    p: Annotated[float, typer.Option(help="How much clients differ.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 0,
    config: Annotated[Path, typer.Option(help="A preset, or a file.")] = Path("cluster/cifar10"),
) -> None:
    """Print the scores with Fed-SCAN's own neighbours, and with neighbours of the true class."""
    values = {"method": "fed-scan", "dataset": dataset, "seed": seed, "partition.p": p}
    settings = unflatten({**values, "data.images": images, "scan.steps": steps})
    experiment = clustering_run(CLUSTERING.resolve_settings([*read_configs([config]), settings]))
    print(f"usual neighbours: {_scores(experiment)}")
    with mock.patch.object(Pairs, "find_neighbours", _find_true_neighbours(experiment)):
        print(f"neighbours of the true class: {_scores(experiment)}")


def _labels(experiment: ClusteringRun) -> Tensor:
    assert experiment.data.labels is not None
    return experiment.data.labels.cpu()


def _scores(experiment: ClusteringRun) -> str:
    state, _ = experiment.train()
    scores = clustering_scores(
        _labels(experiment).numpy(), experiment.evaluator.assignments(state).numpy()
    )
    return f"NMI {scores['nmi']:.4f}, Kappa {scores['kappa']:.4f}"


def _find_true_neighbours(experiment: ClusteringRun) -> Callable[[Pairs, object, Client], None]:
    """Return a replacement of ``Pairs.find_neighbours``, which draws from the true class."""
    labels = [_labels(experiment)[part] for part in experiment.parts]

    def find(pairs: Pairs, known: object, client: Client) -> None:
        own, count = labels[client.id], pairs.config.neighbours
        generator = Randomness(client.id).generator("oracle")
        neighbours = torch.empty(len(own), count, dtype=torch.int32)
        for label in set(own.tolist()):
            of_class = torch.nonzero(own == label).flatten()
            drawn = torch.randint(len(of_class), (len(of_class), count), generator=generator)
            neighbours[of_class] = of_class[drawn].int()
        client.memory = {"neighbours": neighbours.to(client.images.device)}

    return find


if __name__ == "__main__":
    typer.run(main)
