"""Fed-SCAN beside a plain loop in one place that mixes the batches of all clients."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.neighbours import FEATURES, draw_neighbours
from ccfcpp.clustering.systems.fed_scan.network import ScanNetwork
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig, Tree
from ccfcpp.core.config_layers import merge, parse_assignments, validate
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.affine import affine_maps, draw_affine
from ccfcpp.data.images import to_float
from ccfcpp.data.intensity import draw_intensity, render_intensity
from ccfcpp.data.partition import skewed_partition
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.synchronised.descent import select_images
from ccfcpp.engine.transport import InProcess, Reply
from tests.support.clustering import digits, made
from tests.support.federation import CPU

SMALL: Tree = {
    "method": "fed-scan",
    "scan": {
        "widths": [8, 8],
        "hidden": 12,
        "latent": 10,
        "steps": 20,
        "batch": 40,
        "steps_per_round": 5,
        "learning_rate": 0.01,
        "neighbours": 3,
        "mine_every": 8,
        "matrix_rate": 0.01,
        "precision": "full",
    },
}
CLUSTERS = 4


def small_config(*settings: str) -> ClusterConfig:
    return validate(ClusterConfig, merge(SMALL, parse_assignments(settings)))


def skewed_clients(p: float, *, images: int = 120, clients: int = 4) -> list[Client]:
    """Clients of unequal size with the digits' first classes, divided as the paper divides them."""
    shown, labels = digits()
    chosen = (labels < CLUSTERS).nonzero().flatten()[:images]
    parts = skewed_partition(labels[chosen], CLUSTERS, clients, p, Randomness(0))
    step = 5 if clients == CLUSTERS else 1
    fewer = [part[: len(part) - step * number] for number, part in enumerate(parts)]
    return [Client(n, f"client {n}", shown[chosen[part]]) for n, part in enumerate(fewer)]


def algorithm_for(config: ClusterConfig, clients: Sequence[Client]) -> FedScan:
    samples = sum(map(len, clients))
    fewest = config.fewest_clusters
    return FedScan(Problem(config, (1, 8, 8), CLUSTERS, CPU, samples, fewest))


def system_for(config: ClusterConfig, clients: Sequence[Client]) -> ClusteringAlgorithm[Any]:
    """The system that a configuration names."""
    return made(config, CLUSTERS, samples=sum(map(len, clients)))


class OneByOne:
    """Each client in a process of its own, which has made its half of the algorithm by itself."""

    def __init__(self, config: ClusterConfig, clients: Sequence[Client]) -> None:
        self.memories = ClientMemories(CPU, budget=10**9)
        self.processes = {}
        for client in clients:
            side = system_for(config, clients).client_side(ClientContext.of([client]))
            randomness = Randomness(config.seed)
            self.processes[client.id] = InProcess([client], side, self.memories, randomness)
        self.save = self.memories.save
        self.restore = self.memories.restore
        self.settle = self.memories.settle

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        for member in members:
            yield from self.processes[member.id].deliver(task, message, [member])


def last_state(
    config: ClusterConfig,
    clients: Sequence[Client],
    transport: InProcess | OneByOne,
    availability: Availability | None = None,
    absent: Sequence[int] = (),
) -> Any:
    algorithm = system_for(config, clients)
    members = [client.member for client in clients if client.id not in absent]
    federation = Federation(
        config.method, algorithm, members, availability or Availability(),
        Randomness(config.seed), transport,
    )  # fmt: skip
    *_, (state, _) = federation.run(algorithm.initial_state(Randomness(config.seed)))
    return state


def together(
    config: ClusterConfig, clients: Sequence[Client], merges: bool = True, varies: bool = False
) -> InProcess:
    side = system_for(config, clients).client_side(ClientContext.of(clients))
    memories = ClientMemories(CPU, budget=10**9)
    return InProcess(clients, side, memories, Randomness(config.seed), merges, varies)


