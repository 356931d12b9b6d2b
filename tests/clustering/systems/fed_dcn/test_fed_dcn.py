"""FedDCN against slow, obvious versions; what it refuses; and a small run."""

import importlib.util
import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from ccfcpp.clustering.systems.fed_dcn import algorithm
from ccfcpp.clustering.systems.fed_dcn.algorithm import (
    Averaging,
    DCNState,
    FedDCN,
    TrainedModel,
)
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.fed_dcn.synthesis import (
    LocalClusters,
    allot,
    davies_bouldin,
    draw,
    embed,
    spreads,
)
from ccfcpp.clustering.systems.fed_dcn.training import Known, fed_dcn_loss
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack, unpack
from tests.support.clustering import clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import assert_same_bits, federated

SEEDS = st.integers(0, 10**6)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@given(SEEDS, st.integers(1, 6), st.booleans(), st.booleans())
def test_the_loss_and_its_gradient_are_those_of_loops(
    seed: int, batch: int, clustered: bool, embedded: bool
) -> None:
    config = FedDCNConfig(reconstruction=0.7, geometry=0.3, clustering=0.9)
    points, shown, aims, centroids = (drawn(seed + n, batch, 3) for n in range(4))
    latents = drawn(seed + 9, batch, 3).requires_grad_()
    total = torch.zeros(()).double()
    for i in range(batch):
        for j in range(3):
            total = total + 0.7 * (shown[i, j] - points[i, j]) ** 2 / 3 / batch
            if embedded:
                total = total + 0.3 * (latents[i, j] - aims[i, j]) ** 2 / 3 / batch
        if clustered:
            total = total + 0.9 * min(((latents[i] - m) ** 2).sum() for m in centroids) / batch
    found = fed_dcn_loss(
        config, points, latents, shown, centroids if clustered else None, aims if embedded else None
    )
    torch.testing.assert_close(found, total)
    if clustered or embedded:
        torch.testing.assert_close(
            torch.autograd.grad(found, latents), torch.autograd.grad(total, latents)
        )


@given(SEEDS, st.integers(1, 12), st.booleans())
def test_deviations_and_counts_are_those_of_loops(seed: int, samples: int, near: bool) -> None:
    latents, centroids = drawn(seed, samples, 2), drawn(seed + 1, 3, 2)
    own: list[list[float]] = [[], [], []]
    for point in latents:
        apart = [math.dist(point, centroid) for centroid in centroids]
        own[apart.index(min(apart))].append(min(apart))
    deviations, counts = spreads(latents, centroids, near)
    for cluster, apart in enumerate(own):
        expected = statistics.stdev(apart) if len(apart) > 1 else 1.0
        assert float(deviations[cluster]) == pytest.approx(expected, rel=1e-5)
        limit = float(deviations[cluster])
        assert counts[cluster] == (sum(d <= limit for d in apart) if near else len(apart))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 200))
def test_samples_are_allotted_in_proportion(counts: list[int], total: int) -> None:
    shares = allot(torch.tensor(counts).double(), total).tolist()
    assert sum(shares) == total
    known = counts if any(counts) else [1] * len(counts)
    for share, count in zip(shares, known, strict=True):
        assert abs(share - total * count / sum(known)) < 1 + 1e-9
        assert count or not share


def test_each_client_draws_near_its_centroids_by_its_own_decoder() -> None:
    def of(shift: float, deviation: float, count: int) -> LocalClusters:
        decoder = {"shift": torch.tensor(shift)}
        place = torch.tensor([[1.0, 2.0]])
        return LocalClusters(
            decoder, place, torch.tensor([deviation]), torch.tensor([count]).double()
        )

    source = torch.Generator().manual_seed(0)
    found = draw([of(10, 0, 1), of(0, 3, 3)], 4000, lambda d, z: z + d["shift"], source)
    assert torch.equal(found[:1000], torch.tensor([[11.0, 12.0]]).expand(1000, 2))
    torch.testing.assert_close(found[1000:].mean(0), torch.tensor([1.0, 2.0]), atol=0.2, rtol=0)
    torch.testing.assert_close(found[1000:].std(0), torch.tensor([3.0, 3.0]), atol=0.2, rtol=0)


