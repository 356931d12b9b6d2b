"""Compare the speed of ccfcpp with a plain implementation, and with the machine's peak rate.

All rows of a table are measured by turns in one process, and reported as medians. Nothing else
should run at the same time. Examples from docs/performance.md:

    python scripts/benchmark.py --dataset mnist --clients 10 --json mnist.json
    python scripts/benchmark.py --dataset mnist --parts steps
"""

import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.setup import load_data
from ccfcpp.clustering.systems.ccfc.algorithm import CCFC
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.ccfc.losses import siamese
from ccfcpp.clustering.systems.ccfc.network import make_model
from ccfcpp.core.config import PrecisionConfig, Tree
from ccfcpp.core.config_layers import nest, read_yaml, resolve
from ccfcpp.core.presets import preset_file
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.pooled import rounding_dtype
from ccfcpp.runs.environment import (
    choose_device,
    describe_environment,
    keep_freed_memory,
    use_processors,
)
from scripts.plain import PlainFederation
from scripts.steps import SECTIONS, step_growth, steps
from scripts.timing import (
    Seconds,
    measure_growth,
    peak_memory,
    time_by_turns,
    time_training,
    training_operations,
)

_ALONE = {"growth", "steps"}
"""Parts that do not need a ``Setting``."""
PARTS = {"step", "kmeans", "rounds"} | _ALONE
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Setting:
    """Data set divided among clients, and a run on it by ccfcpp and by the plain implementation."""

    def __init__(
        self,
        dataset: str,
        clients: int,
        images: int | None,
        device: str,
        workers: int = 2,
        precision: str = "float32",
    ) -> None:
        self.workers = workers
        overrides = nest("dataset", dataset) | {"method": "ccfc++", "preset": "published"}
        overrides |= {"partition": {"p": 0.75, "clients": clients}, "device": device}
        # With different initial weights, the average model would not be typical.
        overrides |= {"data": {"images": images}, "compute": {"precision": precision}}
        overrides |= {"model": {"initialization": "common"}}
        # The plain implementation is CCFC++ by the letter of its paper.
        literal = read_yaml(preset_file("literal"))
        self.config = resolve(ClusterConfig, "cluster", literal, overrides)
        self.data = load_data(self.config)
        self.experiment = clustering_run(self.config, self.data)
        algorithm = self.experiment.algorithm
        assert isinstance(algorithm, CCFC)
        self.algorithm = algorithm
        self.device = self.experiment.device
        self.shape = tuple(self.data.values.shape[1:])
        if self.shape[0] != 1:
            raise typer.BadParameter(
                f"{dataset} is in colour: the plain rounds are for one channel"
            )
        self.make_model = partial(make_model, self.config, self.shape)
        self.clusters = self.experiment.evaluator.clusters
        self.training = self.config.section(TrainingConfig)
        self.batch = self.training.batch_size

    def plain(self) -> PlainFederation:
        """Construct the plain implementation with the same clients."""
        images = [client.images.cpu() for client in self.experiment.clients]
        return PlainFederation(
            self.make_model, images, self.config, self.clusters, self.workers, str(self.device)
        )


def rounds(setting: Setting, repeats: int) -> Seconds:
    """Time a pre-training round, and a cluster-contrastive round with its clustering."""
    federation, plain = setting.experiment.federation(), setting.plain()
    state: EncoderState = setting.algorithm.initial_state(setting.experiment.randomness)
    first_contrast = setting.training.pretrain_rounds

    def ours(number: int, from_state: EncoderState) -> EncoderState:
        # In a run the evaluation shares these representations; here each round computes them.
        for client in setting.experiment.clients:
            client.scratch.clear()
        after: EncoderState = federation.run_round(from_state, number)[0]
        return after

    # Not measured: this round fills caches, and computes the first centroids.
    state = ours(first_contrast - 1, state)
    assert state.centroids is not None
    centroids = state.centroids

    def plain_contrast() -> None:
        plain.contrast_round(centroids)
        plain.cluster()

    return time_by_turns(
        {
            "pre-training round, plain": plain.pretrain_round,
            "pre-training round, ccfcpp": lambda: ours(first_contrast - 2, state),
            "cluster-contrastive round, plain": plain_contrast,
            "cluster-contrastive round, ccfcpp": lambda: ours(first_contrast, state),
        },
        repeats,
    )


