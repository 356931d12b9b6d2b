"""What clients of CCFC and CCFC++ make of a message, against its definition."""

import pytest
import torch
from torch.nn import functional as F

from ccfcpp.clustering.ccfc.messages import TrainingUpdate
from ccfcpp.clustering.ccfc.representations import represent
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import build
from tests.support.clustering import answers, clients_of_sizes, small_algorithm, small_config
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