def test_the_index_is_that_of_its_definition() -> None:
    latents, centroids = drawn(0, 30, 2), drawn(1, 3, 2)
    labels = torch.cdist(latents, centroids).argmin(1)
    means = [latents[labels == c].mean(0) for c in range(3)]
    spread = [float((latents[labels == c] - m).norm(dim=1).mean()) for c, m in enumerate(means)]
    worst = [
        max((spread[a] + spread[b]) / math.dist(means[a], means[b]) for b in range(3) if b != a)
        for a in range(3)
    ]
    assert davies_bouldin(latents, centroids) == pytest.approx(sum(worst) / 3)
    assert davies_bouldin(latents, centroids[:1]) == math.inf


def test_umap_gives_the_same_embedding_for_a_seed() -> None:
    config, points = FedDCNConfig(neighbours=5), drawn(0, 40, 6).float()
    first, again, other = (embed(points, 2, config, seed) for seed in (3, 3, 4))
    assert first.shape == (40, 2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def system(*trees: Tree) -> FedDCN:
    found = made(tiny("fed-dcn", *trees))
    assert isinstance(found, FedDCN)
    return found


def test_models_are_averaged_by_samples() -> None:
    state = DCNState({}, None, Known({}))
    models = [{"w": drawn(n, 4), "n": torch.tensor(n)} for n in range(3)]
    updates = [TrainedModel(model, n + 1, float(n)) for n, model in enumerate(models)]
    after, metrics = Averaging(system()).aggregate(state, updates, Randomness(0))
    assert after.known is not None
    mean = (models[0]["w"] + 2 * models[1]["w"] + 3 * models[2]["w"]) / 6
    torch.testing.assert_close(after.known.model["w"], mean)
    assert metrics["loss"] == pytest.approx((0 + 2 + 6) / 6)


def test_the_model_of_the_least_index_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    indices = iter([2.0, 1.0, 1.5, 1.0])
    monkeypatch.setattr(algorithm, "davies_bouldin", lambda *given: next(indices))
    fed_dcn = system({"feddcn": {"patience": 2}})
    state = fed_dcn.initial_state(Randomness(0))
    ends = []
    for number in range(4):
        known = Known(state.model, torch.full((3, 4), float(number)), digits()[0][:9])
        state, _ = fed_dcn.judge(state, known)
        ends.append(fed_dcn.has_converged(state))
    assert ends == [False, False, False, True]
    assert state.centroids is not None
    assert float(state.centroids[0, 0]) == 1


def test_an_interrupted_run_ends_as_another() -> None:
    fed_dcn, clients = system(), clients_of_sizes(30, 21, 12)
    whole = list(federated("fed-dcn", fed_dcn, clients).run(fed_dcn.initial_state(Randomness(0))))
    saved = unpack(DCNState, pack(whole[0][0]))
    assert_same_bits(list(federated("fed-dcn", system(), clients).run(saved, 1)), whole[1:])


def test_a_client_without_its_own_network_takes_part_in_rounds() -> None:
    _, reports, _ = run_tiny(tiny("fed-dcn"), clients_of_sizes(30, 21, 1))
    assert "it holds one sample" in reports[0].refused[2][0]
    assert [list(report.refused) for report in reports[1:]] == [[]]
    first, *later = system().exchanges(4, DCNState({}))
    assert first.exchange.name == "own network"
    assert not any(work.is_due(DCNState({})) for work in later)


def test_what_does_not_work_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FederationError, match=r"feddcn\.learning_rate = 1e\+38 made its network"):
        run_tiny(tiny("fed-dcn", {"feddcn": {"learning_rate": 1e38}}), clients_of_sizes(30, 21))
    with pytest.raises(UsageError, match=r"feddcn\.synthetic = 9 is refused: UMAP needs 16"):
        tiny("fed-dcn", {"feddcn": {"embedding": "umap", "synthetic": 9}})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs umap-learn, which .*: pip install '.\[umap\]'"):
        system({"feddcn": {"embedding": "umap"}}).initial_state(Randomness(0))


def test_it_finds_digits() -> None:
    settings: Tree = {
        "feddcn": {
            "widths": [64, 32], "latent": 5, "pretrain_epochs": 30, "epochs": 8, "synthetic": 500,
            "embedding": "umap", "batch_size": 32,
        }
    }  # fmt: skip
    images, labels = digits()
    chosen = labels < 3
    clients = [Client(n, f"{n}", part) for n, part in enumerate(images[chosen].chunk(3))]
    state, _, _ = run_tiny(tiny("fed-dcn", settings), clients)
    found = system(settings).assign(state, replace(clients[0], images=images[chosen]))
    assert normalized_mutual_info_score(labels[chosen], found) > 0.6