class PlainLoop:
    """The same steps in one place: one batch of all clients' pairs, PyTorch's BatchNorm and Adam.

    Neighbours are those of each client, found by the obvious loop; Muon is written out.
    """

    def __init__(self, config: ClusterConfig, clients: Sequence[Client], samples: int) -> None:
        self.config = config.section(ScanConfig)
        self.views = config.section(AffineViewsConfig)
        self.light = config.section(IntensityViewsConfig)
        self.clients = clients
        self.samples = samples
        self.randomness = Randomness(config.seed)
        self.shown: dict[int, int] = {}  # Images of each client in the step.
        self.network = ScanNetwork(self.config, (1, 8, 8), CLUSTERS)
        by_muon = self.config.optimizer == "muon"
        self.matrices = {
            name: (parameter, torch.zeros_like(parameter))
            for name, parameter in self.network.encoder.named_parameters()
            if by_muon and parameter.ndim > 1
        }
        of_muon = [id(parameter) for parameter, _ in self.matrices.values()]
        rest = [p for p in self.network.parameters() if id(p) not in of_muon]
        self.adam = torch.optim.Adam(rest, self.config.learning_rate)

    def run(self, start: EncoderState) -> dict[str, Tensor]:
        self.network.load_state_dict(start.model)
        features = FEATURES[self.config.first_neighbours]
        neighbours = [self.nearest(features(c.images)) for c in self.clients]
        for step in range(self.config.steps):
            if step and step % self.config.mine_every == 0:
                neighbours = [self.nearest(self.latents(c)) for c in self.clients]
            share = 0.5 + 0.5 * math.cos(math.pi * step / self.config.steps)
            for group in self.adam.param_groups:
                group["lr"] = self.config.learning_rate * share
            self.step(step, neighbours)
            self.move_matrices(self.config.matrix_rate * share)
        return self.network.state_dict()

    def absent(self, number: int) -> Collection[int]:
        """The clients that take no part in a round."""
        return ()

    @torch.no_grad()
    def move_matrices(self, rate: float) -> None:
        for parameter, momentum in self.matrices.values():
            assert parameter.grad is not None
            momentum.mul_(0.95).add_(parameter.grad)
            ahead = (parameter.grad + 0.95 * momentum).flatten(1)
            u, singular, v = torch.linalg.svd(ahead, full_matrices=False)
            x = singular / (singular.square().sum().sqrt() + 1e-7)
            for _ in range(5):  # Newton and Schulz's iteration acts on singular values alone
                x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
            direction = u @ torch.diag(x) @ v
            size = 0.2 * max(direction.shape) ** 0.5
            parameter.sub_(direction.view_as(parameter), alpha=rate * size)

    def step(self, step: int, neighbours: Sequence[Tensor]) -> None:
        firsts: list[Tensor] = []
        seconds: list[Tensor] = []
        self.shown.clear()
        absent = self.absent(step // self.config.steps_per_round)
        there = sum(len(client) for client in self.clients if client.id not in absent)
        for client, own in zip(self.clients, neighbours, strict=True):
            if client.id in absent:
                continue
            source = self.randomness.at_round(step // self.config.steps_per_round).of_client(
                client.id
            )
            share = self.config.batch * len(client) / self.samples
            more = share * (min(self.samples / there, 4) - 1)
            turns = select_images(len(client), share, step, source, more=more).tolist()
            chosen = torch.tensor([one for one in turns for _ in range(self.config.pairs_each)])
            self.shown[client.id] = len(chosen)
            others = draw_neighbours(own, chosen, source, step)
            generator = source.generator(f"views {step}")
            maps = affine_maps(draw_affine(2 * len(chosen), generator), self.views)
            lights = draw_intensity(2 * len(chosen), generator).T[:, :, None]
            for index, (image, matrix, light) in enumerate(
                zip(torch.cat([chosen, others]).tolist(), maps, lights, strict=True)
            ):
                shown = to_float(client.images[image : image + 1])
                grid = nn.functional.affine_grid(matrix[None], [1, 1, 8, 8], align_corners=False)
                view = nn.functional.grid_sample(shown, grid, align_corners=False)
                view = render_intensity(view, light, self.light)
                (firsts if index < len(chosen) else seconds).append(view)
        self.network.train()
        self.network.zero_grad()
        self.differentiate(torch.cat([*firsts, *seconds]))
        self.adam.step()

    def differentiate(self, views: Tensor) -> None:
        p, q = torch.softmax(self.network.head(self.network(views)), dim=1).chunk(2)
        mean = torch.cat([p, q]).mean(dim=0)
        entropy = -torch.stack([share * share.log() for share in mean]).sum()
        agreement = torch.stack([(a @ b).log() for a, b in zip(p, q, strict=True)]).mean()
        loss = -agreement - self.config.balance * entropy
        loss.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def latents(self, client: Client) -> Tensor:
        self.network.eval()
        found: Tensor = self.network(to_float(client.images))
        return found

    def nearest(self, points: Tensor) -> Tensor:
        rows = []
        for one in range(len(points)):
            cosines = [
                float(nn.functional.cosine_similarity(points[one], other, dim=0))
                for other in points
            ]
            order = sorted(range(len(points)), key=lambda other: -cosines[other])
            rows.append([other for other in order if other != one][: self.config.neighbours])
        return torch.tensor(rows)

    @torch.no_grad()
    def transitions(self) -> Tensor:
        """Means of p(x) p(x′)ᵀ over neighbours, and over a client's other images, summed over x."""
        over = self.network.head.out_features
        total = torch.zeros(2, over, over)
        for client in self.clients:
            latents = self.latents(client)
            p = self.network.head(latents).softmax(dim=1)
            for own, others in enumerate(self.nearest(latents).tolist()):
                near = torch.stack([p[other] for other in others]).mean(dim=0)
                held = [p[other] for other in range(len(client)) if other != own]
                total[0] += torch.outer(p[own], near)
                total[1] += torch.outer(p[own], torch.stack(held).mean(dim=0))
        return total


class LaggedLoop(PlainLoop):
    """The same, with mean prediction and gradient at the latents' statistics of the step before."""

    before: tuple[Tensor, list[Tensor], int] | None = None
    done = 0

    def differentiate(self, views: Tensor) -> None:
        *below, norm = self.network.encoder
        latents = nn.Sequential(*below)(views)
        norm(latents.detach())  # for its running statistics
        a = latents.detach().requires_grad_()
        mean, variance = (s.requires_grad_() for s in (latents.detach().mean(dim=0),
                          latents.detach().var(dim=0, unbiased=False)))  # fmt: skip
        z = (a - mean) / (variance + 1e-5).sqrt()
        p = self.network.head(z).softmax(dim=1)
        now = p.sum(dim=0).detach()
        lagged = self.done >= self.config.exact_steps and self.before
        old, slopes, count = lagged or (now, None, len(a))
        first, second = p.chunk(2)
        agreement = -(first * second).sum(dim=1).log().sum() * 2 / count
        # The gradient of Σ p̄ log p̄ at the mean of the step before.
        balance = p.sum(dim=0) @ ((old / count).log() + 1) / count
        loss = agreement + self.config.balance * balance
        loss.backward(retain_graph=True)
        found = [s.grad for s in (mean, variance) if s.grad is not None]
        by_mean, by_variance = (slope / len(a) for slope in slopes or found)
        assert a.grad is not None
        through_statistics = by_mean + 2 * (a - mean).detach() * by_variance
        torch.autograd.backward(latents, a.grad + through_statistics)
        self.before = now, found, len(a)
        self.done += 1


class RememberingLoop(PlainLoop):
    """The same with absent clients, whose last sums count on."""

    availability = Availability()

    def run(self, start: EncoderState) -> dict[str, Tensor]:
        self.last: dict[int, tuple[Tensor, ...]] = {}
        return super().run(start)

    def absent(self, number: int) -> Collection[int]:
        everyone = [client.id for client in self.clients]
        here = self.availability.taking_part(everyone, self.randomness.at_round(number))
        return set(everyone) - set(here)

    def differentiate(self, views: Tensor) -> None:
        *below, _ = self.network.encoder
        latents = nn.Sequential(*below)(views)
        whose = torch.tensor([client for client, n in self.shown.items() for _ in range(n)] * 2)
        away = [last for client, last in self.last.items() if client not in self.shown]
        count = len(latents) + sum(float(last[0]) for last in away)
        mean = (latents.sum(dim=0) + sum(last[1] for last in away)) / count
        square = (latents.square().sum(dim=0) + sum(last[2] for last in away)) / count
        z = (latents - mean) / (square - mean.square() + 1e-5).sqrt()
        p = self.network.head(z).softmax(dim=1)
        shares = (p.sum(dim=0) + sum(last[3] for last in away)) / count
        first, second = p.chunk(2)
        agreement = -(first * second).sum(dim=1).log().sum() * 2 / count
        loss = agreement + self.config.balance * (shares * shares.log()).sum()
        loss.backward()
        for client in [client for client, n in self.shown.items() if n]:
            own, predicted = latents[whose == client].detach(), p[whose == client].detach()
            sums = own.sum(dim=0), own.square().sum(dim=0), predicted.sum(dim=0)
            self.last[client] = torch.tensor(len(own)), *sums
