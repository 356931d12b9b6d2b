"""Cost of synchronised steps (all clients contribute to each), compared with a plain loop."""

import json
import statistics
from itertools import count

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.setup import load_data
from ccfcpp.clustering.systems.fed_emp.algorithm import FedEmp
from ccfcpp.clustering.systems.fed_emp.network import crop_side
from ccfcpp.clustering.systems.fed_emp.steps import PRECISION, Crops
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
from ccfcpp.core.config import IntensityViewsConfig, PrecisionConfig, Tree
from ccfcpp.core.config_layers import merge, resolve
from ccfcpp.models.pooled import rounding_dtype
from ccfcpp.models.state import ModelState
from scripts.timing import (
    Seconds,
    measure_growth,
    peak_memory,
    time_by_turns,
    time_training,
    training_operations,
)

STEPS = 5
"""Number of steps that are timed together: those of a round."""


SECTIONS = {"fed-scan": "scan", "fed-emp": "crops"}
"""Methods with synchronised steps, and their sections of the configuration."""


def experiment_of(clients: int, settings: Tree) -> ClusteringRun:
    """Construct a run with ``STEPS`` steps a round; Fed-SCAN searches neighbours only once."""
    method = settings.get("method", "fed-scan")
    few: Tree = {"steps_per_round": STEPS, "steps": 10**6}
    if method == "fed-scan":
        few["mine_every"] = 10**6
    measured = {
        "method": method,
        "partition": {"p": 0.75, "clients": clients},
        SECTIONS[method]: few,
    }
    config = resolve(ClusterConfig, "cluster", merge(settings, measured))
    return clustering_run(config, load_data(config))


class Rounds:
    """Rounds of a run by ccfcpp; the constructor makes the first, which searches neighbours."""

    def __init__(self, experiment: ClusteringRun) -> None:
        self.federation = experiment.federation()
        state = experiment.algorithm.initial_state(experiment.randomness)
        self.state, _ = self.federation.run_round(state, 0)
        self.numbers = count(1)

    def run(self) -> None:
        """Run the next round."""
        self.state, _ = self.federation.run_round(self.state, next(self.numbers))


class PlainScan:
    """Plain training loop with Fed-SCAN's network, views and batch size, without federation.

    Images are paired with random ones, since the search for neighbours is not timed.
    """

    def __init__(self, experiment: ClusteringRun) -> None:
        algorithm = experiment.algorithm
        assert isinstance(algorithm, FedScan)
        self.algorithm = algorithm
        self.device = experiment.device
        self.images = torch.cat([client.images for client in experiment.clients])
        self.network = algorithm.make_network().to(self.device)
        self.adam = torch.optim.Adam(self.network.parameters(), algorithm.config.learning_rate)
        self.generator = torch.Generator().manual_seed(0)

    def run(self) -> None:
        """Run as many steps as a round has."""
        for _ in range(STEPS):
            self.adam.zero_grad()
            torch.autograd.backward(self.loss())
            self.adam.step()

    def loss(self) -> Tensor:
        """Compute SCAN's loss for a random batch."""
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


