"""CCFC++ in synchronised steps is plain training in one place, for every partition."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.estimator import FederatedClustering
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.clustering.systems.ccfc.messages import ClusterSizes
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.schedule import contrast_learning_rate
from ccfcpp.clustering.systems.ccfc.synchronised import CollectSizes
from ccfcpp.core.config import Tree, ViewsConfig
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import StoppedError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.descent import select_images
from ccfcpp.runs.folder import RunFolder
from tests.clustering.systems.ccfc.test_pooled_losses import IDLE, all_pairs, covariance_term, d
from tests.support.clustering import digits
from tests.support.clustering import small_config as of_any_method
from tests.support.command import ccfcpp
from tests.support.federation import federated, refusal
from tests.support.scan import OneByOne, last_state, skewed_clients, system_for, together

BATCH = 40
STEPS = (
    "training.steps=synchronised", f"training.synchronised_batch={BATCH}",
    "training.schedule=cosine", "loss.min_cluster_size=3",
)  # fmt: skip
NEIGHBOURS = (
    "training.pretraining=neighbours", "scan.steps=6", "scan.steps_per_round=3", "scan.batch=40",
    "scan.neighbours=3", "scan.mine_every=2", "scan.precision=full",
)  # fmt: skip
WARM = ("training.predictor_steps=5",)
IDLE_BIASES = IDLE | {"backbone.3.bias"}
VARIANTS = pytest.mark.parametrize(
    "settings",
    [STEPS, (*STEPS, *NEIGHBOURS), NEIGHBOURS],
    ids=["synchronised", "neighbours, synchronised", "neighbours, local"],
)


def small_config(*settings: str) -> ClusterConfig:
    return of_any_method("method=ccfc++", *settings)


class PlainLoop:
    """The same steps in one place: one batch of all clients' images, PyTorch's BatchNorm and Adam.

    Centroids are those of the run that it is compared with.
    """

    def __init__(self, config: ClusterConfig, clients: Sequence[Client]) -> None:
        self.config = config
        self.training = config.section(TrainingConfig)
        self.loss = config.section(LossConfig)
        self.clients = clients
        self.samples = sum(map(len, clients))
        self.steps = 0
        algorithm: Any = system_for(config, clients)
        self.model: ContrastiveModel = algorithm.make_model()

    def run(self, states: Sequence[EncoderState]) -> None:
        """Start from the first state, and take the centroids of each round from the one before."""
        self.model.load_state_dict(states[0].model)
        for number, before in enumerate(states[:-1]):
            pretrains = number < self.training.pretrain_rounds
            if number in (0, self.training.pretrain_rounds):
                adam = torch.optim.Adam(self.model.parameters())
            rate = contrast_learning_rate(self.training, number)
            adam.param_groups[0]["lr"] = self.training.learning_rate if pretrains else rate
            labels = [] if pretrains else [self.labels(c, before.centroids) for c in self.clients]
            if number == self.training.pretrain_rounds:
                self.train_predictor(labels)
            self.model.train()
            for _ in range(round(self.training.local_epochs * self.samples / BATCH)):
                loss = self.siamese(number) if pretrains else self.contrast(labels)
                self.step(loss, adam)
                self.steps += 1

    def step(self, loss: Tensor, adam: torch.optim.Adam) -> None:
        adam.zero_grad()
        torch.autograd.backward(loss)
        for name, parameter in self.model.named_parameters():
            # Rounding errors of 0, which Adam would take for a direction.
            if name in IDLE_BIASES:
                assert parameter.grad is not None
                assert float(parameter.grad.abs().max()) < 1e-8
                parameter.grad.zero_()
        adam.step()

    def turns(self, client: Client) -> Tensor:
        share = BATCH * len(client) / self.samples
        return select_images(len(client), share, self.steps, Randomness(0).of_client(client.id))

    def siamese(self, number: int) -> Tensor:
        firsts, seconds = [], []
        for client in self.clients:
            chosen = self.turns(client)
            source = Randomness(0, number, client.id).generator(f"views {self.steps}")
            drawn = draw_views(2 * len(chosen), self.config.section(ViewsConfig), (8, 8), source)
            for place, image in enumerate(chosen.tolist()):
                shown = client.images[image : image + 1].double() / 255
                firsts.append(render_views(shown, drawn[place : place + 1]))
                other = len(chosen) + place
                seconds.append(render_views(shown, drawn[other : other + 1]))
        z, p = self.model(torch.cat([*firsts, *seconds]))
        (z1, z2), (p1, p2) = z.chunk(2), p.chunk(2)
        loss: Tensor = (d(p1, z2) + d(p2, z1)).mean() / 2
        return loss + self.loss.pretrain_eta * covariance_term(z)

    @torch.no_grad()
    def labels(self, client: Client, centroids: Tensor | None) -> Tensor:
        assert centroids is not None
        z = self.model.eval().encode(client.images.double() / 255)
        similarities = F.normalize(z, dim=1) @ F.normalize(centroids.double(), dim=1).T
        return similarities.argmax(dim=1)

    def labelled(self, labels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What a cluster-contrastive step shows, and the pseudo-labels."""
        turns = [self.turns(client) for client in self.clients]
        images = [c.images[chosen] for c, chosen in zip(self.clients, turns, strict=True)]
        own = torch.cat([known[chosen] for known, chosen in zip(labels, turns, strict=True)])
        return torch.cat(images).double() / 255, own

    def contrast(self, labels: Sequence[Tensor]) -> Tensor:
        images, own = self.labelled(labels)
        z, p = self.model(images)
        pairs = all_pairs(p, z, own, self.loss.min_cluster_size, clusters=4)
        return pairs + self.loss.eta * covariance_term(z)

    def train_predictor(self, labels: Sequence[Tensor]) -> None:
        """On latents that do not change."""
        adam = torch.optim.Adam(self.model.predictor.parameters(), lr=1e-3)
        self.model.eval()
        self.model.predictor.train()
        for _ in range(self.training.predictor_steps):
            images, own = self.labelled(labels)
            z = self.model.encode(images).detach()
            p = self.model.predictor(z)
            loss = all_pairs(p, z, own, self.loss.min_cluster_size, clusters=4)
            adam.zero_grad()
            torch.autograd.backward(loss)
            bias = self.model.predictor[0].bias.grad
            assert isinstance(bias, Tensor)
            bias.zero_()  # BatchNorm takes it away again; see ``step``
            adam.step()
            self.steps += 1