def clustering(setting: Setting, repeats: int) -> tuple[Seconds, dict[str, float]]:
    """Time k-means at clients and server on the same representations, and compare inertias."""
    federation, plain = setting.experiment.federation(), setting.plain()
    number = setting.training.pretrain_rounds - 1
    state = setting.algorithm.initial_state(setting.experiment.randomness)
    state, _ = federation.run_round(state, number)
    clients = setting.experiment.clients
    model = setting.algorithm.global_model
    latents = [model.representations(state, c).latents for c in clients]
    rule = CentroidRule(setting.config.section(CentroidConfig), setting.clusters)
    sources = [Randomness(0, number, client.id) for client in clients]

    def ours() -> Tensor:
        updates = rule.local_centroids(latents, sources)
        usable = [update for update in updates if not isinstance(update, RefusedUpdateError)]
        return rule.global_centroids(usable, Randomness(0, number))

    seconds = time_by_turns(
        {"k-means, plain": lambda: plain.kmeans(latents), "k-means, ccfcpp": ours}, repeats
    )
    inertia = 0.0
    for own, update in zip(latents, rule.local_centroids(latents, sources), strict=True):
        assert not isinstance(update, RefusedUpdateError)
        distances = torch.cdist(rule.points(own), update.centroids).amin(dim=1)
        inertia += float(distances.square().sum())
    return seconds, {"inertia at the clients, ccfcpp / plain": inertia / plain.inertia}


def step(setting: Setting, repeats: int) -> tuple[Seconds, dict[str, float]]:
    """Time a pre-training step of one client, and compare its rate with that of matrix products."""
    precision = setting.config.section(PrecisionConfig).precision
    network = FlatNetwork(setting.make_model, setting.device, precision=precision)
    plain = setting.plain().models[0]
    network.load(plain.state_dict())
    adam, plain_adam = FlatAdam(network), torch.optim.Adam(plain.parameters(), lr=1e-3)
    adam.begin(1e-3)
    views = torch.rand(2, setting.batch, *setting.shape, device=setting.device)
    laid_out = [view.contiguous(memory_format=torch.channels_last) for view in views]

    def ours() -> None:
        (z1, p1), (z2, p2) = map(network, laid_out)
        network.backward(siamese((p1, p2), (z1, z2)))
        adam.step()

    def theirs() -> None:
        (z1, p1), (z2, p2) = plain(views[0]), plain(views[1])
        plain_adam.zero_grad()
        torch.autograd.backward(siamese((p1, p2), (z1, z2)))
        plain_adam.step()

    rounded = rounding_dtype(precision, setting.device) or torch.float32
    square = torch.rand(2048, 2048, device=setting.device, dtype=rounded)
    of_a_view = training_operations(
        lambda: setting.make_model().eval()(torch.empty(1, *setting.shape))[1]
    )
    for work in (ours, theirs):
        work()
    return time_training(
        "training step", theirs, ours, repeats, 2 * setting.batch * of_a_view, square
    )


def growth(dataset: str, images: int, device: str) -> dict[str, float]:
    """Time rounds with 10, 100 and 1,000 clients on the same images, each in a separate process."""
    options = ["--dataset", dataset, "--images", str(images), "--device", device]
    return measure_growth(lambda clients: [__file__, "--one-growth", str(clients), *options])


