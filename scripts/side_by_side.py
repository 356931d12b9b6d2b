"""Comparison of CCFC with its authors' public code, on the same images, partition and rounds.

Get the code of Yan et al. first (github.com/Jarvisyan/CCFC-pytorch: ``main.py`` and ``model.py``);
this script downloads nothing. It patches the code where it would differ: data set and partition are
ours, k-means has ten initialisations, scikit-learn's default when the code was written, and the
numbers of rounds are those of the options.

Example:
    python -m scripts.side_by_side ../CCFC-pytorch --out side-by-side --seeds 0 --seeds 1 --seeds 2

Finished runs are not repeated. ``--set`` changes settings of ours, for instance for a loss term
that was added to a copy of the authors' code; the losses reported for theirs leave it out.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import runpy
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.server import kmeans, most_similar
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.setup import load_data
from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel
from ccfcpp.core.config_layers import nest, parse_assignments, read_configs, resolve
from ccfcpp.core.metrics import clustering_scores, effective_rank, spectrum
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.runs.environment import keep_freed_memory, use_processors

MEASURES = {
    "loss": "loss",
    "rank": "effective rank",
    "kmeans": "NMI of k-means",
    "own": "NMI by its own rule",
}
OURS, THEIRS = "ccfcpp", "authors"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Row = dict[str, Any]


def setting(
    images: int, p: float, seed: int, pretraining: int, contrast: int, given: Sequence[str]
) -> ClusteringRun:
    """Construct a run of CCFC as published, on a part of MNIST, with the settings ``given``."""
    overrides = nest("dataset", "mnist") | {
        "method": "ccfc",
        "preset": "published",
        "seed": seed,
        "data": {"images": images},
        "partition": {"p": p},
        "training": {"pretrain_rounds": pretraining, "rounds": contrast},
    }
    literal = read_configs([Path("literal")])
    settings = parse_assignments(given)
    config = resolve(ClusterConfig, "cluster", *literal, overrides, settings)
    return clustering_run(config, load_data(config))


def measure(latents: Tensor, truth: Tensor) -> Row:
    """Return the effective rank of latents, and the NMI of k-means on normalised latents."""
    result = kmeans(F.normalize(latents, dim=1), 10, seed=0)
    clusters = most_similar(F.normalize(latents, dim=1), result.centroids)
    scores = clustering_scores(truth.numpy(), clusters.numpy())
    return {"rank": effective_rank(spectrum(latents)), "kmeans": scores["nmi"]}


def ours(experiment: ClusteringRun) -> Iterator[Row]:
    """Run CCFC by ccfcpp, and yield measures of the global model after each round."""
    truth = experiment.data.labels
    algorithm: Any = experiment.algorithm
    model: GlobalModel = algorithm.global_model
    assert truth is not None
    federation, memories = experiment.federation(), ClientMemories(experiment.device, 0)
    state = algorithm.initial_state(experiment.randomness)
    for number in range(algorithm.rounds):
        state, report = federation.run_round(state, number)
        row = {"loss": report.figures["loss"]}
        row |= measure(model.latents_by(state.model, experiment.data.values), truth)
        if algorithm.knows_clusters(state):
            row["own"] = experiment.evaluator.scores(number, state, memories)["nmi"]
        yield row


# --- the authors' code --------------------------------------------------------------------------


class Images:
    """Replacement of torchvision's class MNIST: our images, the first 6/7 as the training set."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __call__(self, root: str, train: bool, download: bool, transform: Any) -> Part:
        """Return the training or test images; takes the arguments of MNIST's constructor."""
        split = len(self.images) * 6 // 7
        part = slice(0, split) if train else slice(split, None)
        return Part(self.images[part], self.labels[part].clone(), transform)


class Part(torch.utils.data.Dataset[tuple[Any, Tensor]]):
    """Data set with the attribute ``targets``, which the authors' code replaces."""

    def __init__(self, images: Tensor, targets: Tensor, transform: Callable[[Any], Any]) -> None:
        from torchvision.transforms.functional import to_pil_image

        self.pictures = [to_pil_image(image) for image in images]
        self.targets = targets
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.transform(self.pictures[index]), self.targets[index]


class Losses:
    """Recorder of the authors' losses: collects the terms of each step, for the mean of a round.

    A pre-training step has two terms of views and two of models; a step of cluster contrast has a
    term for each cluster and one of models. ``weight`` is that of the terms of models.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.steps: list[float] = []
        self.of_clusters: list[float] = []
        self.of_samples: list[float] = []

    def sample(self, of: Callable[[Tensor, Tensor], Tensor], p: Tensor, z: Tensor) -> Tensor:
        """Compute and record a term of views or of models, by the authors' function ``of``."""
        term = of(p, z)
        self.of_samples.append(float(term.detach()))
        if self.of_clusters:
            drift = self.of_samples.pop()
            self.steps.append(statistics.fmean(self.of_clusters) + self.weight * drift)
            self.of_clusters.clear()
        elif len(self.of_samples) == 4:
            first, second, *drifts = self.of_samples
            self.steps.append((first + second) / 2 + self.weight * sum(drifts) / 2)
            self.of_samples.clear()
        return term

    def cluster(self, of: Callable[[Tensor, Tensor], Tensor], p: Tensor, z: Tensor) -> Tensor:
        """Compute and record a term of a cluster, by the authors' function ``of``."""
        term = of(p, z)
        self.of_clusters.append(float(term.detach()))
        return term

    def mean(self) -> float:
        """Return the mean loss of the steps since the last call."""
        mean = statistics.fmean(self.steps)
        self.steps.clear()
        return mean


