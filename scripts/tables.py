"""All systems on four tables that come with scikit-learn, beside its own on the pooled vectors.

    python -m scripts.tables [--seeds 100 101 102] [--tables iris wine breast-cancer digits]

It prints NMI / Kappa, means over the seeds, by degree of skew, and for two classes a client; there
are as many clients as classes. Scikit-learn's see the vectors of all clients, scaled as the systems
scale them, and do not depend on the partition.
"""

import argparse
from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, taking
from ccfcpp.clustering.own_images import settings_for
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import resolve
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.data.vectors import VectorData, vectors_from

TABLES = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast-cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
PARTITIONS: dict[str, Tree] = {
    **{f"p = {p:g}": {"kind": "skew", "p": p} for p in (0, 0.25, 0.5, 0.75, 1)},
    "two classes a client": {"kind": "classes", "classes_per_client": 2},
}
Scores = tuple[float, float]


def table(name: str) -> VectorData:
    """The vectors of a table, with their classes."""
    found = TABLES[name]()
    return vectors_from(name, found.data, name, labels=found.target)


def run(data: VectorData, method: str, partition: Tree, seed: int) -> Scores:
    """NMI and Kappa of a system."""
    given: Tree = {
        "dataset": f"./{data.name}.npy",
        "method": method,
        "seed": seed,
        "device": "cpu",
        "partition": partition,
    }
    suited = settings_for(len(data), data.values.shape[1:], method)
    experiment = clustering_run(resolve(ClusterConfig, "cluster", suited, given), data)
    state, _ = experiment.trained()
    assignments = experiment.evaluator.assignments(state)
    return scores(data, assignments.numpy())


def scores(data: VectorData, found: NDArray[np.int64]) -> Scores:
    """NMI and Kappa of clusters."""
    assert data.labels is not None
    result = clustering_scores(data.labels.numpy(), found)
    return result["nmi"], result["kappa"]


def pooled(data: VectorData, seed: int) -> Iterator[tuple[str, Scores]]:
    """The same of scikit-learn's on all vectors in one place."""
    k, d = len(data.classes), data.vectors.shape[1]
    components = settings_for(len(data), (d,), "fed-em").get("vectors", {}).get("components")
    project = [PCA(components)] if components else []
    of_means = make_pipeline(StandardScaler(), KMeans(k, n_init=10, random_state=seed))
    of_mixture = make_pipeline(
        StandardScaler(), *project, GaussianMixture(k, n_init=10, random_state=seed)
    )
    for title, model in (("KMeans", of_means), ("GaussianMixture", of_mixture)):
        yield f"scikit-learn's {title}", scores(data, model.fit_predict(data.vectors.numpy()))


def mean(found: Sequence[Scores]) -> str:
    """Both scores of several seeds, in words."""
    return " / ".join(f"{fmean(column):.3f}" for column in zip(*found, strict=True))


def main() -> None:
    """Print a table of each data set, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=taking("vectors"), default=None)
    asked = parser.parse_args()
    for name in asked.tables:
        data = table(name)
        print(f"\n{name}\n\n| system | {' | '.join(PARTITIONS)} |", flush=True)
        print("|---" * (1 + len(PARTITIONS)) + "|", flush=True)
        for method in asked.methods or taking("vectors"):
            cells = [
                mean([run(data, method, partition, seed) for seed in asked.seeds])
                for partition in PARTITIONS.values()
            ]
            print(f"| {METHODS[method].title} | {' | '.join(cells)} |", flush=True)
        found: dict[str, list[Scores]] = {}
        for seed in asked.seeds:
            for title, own in pooled(data, seed):
                found.setdefault(title, []).append(own)
        for title, own_scores in found.items():
            print(f"| {title} | {' | '.join([mean(own_scores)] * len(PARTITIONS))} |", flush=True)


if __name__ == "__main__":
    main()
