"""What clients of CCFC and CCFC++ make of messages and remember, and how fast they learn."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.ccfc import representations
from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate
from ccfcpp.clustering.systems.ccfc.representations import represent
from ccfcpp.clustering.systems.ccfc.schedule import contrast_learning_rate
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import build
from tests.support.clustering import (
    answers,
    clients_of_sizes,
    run_small,
    small_algorithm,
    small_config,
    small_federation,
)
from tests.support.federation import CPU


def pretrained(
    settings: tuple[str, ...], state: EncoderState, client: Client, randomness: Randomness
) -> TrainingUpdate:
    algorithm = small_algorithm(small_config(*settings))
    (update,) = answers(algorithm, algorithm.pretraining, state, [client], randomness)
    assert isinstance(update, TrainingUpdate)
    return update


def initial_state() -> EncoderState:
    return small_algorithm(small_config()).initial_state(Randomness(0))


def test_without_centroids_cluster_training_says_so() -> None:
    algorithm = small_algorithm(small_config())
    with pytest.raises(FederationError, match="no client has delivered centroids"):
        answers(
            algorithm, algorithm.contrast, EncoderState({}), clients_of_sizes(5), Randomness(0, 3)
        )


@pytest.mark.parametrize("initialization", ["common", "separate"])
def test_where_a_client_starts(initialization: str) -> None:
    """A client that cannot train sends the weights it started from."""
    settings, state = (f"model.initialization={initialization}",), initial_state()
    (client,), randomness = clients_of_sizes(1), Randomness(0, 0)
    sent = pretrained(settings, state, client, randomness).model
    source = randomness.of_client(0).generator("model")
    own = build(small_algorithm(small_config()).make_model, source)
    expected = state.model if initialization == "common" else own.state_dict()
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    later = pretrained(settings, EncoderState(state.model, version=1), client, randomness).model
    assert all(torch.equal(later[name], state.model[name]) for name in later)


def test_local_centroids_are_those_of_the_trained_model_in_evaluation_mode() -> None:
    (client,), randomness = clients_of_sizes(60), Randomness(0, 1)
    update = pretrained((), initial_state(), client, randomness)
    model = FlatNetwork(small_algorithm(small_config()).make_model, CPU)
    model.load(update.model)
    latents = F.normalize(represent(model, client.images).latents, dim=1)
    seed = randomness.of_client(0).integer("k-means")
    expected = kmeans(latents, 3, seed=seed, restarts=2, iterations=10)
    assert update.local is not None
    assert torch.equal(update.local.centroids, expected.centroids)
    assert torch.equal(update.local.sizes, expected.sizes)
    assert update.local.sizes.sum() == 60


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ((), 2),  # labels in each of 2 rounds
        # Labels of a cluster round come from the pass that gave the round before its centroids.
        (("centroids.encoder=global", "centroids.refine_steps=3"), 3),
    ],
)
def test_the_frozen_model_sees_unchanged_images_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    passes: int,
) -> None:
    calls = []

    def counting(*arguments: Any) -> representations.Representations:
        calls.append(arguments)
        return represent(*arguments)

    monkeypatch.setattr(representations, "represent", counting)
    run_small(small_config(*settings), clients_of_sizes(40))
    assert len(calls) == passes


def test_the_learning_rate_of_each_cluster_round() -> None:
    constant = TrainingConfig(pretrain_rounds=2, rounds=4)
    cosine = TrainingConfig(pretrain_rounds=2, rounds=4, schedule="cosine")
    assert [contrast_learning_rate(constant, number) for number in range(2, 6)] == [1e-3] * 4
    rates = [contrast_learning_rate(cosine, number) for number in range(2, 6)]
    half = 0.5**0.5 / 2
    assert rates == pytest.approx([1e-3, 1e-3 * (0.5 + half), 5e-4, 1e-3 * (0.5 - half)])


def test_moments_are_kept_within_a_phase_and_forgotten_after_it() -> None:
    def steps(*settings: str) -> dict[str, float]:
        federation = small_federation(small_config(*settings), clients_of_sizes(64))
        list(federation.run(federation.algorithm.initial_state(Randomness(0))))
        memory = federation.transport.memories.take(0)
        return {name: t.item() for name, t in memory.items() if name.endswith("step")}

    assert steps("training.rounds=0") == {"pretraining/step": 4.0}  # 2 rounds of 2 batches
    assert steps("training.rounds=3") == {"contrast/step": 6.0}
    assert steps("training.keep_optimizer=false") == {}