def theirs(code: Path, experiment: ClusteringRun, folder: Path) -> list[Row]:
    """Run the authors' code on a run's images and clients; return measures after each round."""
    data, truth = experiment.data, experiment.data.labels
    assert truth is not None
    sys.path.insert(0, str(code))
    sys.modules.pop("model", None)
    sys.modules["tqdm"] = display = Quiet("tqdm")
    display.__spec__ = ModuleSpec("tqdm", None)
    model: Any = importlib.import_module("model")
    losses, rows = Losses(weight=0.001), []
    scored = model.clustering_by_cosine_similarity

    def observe(loader: Any, network: Any, *others: Any) -> Any:
        result = scored(loader, network, *others)
        if losses.steps:  # There are none in an additional call between the phases.
            with torch.no_grad():
                parts = torch.split(data.values.float() / 255, 1000)
                latents = torch.cat([network(part)[0] for part in parts])
            rows.append({"loss": losses.mean(), **measure(latents, truth), "own": result[2]})
        return result

    def divide(nets: dict[str, Any], M: int, p: float, ground_truth: Tensor) -> None:  # noqa: N803 - the code calls it so
        nets.update({f"d_{client}": experiment.parts[client].numpy() for client in range(M)})

    config = experiment.evaluator.config
    training = config.section(TrainingConfig)
    counts = {100: training.pretrain_rounds, 30: training.rounds}
    replaced: dict[str, Any] = {
        "MNIST": Images(data.values.cpu(), truth.cpu()),
        "construct_workers": divide,
        "clustering_by_cosine_similarity": observe,
        "KMeans": partial(model.KMeans, n_init=10),
        "asymmetric_loss": partial(losses.sample, model.asymmetric_loss),
        "symmetric_loss": partial(losses.cluster, model.symmetric_loss),
        "range": lambda *a: range(*(counts.get(n, n) for n in a)) if len(a) == 1 else range(*a),
    }
    vars(model).update(replaced)
    arguments = ["--num_workers", "0", "--exp_dir", str(folder), "--data_root", str(folder)]
    arguments += ["--seed", str(config.seed), "--p", str(config.partition.degree["p"])]
    before, sys.argv = sys.argv, ["main.py", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            shared = {"range": replaced["range"]}
            runpy.run_path(str(code / "main.py"), shared, run_name="__main__")
    finally:
        sys.argv = before
        sys.path.remove(str(code))
    return rows


class Quiet(ModuleType):
    """Replacement of the module tqdm that displays nothing."""

    class tqdm:  # noqa: N801 - its name
        """Iterator over items that displays nothing."""

        def __init__(self, items: Any) -> None:
            self.items = items

        def __iter__(self) -> Iterator[Any]:
            return iter(self.items)

        def set_description(self, text: str) -> None:
            """Do nothing."""


# --- the table ----------------------------------------------------------------------------------


def table(results: Sequence[tuple[str, int, list[Row]]], at: Sequence[int]) -> Table:
    """Make a table of both sides' means and deviations after rounds ``at``, with Welch's test."""
    shown = Table("after round", "measure", OURS, THEIRS, "p (Welch)")
    for number in at:
        for key, title in MEASURES.items():
            sides = [
                [rows[number - 1][key] for side, _, rows in results if side == one]
                for one in (OURS, THEIRS)
                if all(key in rows[number - 1] for side, _, rows in results if side == one)
            ]
            if len(sides) == 2 and all(sides):
                shown.add_row(str(number), title, *map(_mean, sides), _welch(*sides))
    return shown


def _mean(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


def _welch(first: list[float], second: list[float]) -> str:
    if min(len(first), len(second)) < 2:
        return "-"
    return f"{stats.ttest_ind(first, second, equal_var=False).pvalue:.2f}"


@app.command()
def main(
    code: Annotated[Path, typer.Argument(help="Folder of the authors' code.")],
    out: Annotated[Path, typer.Option(help="Folder of the results.")],
    images: Annotated[int, typer.Option(help="Images of MNIST.")] = 14000,
    p: Annotated[float, typer.Option(help="Degree of skew.")] = 0.0,
    seeds: Annotated[list[int], typer.Option(help="Seeds.")] = [0, 1, 2],  # noqa: B006 - typer's
    pretraining: Annotated[int, typer.Option(help="Rounds of pre-training.")] = 20,
    contrast: Annotated[int, typer.Option(help="Rounds of cluster contrast.")] = 5,
    given: Annotated[
        list[str], typer.Option("--set", help="Another setting of ours, such as method=ccfc++.")
    ] = [],  # noqa: B006 - typer's
) -> None:
    """Run both sides with each seed, and print the table."""
    if not (code / "model.py").is_file():
        raise typer.BadParameter(f"{code} has no model.py: give the folder of the authors' code")
    keep_freed_memory()
    use_processors()
    out.mkdir(parents=True, exist_ok=True)
    results: list[tuple[str, int, list[Row]]] = []
    for seed in seeds:
        for side in (OURS, THEIRS):
            path = out / f"{side}-{seed}.json"
            if not path.exists():
                experiment = setting(images, p, seed, pretraining, contrast, given)
                scratch = out / f"{side}-{seed}"
                rows = (
                    list(ours(experiment))
                    if side == OURS
                    else theirs(code.resolve(), experiment, scratch)
                )
                path.write_text(json.dumps(rows))
            results.append((side, seed, json.loads(path.read_text())))
    whole = pretraining + contrast
    at = sorted({1, 2, 5, pretraining // 2, pretraining, pretraining + 1, whole} - {0})
    Console().print(table(results, [number for number in at if number <= whole]))


if __name__ == "__main__":
    app()
