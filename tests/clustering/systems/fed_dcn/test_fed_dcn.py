"""FedDCN against slow, obvious versions; what it refuses; and a small run."""

import math
import statistics
from dataclasses import replace

import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.systems.fed_dcn.algorithm import (
    CENTROIDS,
    OWN_NETWORK,
    DCNState,
    FedDCN,
    _beside,
)
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.fed_dcn.network import LocalClusters, embed, fed_dcn_loss, part_of
from ccfcpp.clustering.systems.shallow.k_fed import LocalCentroids
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack, unpack
from tests.support.clustering import answers, clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import assert_same_bits, federated, refusal

SEEDS = st.integers(0, 10**6)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def system(*trees: Tree) -> FedDCN:
    found = made(tiny("fed-dcn", *trees))
    assert isinstance(found, FedDCN)
    return found


@given(SEEDS, st.integers(1, 6), st.booleans(), st.booleans())
def test_the_loss_and_its_gradient_are_those_of_loops(
    seed: int, batch: int, clustered: bool, embedded: bool
) -> None:
    points, shown, aims, centroids = (drawn(seed + n, batch, 3) for n in range(4))
    latents = drawn(seed + 9, batch, 3).requires_grad_()
    aims[: batch // 2] = math.nan  # a client's own samples have none
    total = latents.sum() * 0
    for i in range(batch):
        for j in range(3):
            total = total + (shown[i, j] - points[i, j]) ** 2 / 3 / batch
            if embedded and not aims[i, j].isnan():
                total = total + 0.3 * (latents[i, j] - aims[i, j]) ** 2 / 3 / (batch - batch // 2)
        if clustered:
            total = total + 0.9 * min(((latents[i] - m) ** 2).sum() for m in centroids) / batch
    to = centroids if clustered else None, aims if embedded else None
    config = FedDCNConfig(geometry=0.3, clustering=0.9)
    found = fed_dcn_loss(config, points, (latents, shown), to)
    torch.testing.assert_close(found, total)
    if clustered or embedded:
        expected = torch.autograd.grad(total, latents)
        torch.testing.assert_close(torch.autograd.grad(found, latents), expected)


@given(SEEDS, st.integers(1, 12))
def test_deviations_and_sizes_are_those_of_loops(seed: int, samples: int) -> None:
    dcn, images, centroids = system().dcn, digits()[0][seed % 999 :][:samples], drawn(seed, 3, 4)
    centroids = centroids.float() / 9
    model = system().initial_state(Randomness(seed)).model
    own: list[list[float]] = [[], [], []]
    for latent in dcn.encode(model, images):
        apart = [math.dist(latent, centroid) for centroid in centroids]
        own[apart.index(min(apart))].append(min(apart))
    limits = [statistics.stdev(apart) if len(apart) > 1 else 1.0 for apart in own]
    found = dcn.describe(model, images, centroids)
    assert torch.equal(found.centroids, centroids)
    assert found.sizes.tolist() == [max(1, len(apart)) for apart in own]
    assert found.deviations.tolist() == pytest.approx(limits, rel=1e-3)
    assert found.decoder.keys() == part_of(model, "decoder").keys()


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_each_client_draws_near_its_centroids_by_its_own_decoder(sizes: list[int]) -> None:
    """A decoder that shows its bias alone tells whose samples there are, and how many."""
    fed_dcn = system({"dcn": {"synthetic": 200}})
    model, clients = fed_dcn.initial_state(Randomness(0)).model, []
    for number in range(len(sizes)):
        decoder = {name: entry * 0 for name, entry in part_of(model, "decoder").items()}
        decoder["decoder.3.bias"] += torch.logit(torch.tensor((number + 1) / 255))
        count = torch.tensor([float(sizes[number])]).double()
        clients.append(LocalClusters(drawn(0, 1, 4).float(), count, decoder, torch.ones(1)))
    found = fed_dcn.dcn.draw(clients, torch.Generator().manual_seed(0))
    for number, size in enumerate(sizes):
        of_client = int((found[:, 0, 0, 0] == number + 1).sum())
        assert abs(of_client - 200 * size / sum(sizes)) <= 1


def test_latents_are_drawn_from_the_clusters_normal_distribution() -> None:
    """A decoder without a hidden layer shows each latent, below a sigmoid."""
    dcn = system({"dcn": {"synthetic": 4000, "widths": [], "latent": 2}}).dcn
    decoder = {"decoder.0.weight": torch.eye(64, 2), "decoder.0.bias": torch.zeros(64)}
    places, spreads = torch.tensor([[0.1, 0.2], [1.0, 1.0]]), torch.tensor([0.5, 0.0])
    own = LocalClusters(places, torch.tensor([3.0, 1.0]).double(), decoder, spreads)
    found = dcn.draw([own], torch.Generator().manual_seed(0)).flatten(1)[:, :2]
    assert (found[3000:] == round(255 * torch.tensor(1.0).sigmoid().item())).all()
    latents = torch.logit(found[:3000] / 255)
    torch.testing.assert_close(latents.mean(0), places[0], atol=0.04, rtol=0)
    torch.testing.assert_close(latents.std(0), torch.tensor([0.5, 0.5]), atol=0.04, rtol=0)


def test_umap_gives_the_same_embedding_for_a_seed() -> None:
    config = FedDCNConfig(latent=2)
    threads = torch.get_num_threads()
    first, again, other = (embed(digits()[0][:40], config, seed) for seed in (3, 3, 4))
    assert torch.get_num_threads() == threads  # UMAP changes it, and small networks then crawl
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.shape == (40, 2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("images", range(1, 9))
def test_few_images_have_an_embedding_or_none(images: int) -> None:
    found = embed(digits()[0][:images], FedDCNConfig(latent=3), 0)
    assert (found is None) == (images < 5)
    assert found is None or bool(found.isfinite().all())


def test_clients_are_given_targets_of_synthetic_samples_alone() -> None:
    fed_dcn, clients = system({"dcn": {"embedding": "umap"}}), clients_of_sizes(30, 21)
    state = fed_dcn.initial_state(Randomness(0))
    first = next(iter(federated("fed-dcn", fed_dcn, clients).run(state)))[0]
    assert first.synthetic is not None
    assert first.targets is not None
    assert len(first.targets) == len(first.synthetic)
    samples, (_, targets) = _beside(first, clients[0], Randomness(0))
    assert targets is not None
    assert bool(targets[:30].isnan().all())
    for image, target in zip(samples[30:], targets[30:], strict=True):
        same = (first.synthetic == image).flatten(1).all(dim=1)
        assert bool((first.targets[same] == target).all(dim=1).any())


@pytest.mark.parametrize(("stop", "delivered"), [("davies-bouldin", 1), ("last", 3)])
def test_the_round_of_the_least_index_is_delivered(
    monkeypatch: pytest.MonkeyPatch, stop: str, delivered: int
) -> None:
    indices = iter([2.0, 1.0, 1.5, 1.0])
    monkeypatch.setattr(sklearn.metrics, "davies_bouldin_score", lambda *given: next(indices))
    fed_dcn, ends = system({"dcn": {"stop": stop, "rounds": 4, "patience": 2}}), []
    state = replace(fed_dcn.initial_state(Randomness(0)), synthetic=digits()[0][:99])
    places = fed_dcn.dcn.encode(state.model, digits()[0][:2])
    for number in range(4):
        state = replace(state, version=number, centroids=places + number / 1e4)
        state, _ = fed_dcn.judge(state)
        ends.append(fed_dcn.has_converged(state))
    assert ends == [False, False, False, stop != "last"]
    state = fed_dcn.final_state(state)
    assert state.centroids is not None
    assert torch.equal(state.centroids, places + delivered / 1e4)


def test_a_last_round_without_clients_delivers_the_best_one_too() -> None:
    fed_dcn, clients = system({"dcn": {"rounds": 5}}), clients_of_sizes(30, 21)
    coin, seed = Availability(dropout_rate=0.6), 3
    runs = federated("fed-dcn", fed_dcn, clients, availability=coin, seed=seed)
    *before, (last, report) = runs.run(fed_dcn.initial_state(Randomness(seed)))
    assert not report.clients
    assert last.best is not None
    assert last.centroids is not None
    assert torch.equal(last.centroids, required_centroids(last.best.centroids))
    assert not torch.equal(last.centroids, required_centroids(before[-1][0].centroids))


def test_an_interrupted_run_ends_as_another_and_clients_in_any_order() -> None:
    fed_dcn, clients = system(), clients_of_sizes(30, 21, 12)
    whole = list(federated("fed-dcn", fed_dcn, clients).run(fed_dcn.initial_state(Randomness(0))))
    saved = unpack(DCNState, pack(whole[1][0]))
    assert_same_bits(list(federated("fed-dcn", system(), clients[::-1]).run(saved, 2)), whole[2:])


def test_clients_that_miss_the_first_round_send_their_networks_in_the_next() -> None:
    """A coin with this seed keeps the only client from the first three rounds."""
    config, often = tiny("fed-dcn", {"dcn": {"rounds": 6}}), Availability(dropout_rate=0.6)
    state, reports, _ = run_tiny(config, clients_of_sizes(30), often)
    assert [report.clients for report in reports] == [[], [], [], [0], [0], [0]]
    assert state.synthetic is not None
    assert "loss" not in reports[3].figures
    assert reports[4].figures.keys() == {"loss", "davies_bouldin"}
    plan = system().plan(system().initial_state(Randomness(0)))
    names = [[work.exchange.name for work in works] for works in plan]
    assert names == [["own network"], *[["training", "centroids"]] * 2]


def test_what_does_not_work_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FederationError, match=r"dcn\.learning_rate = 1e\+38 made the deep"):
        run_tiny(tiny("fed-dcn", {"dcn": {"learning_rate": 1e38}}), clients_of_sizes(30, 21))
    monkeypatch.setattr("ccfcpp.clustering.systems.fed_dcn.network.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs umap-learn: pip install '.\[umap\]'"):
        system({"dcn": {"embedding": "umap"}}).initial_state(Randomness(0))


def test_what_a_client_cannot_have_sent_is_refused() -> None:
    fed_dcn = system()
    state = fed_dcn.initial_state(Randomness(0))
    (server,) = fed_dcn.exchanges(0, state)
    own = fed_dcn.dcn.describe(state.model, digits()[0][:20], torch.zeros(1, 4))
    assert refusal(server, state, own, 20) is None
    assert refusal(server, state, replace(own, sizes=own.sizes + 20), 20) is not None
    assert refusal(server, state, replace(own, centroids=own.centroids + 1e20), 20) is not None


def test_a_client_may_hold_an_image_twice() -> None:
    """Each of three images is a cluster of its own, and one of the two that are alike is empty."""
    fed_dcn, image = system(), digits()[0][:2]
    state, client = fed_dcn.initial_state(Randomness(0)), Client(0, "0", image[[0, 0, 1]])
    (own,) = answers(fed_dcn, OWN_NETWORK, state, [client], Randomness(0, 0))
    assert isinstance(own, LocalClusters)
    assert own.sizes.tolist() == [2, 1]
    (server,) = fed_dcn.exchanges(0, state)
    assert refusal(server, state, own, 3) is None


@pytest.mark.parametrize("least", [0, 4, 7, 21])
def test_clusters_are_of_as_many_images_as_an_owner_wants(least: int) -> None:
    fed_dcn, clients = system(), clients_of_sizes(20)
    state, source = fed_dcn.initial_state(Randomness(0)), Randomness(0, 0)
    (own,) = answers(fed_dcn, OWN_NETWORK, state, clients, source, least)
    if least > 20:
        assert "none of its clusters has 21 images" in str(own)
        return
    assert isinstance(own, LocalClusters)
    assert (own.sizes >= least).all()
    assert len(own.centroids) == len(own.sizes) == len(own.deviations)
    state = fed_dcn.begin(state, [own], source)
    (votes,) = answers(fed_dcn, CENTROIDS, state, clients, source, least)
    assert isinstance(votes, LocalCentroids)
    latents = fed_dcn.dcn.encode(state.model, clients[0].images)
    assert torch.cdist(votes.centroids, latents).min() > 0 or least == 0


def test_it_finds_digits() -> None:
    settings: Tree = {
        "dcn": {"widths": [64, 32], "latent": 5, "pretrain_epochs": 60, "epochs": 20,
                "synthetic": 500, "embedding": "umap", "batch_size": 32}
    }  # fmt: skip
    images, labels = digits()
    chosen = labels < 3
    clients = [Client(n, f"{n}", part) for n, part in enumerate(images[chosen].chunk(3))]
    state, _, _ = run_tiny(tiny("fed-dcn", settings), clients)
    found = system(settings).assign(state, replace(clients[0], images=images[chosen]))
    assert normalized_mutual_info_score(labels[chosen], found) > 0.6