def states_of(config: ClusterConfig, clients: Sequence[Client]) -> list[EncoderState]:
    """Before the first round, and after each."""
    federation = federated(config.method, system_for(config, clients), clients, config.seed)
    start = federation.algorithm.initial_state(federation.randomness)
    return [start, *(state for state, _ in federation.run(start))]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("settings", [(), WARM])
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rounds_of_both_phases_are_those_of_a_plain_loop_over_mixed_batches(
    p: float, settings: tuple[str, ...]
) -> None:
    config, clients = small_config(*STEPS, *settings), skewed_clients(p)
    assert len({len(client) for client in clients}) == len(clients)
    states = states_of(config, clients)
    loop = PlainLoop(config, clients)
    loop.run(states)
    alone = loop.training.predictor_steps
    assert states[-1].version == loop.steps == 4 * round(sum(map(len, clients)) / BATCH) + alone
    expected = loop.model.state_dict()
    assert states[-1].model.keys() == expected.keys()
    for name, found in states[-1].model.items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-7, msg=name)
    moved = max(float((expected[n] - states[0].model[n]).abs().max()) for n in expected)
    assert moved > 0.005


def assert_close(found: EncoderState, expected: EncoderState) -> None:
    """But for rounding."""
    first, second = pack(found), pack(expected)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("settings", [STEPS, (*STEPS, *NEIGHBOURS), (*STEPS, *NEIGHBOURS, *WARM)])
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_clients_in_processes_of_their_own_make_the_same_steps(
    settings: tuple[str, ...], p: float
) -> None:
    config, availability = small_config(*settings), Availability(dropout_rate=0.2)
    alone = last_state(config, skewed_clients(p), OneByOne(config, skewed_clients(p)), availability)
    clients = skewed_clients(p)
    side_by_side = together(config, clients, varies=True)
    assert_close(alone, last_state(config, clients, side_by_side, availability))


@pytest.mark.usefixtures("double_precision")
def test_clients_that_seldom_have_a_turn_are_no_exception() -> None:
    """Twelve clients share a batch of 8 images: in each step some have none to show."""
    config = small_config(*STEPS, "training.synchronised_batch=8", "training.rounds=1",
                          "training.pretrain_rounds=1")  # fmt: skip
    first, second = (skewed_clients(0.0, clients=12, images=200) for _ in range(2))
    alone = last_state(config, first, OneByOne(config, first))
    assert_close(alone, last_state(config, second, together(config, second, varies=True)))


def test_the_server_keeps_the_moments_and_they_start_anew_with_a_phase() -> None:
    config, clients = small_config(*STEPS), skewed_clients(0.5)
    _, first, second, third, last = states_of(config, clients)
    steps = round(sum(map(len, clients)) / BATCH)
    assert first.descent is not None
    assert first.descent.steps == steps
    assert second.descent is None  # with the first centroids pre-training is over
    assert third.descent is not None
    assert third.descent.steps == steps
    assert last.descent is not None
    assert last.descent.steps == 2 * steps
    assert not any("descent" in name for name in pack(last.public))


