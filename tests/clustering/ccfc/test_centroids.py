"""From representations to centroids and labels."""

import torch

from ccfcpp.clustering.ccfc.centroids import CentroidRule, CentroidUpdate
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import RefusedUpdateError


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