def one_growth(setting: Setting) -> dict[str, float]:
    """Time one round of each kind after a warm-up, and measure this process's peak memory."""
    federation = setting.experiment.federation()
    state = federation.algorithm.initial_state(setting.experiment.randomness)
    number = setting.training.pretrain_rounds
    state, _ = federation.run_round(state, number - 2)
    state, pretraining = federation.run_round(state, number - 1)
    state, _ = federation.run_round(state, number)
    state, contrast = federation.run_round(state, number + 1)
    cohort = setting.experiment.client_side.cohort
    assert cohort is not None
    return {
        "cohort": cohort,
        "pre-training round, s": pretraining.seconds,
        "cluster-contrastive round, s": contrast.seconds,
        **peak_memory(),
    }


@app.command()
def main(
    dataset: Annotated[str, typer.Option(help="A data set's name.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    images: Annotated[int | None, typer.Option(help="Take only so many images.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds that are measured, of each kind.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or auto, of ours.")] = "float32",
    method: Annotated[str, typer.Option(help="fed-scan or fed-emp, of steps.")] = "fed-scan",
    workers: Annotated[int, typer.Option(help="DataLoader workers of the plain rounds.")] = 2,
    parts: Annotated[
        str, typer.Option(help=f"Of: {', '.join(sorted(PARTS))}.")
    ] = "step,kmeans,rounds",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there.")
    ] = None,
    one_growth_clients: Annotated[int | None, typer.Option("--one-growth", hidden=True)] = None,
) -> None:
    """Make the chosen measurements, and print medians and ratios."""
    keep_freed_memory()
    use_processors()
    if one_growth_clients is not None:
        setting = Setting(dataset, one_growth_clients, images, device)
        print(json.dumps(one_growth(setting)))
        return
    wanted = set(parts.split(","))
    if unknown := wanted - PARTS:
        raise typer.BadParameter(f"unknown parts {sorted(unknown)}: take some of {sorted(PARTS)}")
    if method not in SECTIONS:
        raise typer.BadParameter(f"unknown method {method}: take one of {sorted(SECTIONS)}")
    seconds: Seconds = {}
    metrics: dict[str, float] = {}
    if "growth" in wanted:  # First, while this process holds no memory of a device.
        metrics |= growth(dataset, images or 20_000, device)
    if "steps" in wanted:
        settings: Tree = {
            "dataset": dataset,
            "method": method,
            "device": device,
            "data": {"images": images},
            "compute": {"precision": precision},
        }
        metrics |= step_growth(settings)
        more, shares = steps(settings, repeats)
        seconds |= more
        metrics |= shares
    if wanted <= _ALONE:
        report(dataset, device, seconds, metrics, json_path)
        return
    setting = Setting(dataset, clients, images, device, workers, precision)
    if "step" in wanted:
        more, shares = step(setting, 20)
        seconds |= more
        metrics |= shares
    if "kmeans" in wanted:
        more, inertias = clustering(setting, repeats)
        seconds |= more
        metrics |= inertias
    if "rounds" in wanted:
        seconds |= rounds(setting, repeats)
    report(f"{dataset}, {len(setting.data):,} images", device, seconds, metrics, json_path)


def report(
    title: str, device: str, seconds: Seconds, metrics: dict[str, float], json_path: Path | None
) -> None:
    """Print a table of times and other numbers, and write them as JSON if a path is given."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    numbers = [Column(name, justify="right") for name in ("median", "from", "to", "plain / this")]
    table = Table("seconds", *numbers, title=title)
    for name, values in seconds.items():
        yardstick = medians.get(f"{name.split(', ')[0]}, plain")
        ratio = f"{yardstick / medians[name]:.2f}" if yardstick else ""
        spread = [f"{value:.4g}" for value in (medians[name], min(values), max(values))]
        table.add_row(name, *spread, ratio)
    Console().print(table)
    for name, value in metrics.items():
        print(f"{name}: {value:.4g}")
    if json_path is not None:
        environment: dict[str, Any] = describe_environment(choose_device(device))
        content = {"environment": environment, "seconds": seconds, "figures": metrics}
        json_path.write_text(json.dumps(content, indent=2))


if __name__ == "__main__":
    app()