def test_clients_without_labels_of_a_round_sit_it_out() -> None:
    """Those that were refused, or that remember another round's."""
    config = small_config(*STEPS, "training.pretrain_rounds=0")
    clients = skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    state = replace(algorithm.initial_state(Randomness(0)), centroids=torch.randn(4, 12))
    for client in clients:
        client.memory = {"pseudo-labels": torch.zeros(len(client)), "round": torch.tensor(7)}
    find, *trips = algorithm.synchronised.contrast_works(0)
    assert find.exchange.name == "pseudo-labels"
    federation = federated(config.method, algorithm, clients)
    side = federation.transport.side
    task = Task(config.method, trips[0].exchange.name, 0, 0)
    work = side.works[trips[0].exchange.name]
    known = trips[0].broadcast(state)
    sums = work.local_sum(task, known, clients, Randomness(0, 0)).sums  # type: ignore[union-attr]
    assert all(not part.any() for part in sums.values())


def test_sizes_that_cannot_be_are_refused() -> None:
    state = EncoderState({}, centroids=torch.zeros(3, 2))
    work, counts = CollectSizes(3), torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    assert refusal(work, state, ClusterSizes(counts), samples=3) is None
    # Fewer may come, since a client keeps small clusters to itself.
    assert refusal(work, state, ClusterSizes(counts), samples=4) is None
    assert "counts 3 samples" in (refusal(work, state, ClusterSizes(counts), samples=2) or "")
    assert "fewer than no" in (refusal(work, state, ClusterSizes(-counts), samples=3) or "")
    assert "expected" in (refusal(work, state, ClusterSizes(counts[:2]), samples=3) or "")


@pytest.mark.parametrize("least", [0, 5])
def test_sizes_of_small_clusters_are_not_told(least: int) -> None:
    config = small_config(*STEPS, "training.pretrain_rounds=0")
    clients = skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    state = replace(algorithm.initial_state(Randomness(0)), centroids=torch.randn(4, 12))
    (work, *_) = algorithm.synchronised.client_works(ClientContext(99, 1, least=least))
    told = work.local_sum(Task("", "", 0, 0), state.public, clients[:1], Randomness(0)).counts
    sizes = clients[0].memory["pseudo-labels"].bincount(minlength=4)
    assert told.tolist() == torch.where(sizes >= least, sizes, 0).tolist()


# --- pre-training by neighbours -----------------------------------------------------------------


def test_the_first_centroids_are_mean_latents_of_the_heads_clusters() -> None:
    config, clients = small_config(*NEIGHBOURS, "training.rounds=0"), skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    assert algorithm.rounds == 2
    assert algorithm.describe() == {"pretrain_rounds": 2}
    _, before, after = states_of(config, clients)
    assert "head.weight" in before.model
    assert algorithm.knows_clusters(before)
    assert set(after.model) == set(algorithm.make_model().state_dict())
    assert after.descent is None
    assert after.centroids is not None
    latents = torch.cat([algorithm.represent(after, replace(c, scratch={})) for c in clients])
    assert after.centroids.shape == (4, latents.shape[1])
    counts = torch.linalg.lstsq(
        torch.cat([after.centroids, torch.ones(4, 1)], dim=1).T,
        torch.cat([latents.mean(dim=0), torch.ones(1)])[:, None],
        driver="gelsd",  # Clusters without an image have the same centroid.
    ).solution
    # The mean of all latents is a mean of the centroids, by the sizes of their clusters.
    mixed = (after.centroids * counts).sum(dim=0)
    torch.testing.assert_close(mixed, latents.mean(dim=0), atol=1e-4, rtol=1e-4)


MERGED = (
    "scan.overclustering=3", "centroids.search=lloyd", "centroids.refine_steps=2",
)  # fmt: skip


@pytest.mark.parametrize("steps", [STEPS, ()], ids=["synchronised", "local"])
def test_centroids_of_overclusters_belong_to_the_clusters_they_are_merged_into(
    steps: tuple[str, ...],
) -> None:
    config, clients = small_config(*NEIGHBOURS, *MERGED, *steps), skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    first, *_, last = states_of(config, clients)
    assert not algorithm.knows_clusters(first)  # Nothing is merged yet.
    assert last.centroids is not None
    assert last.groups is not None
    assert last.centroids.shape == (12, 12)
    assert set(last.groups.tolist()) <= set(range(4))
    centres = algorithm.centres(last)
    for cluster in range(4):
        own = last.centroids[last.groups == cluster]
        torch.testing.assert_close(
            centres[cluster], own.mean(dim=0) if len(own) else centres[0] * 0
        )
    for client in clients:
        whole = replace(client, scratch={})
        latents = F.normalize(algorithm.represent(last, whole), dim=1)
        nearest = (latents @ F.normalize(last.centroids, dim=1).T).argmax(dim=1)
        assert torch.equal(algorithm.assign(last, whole), last.groups[nearest])


