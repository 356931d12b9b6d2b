"""Orchestra: each equation against an obvious version, and runs on the digits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate
from ccfcpp.clustering.systems.orchestra import algorithm
from ccfcpp.clustering.systems.orchestra.algorithm import TRAINING, Orchestra
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.payload import pack, unpack
from tests.support.clustering import answers, clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import CPU, assert_same_bits, federated, refusal

SEEDS, SIZES = st.integers(0, 10**6), st.integers(2, 9)


def directions(seed: int, rows: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)).double())


def system(width: int = 8, **views: object) -> Orchestra:
    return Orchestra(Problem(tiny("orchestra", {"views": views}), (1, 8, width), 3, CPU))


@given(SEEDS, SIZES, SIZES)
def test_rows_and_columns_are_scaled_in_turn(seed: int, points: int, clusters: int) -> None:
    own, centroids = directions(seed, points), directions(seed + 1, clusters)
    table = torch.softmax(25 * own @ centroids.T, 1)
    for _ in range(10):
        table = table / table.sum(dim=0, keepdim=True) * points / clusters
        table = table / table.sum(dim=1, keepdim=True)
    torch.testing.assert_close(algorithm.assign_equally(own, centroids, 10), table)


@given(SEEDS, st.integers(1, 12), st.integers(1, 6), st.integers(0, 3))
def test_a_client_clusters_its_latents(seed: int, points: int, clusters: int, least: int) -> None:
    latents, source = directions(seed, points), torch.Generator().manual_seed(seed)
    plain = latents[torch.randperm(points, generator=source)[:clusters]]
    for _ in range(5):
        labels = algorithm.assign_equally(latents, plain, 10).argmax(1).tolist()
        drawn = torch.randint(points, (len(plain),), generator=source).tolist()
        members = [[i for i, own in enumerate(labels) if own == j] for j in range(len(plain))]
        means = [latents[own or [drawn[j]]].mean(0) for j, own in enumerate(members)]
        plain = F.normalize(torch.stack(means))
    found = algorithm.local_centroids(latents, clusters, source.manual_seed(seed), least)
    torch.testing.assert_close(found, plain[[len(own) >= least for own in members]])


@pytest.mark.parametrize(("n", "least", "most"), [(20, 0, 3), (20, 7, 2), (20, 20, 1), (20, 21, 0)])
def test_centroids_are_of_as_many_images_as_an_owner_wants(n: int, least: int, most: int) -> None:
    """With several epochs there are several views of each image."""
    orchestra = Orchestra(
        Problem(
            tiny("orchestra", {"orchestra": {"local_clusters": 3, "epochs": 4}}), (1, 8, 8), 3, CPU
        )
    )
    state = replace(orchestra.initial_state(Randomness(0)), centroids=torch.zeros(3, 16))
    (one,) = answers(orchestra, TRAINING, state, clients_of_sizes(n), Randomness(0, 1), least)
    if most == 0:
        assert "none of its clusters has 21 images" in str(one)
    else:
        assert isinstance(one, TrainingUpdate)
        assert one.local is not None
        assert 1 <= len(one.local.centroids) <= most


@pytest.mark.parametrize(("least", "batches", "views"), [(0, [4, 4], 7), (5, [4, 5], 9)])
def test_with_a_floor_no_server_leaves_an_image_out(
    least: int, batches: list[int], views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 3, "batch_size": 4, "memory": 7}
    orchestra = Orchestra(Problem(tiny("orchestra", {"orchestra": settings}), (1, 8, 8), 3, CPU))
    (client,), state = clients_of_sizes(9), orchestra.initial_state(Randomness(0))
    found = orchestra._batches(client, Randomness(0, 0, 0), 1, least)
    assert [len(first) for first, *_ in found] == batches

    def clustered(latents: torch.Tensor, *_: object) -> torch.Tensor:
        assert len(latents) == views
        return latents[:1]

    monkeypatch.setattr(algorithm, "local_centroids", clustered)
    answers(orchestra, TRAINING, state, [client], Randomness(0, 1), least)


@given(SEEDS, SIZES, SIZES)
def test_the_servers_descent(seed: int, points: int, clusters: int) -> None:
    own, moved = directions(seed, points), torch.nn.Parameter(directions(seed + 1, clusters))
    optimizer = torch.optim.SGD([moved], lr=0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(3):
        p, q = torch.softmax(own @ moved.T / 0.1, 1), algorithm.assign_equally(own, moved, 100)
        cosines = [p[i] @ q[i] / p[i].norm() / q[i].norm() for i in range(points)]
        (moved.grad,) = torch.autograd.grad(-torch.stack(cosines).mean(), moved)
        optimizer.step()
        moved.data = F.normalize(moved.data)
    assert torch.allclose(algorithm.global_centroids(own, directions(seed + 1, clusters), 3), moved)


@given(SEEDS, SIZES, SIZES)
def test_the_clients_loss_and_its_gradient(seed: int, images: int, clusters: int) -> None:
    z, targets = directions(seed, images).requires_grad_(), directions(seed + 1, images)
    centroids = directions(seed + 2, clusters)
    p, q = (torch.softmax(own @ centroids.T / 0.1, 1) for own in (targets, z))
    plain = -sum((p[i] @ q[i].log() / images for i in range(images)), torch.zeros(()).double())
    loss = algorithm.clustering_loss(z, targets, centroids)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss, z), torch.autograd.grad(plain, z))


def test_views_are_of_the_same_images_and_the_third_is_turned() -> None:
    unchanged, (client,) = system(area=[1, 1], ratio=[1, 1], rotation=0), clients_of_sizes(20)
    for first, second, turned, turns in unchanged._batches(client, Randomness(0, 0, 0), 2):
        torch.testing.assert_close(first, second)
        assert (
            (torch.cdist(first.flatten(1), to_float(client.images).flatten(1)) < 0.01).any(1).all()
        )
        back = [torch.rot90(one, -n, (1, 2)) for one, n in zip(turned, turns.tolist(), strict=True)]
        torch.testing.assert_close(torch.stack(back), first)


def test_a_run_goes_on_with_the_same_numbers_and_clients_in_any_order() -> None:
    orchestra, clients = system(), clients_of_sizes(30, 21, 12)
    start = orchestra.initial_state(Randomness(0))
    whole = [*federated("orchestra", orchestra, clients).run(start)]
    again = federated("orchestra", system(), clients[::-1])
    assert_same_bits([*again.run(unpack(type(start), pack(whole[0][0])), 1)], whole[1:])


def test_the_target_follows_and_what_cannot_be_used_is_refused() -> None:
    orchestra, name = system(), "backbone.0.weight"
    state = orchestra.initial_state(Randomness(0))
    online = state.model[f"online.{name}"]
    state.model[f"target.{name}"] = 3 * online
    one, some = answers(orchestra, TRAINING, state, clients_of_sizes(1, 9), Randomness(0, 0))
    assert isinstance(one, RefusedUpdateError)
    assert not isinstance(some, RefusedUpdateError)
    torch.testing.assert_close(some.model[f"target.{name}"], (1 + 2 * 0.99) * online)
    assert refusal(orchestra.exchanges(1, state)[0], state, some, 8) is not None
    with pytest.raises(UsageError, match=r"8 by 9 pixels are not square: .*image_size = 8"):
        system(width=9)
    with pytest.raises(UsageError, match="cannot be grouped into 13 clusters"):
        made(tiny("orchestra"), clusters=13)


def test_it_finds_digits() -> None:
    settings = {"rounds": 3, "epochs": 4, "widths": [16, 32], "latent": 32, "server_steps": 200}
    images, labels = digits()
    clients = [Client(n, f"{n}", part) for n, part in enumerate(images[labels < 3].chunk(3))]
    *_, found = run_tiny(tiny("orchestra", {"orchestra": settings}), clients)
    known = torch.arange(200)[labels[:200] < 3]
    assert normalized_mutual_info_score(labels[known], found[known]) > 0.4
