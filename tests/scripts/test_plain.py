"""The plain implementation and the fast path do the same rounds."""

import pytest
import torch

from ccfcpp.clustering.systems.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.clustering.systems.ccfc.local_training import pretraining_loss
from ccfcpp.clustering.systems.ccfc.messages import CENTROIDS
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import build
from scripts.plain import PlainFederation
from tests.support.clustering import (
    answers,
    clients_of_sizes,
    digits,
    small_algorithm,
    small_config,
)
from tests.support.federation import CPU

SIZES = (75, 64, 50)
SETTINGS = ("training.pretrain_rounds=0", "training.rounds=1", "model.initialization=common")


def plain_federation() -> PlainFederation:
    make = small_algorithm(small_config(*SETTINGS)).make_model
    images = [client.images for client in clients_of_sizes(*SIZES)]
    federation = PlainFederation(make, images, small_config(*SETTINGS), clusters=3, workers=0)
    start = build(make, Randomness(0).generator("model")).state_dict()
    federation.global_model.load_state_dict(start)
    return federation


@pytest.mark.usefixtures("double_precision")
def test_a_cluster_contrastive_round_is_the_plain_one() -> None:
    algorithm, now = small_algorithm(small_config(*SETTINGS)), Randomness(0, 0)
    state = algorithm.initial_state(Randomness(0))
    (find, train) = algorithm.exchanges(0, state)
    clients = clients_of_sizes(*SIZES)
    centroids, _ = find.aggregate(state, answers(algorithm, CENTROIDS, state, clients, now), now)
    updates = [
        update
        for client in clients
        for update in answers(algorithm, algorithm.contrast, centroids, [client], now)
    ]
    ours, _ = train.aggregate(centroids, updates, now)

    plain = plain_federation()
    assert centroids.centroids is not None
    sources = [Randomness(0, 0, client.id).generator("batches 0") for client in clients]
    orders = [torch.randperm(n, generator=g).tolist() for n, g in zip(SIZES, sources, strict=True)]
    plain.contrast_round(centroids.centroids, orders)
    for name, entry in plain.global_model.state_dict().items():
        if not name.endswith("num_batches_tracked"):  # The plain one averages counters.
            torch.testing.assert_close(ours.model[name], entry, atol=1e-6, rtol=0, msg=name)


@pytest.mark.usefixtures("double_precision")
def test_a_pretraining_step_is_the_plain_one() -> None:
    """Of the same two views: the transforms draw from other sources."""
    plain = plain_federation()
    plain.pretrain_round()  # Whatever it draws: models that differ from the global one.
    plain.new_optimizers()
    config = small_config("loss.pretrain_eta=0", *SETTINGS)
    first, second = (digits()[0][k : k + 20] / 255.0 for k in (0, 40))
    network = FlatNetwork(small_algorithm(config).make_model, CPU)
    network.load(plain.models[1].state_dict())
    frozen = FlatNetwork(small_algorithm(config).make_model, CPU, trained=False)
    frozen.load(plain.global_model.state_dict())
    (z1, p1), (z2, p2) = network(first), network(second)
    references = frozen(first)[1], frozen(second)[1]
    loss = pretraining_loss((z1, z2), (p1, p2), references, config.section(LossConfig))
    network.backward(loss)
    adam = FlatAdam(network)
    adam.begin(config.section(TrainingConfig).learning_rate)
    adam.step()

    plain.models[1].train()
    plain.pretrain_step(1, first, second)
    for name, entry in plain.models[1].state_dict().items():
        torch.testing.assert_close(network.state()[name], entry, atol=1e-6, rtol=0, msg=name)
