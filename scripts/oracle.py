"""Fed-SCAN with neighbours of the true class: ``python -m scripts.oracle cifar10_jpeg.tar.gz``.

Errors of such a run are due to the network and its steps; further errors of a usual run are due to
its neighbours. Labels choose neighbours here, so that no score of this script is one of clustering.
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
    """Print the scores with the usual neighbours, and with those of the true class."""
    values = {"method": "fed-scan", "dataset": dataset, "seed": seed, "partition.p": p}
    settings = unflatten({**values, "data.images": images, "scan.steps": steps})
    experiment = clustering_run(CLUSTERING.resolve_settings([*read_configs([config]), settings]))
    print(f"usual neighbours: {_scores(experiment)}")
    with mock.patch.object(Pairs, "find_neighbours", _of_classes(experiment)):
        print(f"neighbours of the true class: {_scores(experiment)}")


def _labels(experiment: ClusteringRun) -> Tensor:
    assert experiment.data.labels is not None
    return experiment.data.labels.cpu()


def _scores(experiment: ClusteringRun) -> str:
    state, _ = experiment.train()
    found = clustering_scores(
        _labels(experiment).numpy(), experiment.evaluator.assignments(state).numpy()
    )
    return f"NMI {found['nmi']:.4f}, Kappa {found['kappa']:.4f}"


def _of_classes(experiment: ClusteringRun) -> Callable[[Pairs, object, Client], None]:
    """Return a method that stores random images of each image's class as its neighbours."""
    labels = [_labels(experiment)[part] for part in experiment.parts]

    def find(pairs: Pairs, known: object, client: Client) -> None:
        own, count = labels[client.id], pairs.config.neighbours
        generator = Randomness(client.id).generator("oracle")
        found = torch.empty(len(own), count, dtype=torch.int32)
        for kind in set(own.tolist()):
            of_kind = torch.nonzero(own == kind).flatten()
            drawn = torch.randint(len(of_kind), (len(of_kind), count), generator=generator)
            found[of_kind] = of_kind[drawn].int()
        client.memory = {"neighbours": found.to(client.images.device)}

    return find


if __name__ == "__main__":
    typer.run(main)
