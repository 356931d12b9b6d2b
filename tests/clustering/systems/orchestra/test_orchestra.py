"""Orchestra: each equation against an obvious version, and runs on the digits."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.orchestra import algorithm
from ccfcpp.clustering.systems.orchestra.algorithm import TRAINING, Orchestra
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.payload import pack, unpack
from tests.support.clustering import answers, clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import CPU, assert_same_bits, federated, refusal

SEEDS = st.integers(0, 10**6)
SIZES = st.integers(2, 9)


def directions(seed: int, rows: int) -> Tensor:
    drawn = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn.double())


def system(*trees: Tree) -> Orchestra:
    found = made(tiny("orchestra", *trees))
    assert isinstance(found, Orchestra)
    return found


def softmax(cosines: Tensor, factor: float) -> list[float]:
    powers = [math.exp(factor * float(each)) for each in cosines]
    return [power / sum(powers) for power in powers]


@given(SEEDS, SIZES, SIZES)
def test_rows_and_columns_are_scaled_in_turn(seed: int, points: int, clusters: int) -> None:
    own, centroids = directions(seed, points), directions(seed + 1, clusters)
    table = [softmax(centroids @ point, 25) for point in own]
    for _ in range(20):
        sizes = [sum(row[j] for row in table) * clusters / points for j in range(clusters)]
        table = [[v / size for v, size in zip(row, sizes, strict=True)] for row in table]
        table = [[v / sum(row) for v in row] for row in table]
    expected = torch.tensor(table).double()
    torch.testing.assert_close(algorithm.assign_equally(own, centroids), expected)


@given(SEEDS, st.integers(1, 12), st.integers(1, 6))
def test_a_client_clusters_its_latents(seed: int, points: int, clusters: int) -> None:
    latents, source = directions(seed, points), torch.Generator().manual_seed(seed)
    plain = [latents[i] for i in torch.randperm(points, generator=source)[:clusters]]
    for _ in range(5):
        labels = algorithm.assign_equally(latents, torch.stack(plain)).argmax(1).tolist()
        drawn = torch.randint(points, (len(plain),), generator=source)
        members = [[i for i in range(points) if labels[i] == j] for j in range(len(plain))]
        plain = [latents[own or [drawn[j]]].sum(0) for j, own in enumerate(members)]
        plain = [each / each.norm() for each in plain]
    found = algorithm.local_centroids(latents, clusters, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(found, torch.stack(plain))


@given(SEEDS, SIZES, SIZES)
def test_the_servers_loss_and_its_descent(seed: int, points: int, clusters: int) -> None:
    own, moved = directions(seed, points), torch.nn.Parameter(directions(seed + 1, clusters))
    optimizer = torch.optim.SGD([moved], lr=0.01, momentum=0.9, weight_decay=1e-4)
    start = moved.detach().clone()
    for _ in range(3):
        wanted = algorithm.assign_equally(own, moved)
        loss = torch.zeros(())
        for i in range(points):
            p = torch.softmax(moved @ own[i] / 0.1, 0)
            loss = loss - (wanted[i] @ p) / (wanted[i].norm() * p.norm()) / points
        torch.testing.assert_close(algorithm.global_loss(own, moved), loss)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        moved.data = F.normalize(moved.data)
    torch.testing.assert_close(algorithm.global_centroids(own, start, 3), moved.detach())


@given(SEEDS, SIZES, SIZES)
def test_the_clients_loss_and_its_gradient(seed: int, images: int, clusters: int) -> None:
    z, targets = directions(seed, images).requires_grad_(), directions(seed + 1, images)
    centroids, total, slopes = directions(seed + 2, clusters), 0.0, torch.zeros(images, 4).double()
    for i in range(images):
        p, q = (softmax(centroids @ own[i].detach(), 10) for own in (targets, z))
        total -= sum(a * math.log(b) for a, b in zip(p, q, strict=True)) / images
        slopes[i] = centroids.T @ (torch.tensor(q) - torch.tensor(p)).double() * 10 / images
    loss = algorithm.clustering_loss(z, targets, centroids)
    assert loss.item() == pytest.approx(total)
    torch.testing.assert_close(torch.autograd.grad(loss, z)[0], slopes, rtol=1e-5, atol=1e-5)


def test_views_are_of_the_same_images_and_the_third_is_turned() -> None:
    same: Tree = {"area": [1, 1], "ratio": [1, 1], "rotation": 0, "blur_probability": 0}
    orchestra, (client,) = system({"views": same}), clients_of_sizes(20)
    batches = [*orchestra._batches(client, Randomness(0, 0, 0), 2)]
    assert sum(len(turns) for *_, turns in batches) == 40
    for first, second, turned, turns in batches:
        torch.testing.assert_close(first, second)
        assert (
            ((first[:, None] - to_float(client.images)).flatten(2).norm(dim=2) < 1e-4).any(1).all()
        )
        for one, other, quarter in zip(first, turned, turns.tolist(), strict=True):
            torch.testing.assert_close(torch.rot90(one, quarter, (1, 2)), other)


def test_a_run_goes_on_with_the_same_numbers_and_clients_in_any_order() -> None:
    orchestra, clients = system(), clients_of_sizes(30, 21, 12)
    state = orchestra.initial_state(Randomness(0))
    whole = list(federated("orchestra", orchestra, clients).run(state))
    saved = unpack(EncoderState, pack(whole[0][0]))
    again = federated("orchestra", system(), clients[::-1]).run(saved, 1)
    assert_same_bits(list(again), whole[1:])
    targets, online = (
        [e for n, e in saved.model.items() if n.startswith(name) and "weight" in n]
        for name in ("target", "online")
    )
    assert any(not torch.equal(a, b) for a, b in zip(targets, online, strict=True))


def test_what_cannot_be_used_is_refused() -> None:
    orchestra = system()
    state = orchestra.initial_state(Randomness(0))
    single, some = answers(orchestra, TRAINING, state, clients_of_sizes(1, 9), Randomness(0, 0))
    assert isinstance(single, RefusedUpdateError)
    assert not isinstance(some, RefusedUpdateError)
    server, _ = orchestra.exchanges(0, state)
    assert refusal(server, state, some, 9) is None
    assert refusal(server, state, replace(some, samples=10), 9) is not None
    with pytest.raises(UsageError, match="not square"):
        Orchestra(Problem(tiny("orchestra"), (1, 8, 9), 3, CPU))


def test_it_finds_digits() -> None:
    settings: Tree = {
        "rounds": 3, "widths": [16, 32], "latent": 32, "epochs": 4, "learning_rate": 0.03,
        "batch_size": 32, "decay": 0.9, "global_clusters": 32, "server_steps": 200,
    }  # fmt: skip
    images, labels = digits()
    chosen = labels < 3
    clients = [Client(n, f"client {n}", part) for n, part in enumerate(images[chosen].chunk(3))]
    state, _, found = run_tiny(tiny("orchestra", {"orchestra": settings}), clients)
    known = labels[:200] < 3
    assert normalized_mutual_info_score(labels[:200][known], found[known]) > 0.4
