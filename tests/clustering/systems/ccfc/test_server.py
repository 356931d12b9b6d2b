"""What the server of CCFC and CCFC++ makes of updates and centroids, and which it refuses."""

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import CentroidUpdate, ClusterSums
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState, MoveCentroids
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate, refinement_exchange
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError, ServerWork
from tests.support.clustering import (
    answers,
    clients_of_sizes,
    digits,
    small_algorithm,
    small_config,
)
from tests.support.federation import refusal

# --- federated Lloyd steps ---------------------------------------------------------------------


def lloyd(centroids: Tensor, sizes: tuple[int, ...]) -> tuple[EncoderState, Tensor]:
    """One federated Lloyd step, and all clients' points."""
    algorithm = small_algorithm(small_config())
    state = EncoderState(algorithm.initial_state(Randomness(0)).model, centroids=centroids)
    step, clients = MoveCentroids(algorithm.refinement), clients_of_sizes(*sizes)
    updates = []
    found = answers(algorithm, algorithm.refinement, state, clients, Randomness(0))
    for update, size in zip(found, sizes, strict=True):
        assert isinstance(update, ClusterSums)
        assert refusal(step, state, update, size) is None
        updates.append(update)
    everything = Client(-1, "all", digits()[0][: sum(sizes)])
    after, _ = step.aggregate(state, updates, Randomness(0))
    return after, algorithm.rule.points(algorithm.represent(state, everything))


def test_a_federated_lloyd_step_is_one_over_all_samples() -> None:
    _, points = lloyd(torch.zeros(3, 12), (40, 1, 25))
    start = points[[0, 10, 20]]
    state, _ = lloyd(start, (40, 1, 25))
    labels = (points @ start.T).argmax(dim=1)
    expected = torch.stack([points[labels == c].mean(dim=0) for c in range(3)])
    assert state.centroids is not None
    torch.testing.assert_close(state.centroids, expected)


def test_a_cluster_that_nobody_assigns_to_keeps_its_centroid() -> None:
    _, points = lloyd(torch.zeros(3, 12), (30,))
    # The opposite of the mean direction is the last choice of every point.
    far = -10 * points.mean(dim=0)
    start = torch.stack([points[0], points[1], far])
    state, _ = lloyd(start, (30,))
    assert state.centroids is not None
    assert torch.equal(state.centroids[2], far)
    assert not torch.equal(state.centroids[:2], start[:2])


@pytest.mark.parametrize(
    "update",
    [
        ClusterSums(torch.zeros(2, 12).double(), torch.zeros(3).double()),
        ClusterSums(torch.zeros(3, 12), torch.zeros(3).double()),
        ClusterSums(torch.zeros(3, 12).double(), torch.zeros(2).double()),
    ],
)
def test_sums_of_a_wrong_shape_are_refused(update: ClusterSums) -> None:
    state = EncoderState({}, centroids=torch.ones(3, 12))
    step = MoveCentroids(refinement_exchange(unit_length=True))
    assert (refusal(step, state, update) or "").startswith("refinement: '")


# --- updates that must be refused --------------------------------------------------------------


def good_update() -> tuple[
    ServerWork[EncoderState, EncoderState, TrainingUpdate], EncoderState, TrainingUpdate
]:
    """In the round whose pre-training ends with centroids."""
    algorithm = small_algorithm(small_config())
    state = algorithm.initial_state(Randomness(0))
    (update,) = answers(
        algorithm, algorithm.pretraining, state, clients_of_sizes(40), Randomness(0, 1)
    )
    assert isinstance(update, TrainingUpdate)
    (work,) = algorithm.exchanges(1, state)
    return work, state, update


def spoilt(update: TrainingUpdate, what: str) -> TrainingUpdate:
    assert update.local is not None
    model, centroids, sizes = update.model, update.local.centroids, update.local.sizes
    samples = update.samples
    if what == "'model/projector":
        model = model | {"projector.0.bias": torch.zeros(3)}
    elif what == "NaN":
        model = model | {"projector.0.bias": torch.full((16,), float("nan"))}
    elif what == "centroids' is":
        centroids = centroids[:, :5]
    elif what == "sizes":
        sizes = sizes * 0
    elif what == "samples":
        samples = 41
    local = None if what == "missing" else CentroidUpdate(centroids, sizes)
    return TrainingUpdate(model, samples, update.loss, local)


@pytest.mark.parametrize(
    "what", ["'model/projector", "NaN", "centroids' is", "sizes", "samples", "missing"]
)
def test_an_update_that_would_spoil_the_average_is_refused(what: str) -> None:
    work, state, update = good_update()
    assert refusal(work, state, update, 40) is None
    assert what in (refusal(work, state, spoilt(update, what), 40) or "")


def test_the_server_may_weigh_centroids_by_size() -> None:
    updates = [
        CentroidUpdate(torch.tensor([[0.0], [8.0]]), torch.tensor([3.0, 1.0])),
        CentroidUpdate(torch.tensor([[4.0]]), torch.tensor([4.0])),
    ]
    plain = CentroidRule(CentroidConfig(), clusters=1)
    weighted = CentroidRule(CentroidConfig(server_weights="sizes"), clusters=1)
    assert plain.global_centroids(updates, Randomness(0)).tolist() == [[4.0]]
    assert weighted.global_centroids(updates, Randomness(0)).tolist() == [[3.0]]


def test_assignment_by_cosine_and_by_distance() -> None:
    centroids = torch.tensor([[1.0, 0.0], [10.0, 10.0]])
    point = torch.tensor([[1.0, 1.0]])
    cosine = CentroidRule(CentroidConfig(), 2)
    euclidean = CentroidRule(CentroidConfig(assignment="euclidean"), 2)
    assert cosine.assign(point, centroids).tolist() == [1]
    assert euclidean.assign(point, centroids).tolist() == [0]


def test_a_client_whose_model_has_diverged_is_refused_and_the_others_are_not() -> None:
    latents = [torch.rand(9, 4, generator=Randomness(n).generator("x")) for n in range(3)]
    rule, sources = CentroidRule(CentroidConfig(), 2), [Randomness(0, 0, n) for n in range(3)]
    expected = rule.local_centroids(latents, sources)
    spoilt = [latents[0], latents[1].clone(), latents[2]]
    spoilt[1][3, 2] = torch.nan
    first, refusal, last = rule.local_centroids(spoilt, sources)
    assert isinstance(refusal, RefusedUpdateError)
    assert str(refusal) == "its representations hold NaN or Inf"
    for found, other in ((first, expected[0]), (last, expected[2])):
        assert isinstance(found, CentroidUpdate)
        assert isinstance(other, CentroidUpdate)
        assert torch.equal(found.centroids, other.centroids)
        assert torch.equal(found.sizes, other.sizes)
