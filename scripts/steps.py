"""What synchronised steps cost beside a plain loop over the same images in one place."""

import json
import resource
import statistics
import subprocess
import sys
from itertools import count

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.scan.algorithm import FedScan
from ccfcpp.clustering.scan.messages import ScanState
from ccfcpp.clustering.setup import load_data
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, resolve
from scripts.timing import Seconds, alternate, console

STEPS = 5
"""Steps that are measured at a time."""


def experiment_of(
    dataset: str, clients: int, images: int | None, device: str, scan: Tree | None = None
) -> ClusteringExperiment:
    """Fed-SCAN with a data set's preset, a few steps a round, and neighbours found only once."""
    settings: Tree = {
        "dataset": dataset,
        "method": "fed-scan",
        "device": device,
        "partition": {"p": 0.75, "clients": clients},
        "data": {"images": images},
        "scan": {"steps_per_round": STEPS, "mine_every": 10**6, "steps": 10**6},
    }
    config = resolve(ClusterConfig, "cluster", merge(settings, {"scan": scan or {}}))
    return ClusteringExperiment(config, load_data(config))


class Rounds:
    """Rounds of a run, after a first one that finds neighbours."""

    def __init__(self, experiment: ClusteringExperiment) -> None:
        self.federation = experiment.federation()
        state: ScanState = experiment.algorithm.initial_state(experiment.randomness)
        self.state, _ = self.federation.run_round(state, 0)
        self.numbers = count(1)

    def run(self) -> None:
        """The next one."""
        self.state, _ = self.federation.run_round(self.state, next(self.numbers))


class PlainSteps:
    """The same network, views and batch in one place: a loop as one would write it.

    Images are paired with random ones: to find neighbours is not a part of a step.
    """

    def __init__(self, experiment: ClusteringExperiment) -> None:
        algorithm = experiment.algorithm
        assert isinstance(algorithm, FedScan)
        self.algorithm = algorithm
        self.device = experiment.device
        self.images = torch.cat([client.images for client in experiment.clients])
        self.network = algorithm.make_network().to(self.device)
        self.adam = torch.optim.Adam(self.network.parameters(), algorithm.config.learning_rate)
        self.generator = torch.Generator().manual_seed(0)

    def run(self) -> None:
        """As many steps as a round has."""
        for _ in range(STEPS):
            self.adam.zero_grad()
            torch.autograd.backward(self.loss())
            self.adam.step()

    def loss(self) -> Tensor:
        """SCAN's."""
        config = self.algorithm.config
        chosen = torch.randint(len(self.images), (2 * config.batch,), generator=self.generator)
        draws = self.algorithm.views.draw(len(chosen), self.generator)
        views = self.algorithm.views.render(self.images[chosen.to(self.device)], draws)
        predictions = self.network.predictions(self.network(views))
        first, second = predictions.chunk(2)
        mean = predictions.mean(dim=0)
        balance = (mean * mean.clamp(min=1e-9).log()).sum()
        agreement = (first * second).sum(dim=-1).clamp(min=1e-9).log().mean()
        return config.balance * balance - agreement


def operations(experiment: ClusteringExperiment) -> float:
    """Floating-point operations of the products of one measured piece of work."""
    algorithm = experiment.algorithm
    assert isinstance(algorithm, FedScan)
    shape = experiment.problem.image_shape
    total = 0.0
    with torch.device("meta"):
        network = algorithm.make_network().eval()

    def add(layer: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer.weight, Tensor)
        forward = 2 * output[0].numel() * layer.weight[0].numel()
        # The first layer's input needs no gradient.
        total += forward * (2 if inputs[0].shape[1:] == shape else 3)

    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(add)
    network.predictions(network(torch.empty(1, *shape, device="meta")))
    return total * 2 * algorithm.config.batch * STEPS


def steps(
    dataset: str, images: int | None, device: str, repeats: int
) -> tuple[Seconds, dict[str, float]]:
    """Steps of ten clients beside the plain loop's, and the share of the best product rate."""
    experiment = experiment_of(dataset, 10, images, device)
    rounds, plain = Rounds(experiment), PlainSteps(experiment)
    square = torch.rand(2048, 2048, device=experiment.device)
    plain.run()
    name = f"{STEPS} synchronised steps"
    seconds = alternate(
        {
            "2048³ product": lambda: square @ square,
            f"{name}, plain": plain.run,
            f"{name}, ccfcpp": rounds.run,
        },
        repeats,
    )
    own, other, product = (
        statistics.median(seconds[key])
        for key in (f"{name}, ccfcpp", f"{name}, plain", "2048³ product")
    )
    rate = 2 * 2048**3 / product
    done = operations(experiment)
    return seconds, {
        "cost of federation: ccfcpp / plain": own / other,
        "product rate, GFLOP/s": rate / 1e9,
        "share of it, plain": done / other / rate,
        "share of it, ccfcpp": done / own / rate,
    }


def step_growth(dataset: str, images: int | None, device: str) -> dict[str, float]:
    """The same steps over more and more clients, each number in a process of its own."""
    results: dict[str, float] = {}
    for clients in (10, 100, 1000):
        call = (
            f"import scripts.steps as s; s.one_growth({dataset!r}, {clients}, {images}, {device!r})"
        )
        output = subprocess.run(  # noqa: S603 - its own
            [sys.executable, "-c", call], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for name, value in json.loads(output).items():
            results[f"{clients} clients: {name}"] = value
            console.print(f"{clients} clients: {name} {value:.4g}")
    return results


def one_growth(dataset: str, clients: int, images: int | None, device: str) -> None:
    """Print the median of three measured rounds, and the peak memory of this process."""
    from ccfcpp.runs.environment import keep_freed_memory, use_processors

    keep_freed_memory()
    use_processors()
    rounds = Rounds(experiment_of(dataset, clients, images, device))
    seconds = alternate({"rounds": rounds.run}, 3)["rounds"]
    found = {
        f"{STEPS} steps, s": statistics.median(seconds),
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "peak memory of the device, GB": torch.cuda.max_memory_allocated() / 1e9,
    }
    print(json.dumps(found))
