"""Systems whose clients send images: updates, refusals and kept images."""

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.clustering.systems.synthetic.pooled import ImagesUpdate, PooledState
from ccfcpp.core.randomness import Randomness
from tests.support.clustering import clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import federated, refusal

GANS = pytest.mark.parametrize("method", ["sda-fc-km", "sda-fc-fcm", "ppfc-gan"])


def test_km_is_k_means_of_all_images() -> None:
    clients = clients_of_sizes(30, 21, 12)
    config = tiny("km")
    state, (report,), clusters = run_tiny(config, clients)
    rule = PixelRule(config.section(PixelsConfig), (1, 8, 8))
    pooled = rule.points(torch.cat([client.images for client in clients]))
    seed = Randomness(0, 0).integer("k-means")
    found = kmeans(pooled, 3, seed=seed, restarts=2, iterations=10)
    assert torch.equal(state.centroids, found.centroids)
    assert torch.equal(clusters, rule.assign(digits()[0][:200], found.centroids))
    assert (report.bytes_down, report.bytes_up) == (0, 63 * 64 + 3 * 8)


@GANS
def test_synthetic_images_travel_once_and_nothing_else_does(method: str) -> None:
    config = tiny(method, {"gan": {"images": 40}})
    state, reports, _ = run_tiny(config, clients_of_sizes(30, 21))
    assert [report.bytes_up for report in reports] == [0, 0, 2 * (40 * 64 + 8)]
    assert all(report.bytes_down == 0 for report in reports)
    assert {name: len(images) for name, images in state.images.items()} == {"0": 24, "1": 24}
    assert {"generator_loss", "discriminator_loss"} <= reports[0].figures.keys()


@GANS
def test_networks_are_forgotten_once_the_images_are_made(method: str) -> None:
    algorithm = made(tiny(method))
    federation = federated(method, algorithm, clients_of_sizes(30))
    state = algorithm.initial_state(Randomness(0))
    for number in range(algorithm.rounds):
        state, _ = federation.run_round(state, number)
        remembered = federation.transport.memories.take(0)
        assert (len(remembered) > 0) == (number < algorithm.rounds - 1)


def test_a_client_of_one_image_sends_nothing_and_the_others_do() -> None:
    state, reports, _ = run_tiny(tiny("sda-fc-km"), clients_of_sizes(30, 1))
    assert [list(report.refused) for report in reports] == [[], [], [1]]
    assert "a GAN needs at least two" in reports[-1].refused[1][0]
    assert list(state.images) == ["0"]


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(0, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(4, 1, 8, 7, dtype=torch.uint8),
        torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(4, 1, 8, 8),
    ],
)
def test_what_are_no_images_is_refused(images: Tensor) -> None:
    algorithm, state = made(tiny("km")), PooledState()
    (pooling,) = algorithm.exchanges(0, state)
    good = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    assert refusal(pooling, state, ImagesUpdate(0, good)) is None
    assert "'images' is" in (refusal(pooling, state, ImagesUpdate(0, images)) or "")