class PlainEmp:
    """Plain training loop with Fed-EMP's network, crops and optimizer, without federation."""

    def __init__(self, experiment: ClusteringRun) -> None:
        algorithm = experiment.algorithm
        assert isinstance(algorithm, FedEmp)
        phase = algorithm.phase
        self.config, self.descent = phase.config, phase.descent
        self.images = torch.cat([client.images for client in experiment.clients])
        self.network = phase.make_encoder().to(experiment.device)
        intensity = experiment.evaluator.problem.config.section(IntensityViewsConfig)
        self.crops = Crops(intensity, self.config.flip_probability)
        self.generator = torch.Generator().manual_seed(0)
        self.state = self.descent.optimizer.begin(dict(self.network.named_parameters()))

    def run(self) -> None:
        """Run as many steps as a round has."""
        for _ in range(STEPS):
            self.network.zero_grad()
            torch.autograd.backward(self.loss())
            parameters: ModelState = dict(self.network.named_parameters())
            with torch.no_grad():
                gradient: ModelState = {
                    name: entry.grad for name, entry in parameters.items() if entry.grad is not None
                }
                moved, self.state = self.descent.optimizer.step(
                    parameters, gradient, self.state, 1.0
                )
                for name, entry in parameters.items():
                    entry.copy_(moved[name])

    def loss(self) -> Tensor:
        """Compute Fed-EMP's loss for a random batch: total coding rate, and agreement of crops."""
        config = self.config
        chosen = torch.randint(len(self.images), (config.batch,), generator=self.generator)
        draws = self.crops.draw(config.batch * config.each, self.generator)
        z = self.network(self.crops.render(self.images[chosen.to(self.images.device)], draws))
        scale = config.latent / (len(z) * PRECISION)
        wide = z.double()
        rate = torch.logdet(torch.eye(config.latent).to(wide) + scale * wide.T @ wide) / 2
        own = z.view(config.batch, config.each, -1)
        mean = F.normalize(own.mean(dim=1, keepdim=True), dim=2)
        loss: Tensor = -rate - config.weight * (own * mean).sum() / len(z)
        return loss


def plain_steps(experiment: ClusteringRun) -> "PlainScan | PlainEmp":
    """Return the plain loop for the method of a run."""
    return (PlainEmp if experiment.evaluator.config.method == "fed-emp" else PlainScan)(experiment)


def operations(experiment: ClusteringRun) -> int:
    """Count the floating-point operations of layers in ``STEPS`` steps, forward and backward."""
    algorithm, (channels, *sides) = experiment.algorithm, experiment.evaluator.problem.image_shape
    if isinstance(algorithm, FedEmp):
        phase, side = algorithm.phase, crop_side(*sides)
        each = training_operations(
            lambda: phase.make_encoder()(torch.empty(1, channels, side, side))
        )
        return each * phase.config.batch * phase.config.each * STEPS
    assert isinstance(algorithm, FedScan)

    def predictions() -> Tensor:
        network = algorithm.make_network().eval()
        return network.predictions(network(torch.empty(1, channels, *sides)))

    return training_operations(predictions) * 2 * algorithm.config.batch * STEPS


def steps(settings: Tree, repeats: int) -> tuple[Seconds, dict[str, float]]:
    """Time steps of ten clients and of the plain loop, also relative to matrix products."""
    experiment = experiment_of(10, settings)
    rounds, plain = Rounds(experiment), plain_steps(experiment)
    precision = experiment.evaluator.config.section(PrecisionConfig).precision
    dtype = rounding_dtype(precision, experiment.device) or torch.float32
    square = torch.rand(2048, 2048, device=experiment.device).to(dtype)
    plain.run()
    name = f"{STEPS} synchronised steps"
    seconds, shares = time_training(
        name, plain.run, rounds.run, repeats, operations(experiment), square
    )
    own, other = (statistics.median(seconds[f"{name}, {whose}"]) for whose in ("ccfcpp", "plain"))
    return seconds, {"cost of federation: ccfcpp / plain": own / other, **shares}


def step_growth(settings: Tree) -> dict[str, float]:
    """Time steps with 10, 100 and 1,000 clients on the same images, each in its own process."""
    return measure_growth(
        lambda n: ["-c", f"import scripts.steps as s; s.one_growth({n}, {settings!r})"]
    )


def one_growth(clients: int, settings: Tree) -> None:
    """Print the median seconds of three rounds, and the peak memory of this process, as JSON."""
    from ccfcpp.runs.environment import keep_freed_memory, use_processors

    keep_freed_memory()
    use_processors()
    rounds = Rounds(experiment_of(clients, settings))
    seconds = time_by_turns({"rounds": rounds.run}, 3)["rounds"]
    median = statistics.median(seconds)
    print(json.dumps({f"{STEPS} steps, s": median, **peak_memory()}))