def test_where_kmeans_finds_centroids_nothing_is_merged() -> None:
    assert system_for(small_config(*NEIGHBOURS), skewed_clients(0.5)).rule.clusters == 4  # type: ignore[attr-defined]


def test_on_its_network_pre_training_is_fed_scan() -> None:
    """The same weights go through the same rounds, and the last one alone goes on to centroids."""
    small = ("scan.stem=8", "scan.widths=[8]", "scan.hidden=9", "scan.optimizer=adam")
    clients = skewed_clients(0.5)
    ours = small_config(*NEIGHBOURS, *small, "model.backbone=scan")
    theirs = of_any_method("method=fed-scan", *NEIGHBOURS[1:], *small, "scan.latent=12")
    here, there = (federated(c.method, system_for(c, clients), clients) for c in (ours, theirs))
    start: Any = there.algorithm.initial_state(there.randomness)
    own: Any = here.algorithm.initial_state(here.randomness)
    names = dict(zip(start.model, own.model, strict=True))
    own = replace(own, model={names[name]: entry for name, entry in start.model.items()})
    after: Any = next(there.run(start))[0]
    found: Any = next(here.run(own))[0]
    for name, entry in after.model.items():
        assert torch.equal(found.model[names[name]], entry)
    assert any(not torch.equal(after.model[name], start.model[name]) for name in names)


def test_in_pre_training_by_neighbours_the_head_assigns() -> None:
    config, clients = small_config(*NEIGHBOURS), skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    start = replace(algorithm.initial_state(Randomness(0)), version=1)
    assert algorithm.assign(start, clients[0]).max() < 4
    assert algorithm.represent(start, clients[0]).shape == (len(clients[0]), 12)


def test_where_nobody_gave_centroids_the_next_round_finds_them_by_the_head() -> None:
    config, clients = small_config(*NEIGHBOURS, *STEPS), skewed_clients(0.5)
    algorithm: Any = system_for(config, clients)
    start = algorithm.initial_state(Randomness(0))
    names = [work.exchange.name for work in algorithm.exchanges(2, start)]
    assert (names[0], names[1], names[-1]) == ("centres", "pseudo-labels", "centroids")
    names = [work.exchange.name for work in algorithm.exchanges(1, start)]
    assert names[-1] == "centres"


# --- whole runs ---------------------------------------------------------------------------------


@VARIANTS
def test_a_run_that_is_stopped_after_each_round_ends_the_same(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    config = small_config(*settings, "data.images=120", "partition.clients=3")
    folders = [RunFolder.create(tmp_path / name, config) for name in ("whole", "broken")]
    clustering_run(config).run(folders[0])
    for _ in range(config.section(TrainingConfig).rounds + 1):
        with pytest.raises(StoppedError):
            clustering_run(config).run(folders[1], should_stop=lambda: True)
    clustering_run(config).run(folders[1])
    whole, broken = (load_file(folder.model) for folder in folders)
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


def test_the_estimator_takes_the_same_settings() -> None:
    settings: Tree = {
        "training": {"rounds": 1, "steps": "synchronised", "pretraining": "neighbours"},
        "model": {"widths": [4, 6], "projector_width": 12, "latent": 8, "predictor_width": 4},
        "scan": {"steps": 4, "steps_per_round": 2, "batch": 30},
    }
    images = digits()[0][:90, 0].numpy()
    owners = torch.arange(90).remainder(3).numpy()
    made = FederatedClustering(4, method="ccfc++", settings=settings)
    found = made.fit(images, clients=owners)
    assert found.n_iter_ == 3
    assert found.cluster_centers_.shape == (4, 8)


def test_no_round_at_all_is_refused_only_where_nothing_trains() -> None:
    none: Tree = {"rounds": 0, "pretrain_rounds": 0}
    by_neighbours: Tree = {"training": {**none, "pretraining": "neighbours"}}
    validate(ClusterConfig, {"method": "ccfc++", **by_neighbours})
    result = ccfcpp("cluster", "--preset", "published", "--rounds", 0, "--pretrain-rounds", 0)
    assert "run one at least" in result.stderr
