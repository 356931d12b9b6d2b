"""Sums of clusters that no images can have are refused."""

import pytest
import torch

from ccfcpp.clustering.evaluation.server import Exchanges, MoveHalves, Question
from ccfcpp.clustering.kmeans.centroids import ClusterSums
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Nothing, RefusedUpdateError

SENDERS = [Member(0, "a", 5), Member(1, "b", 3)]
WORK, QUESTION = MoveHalves(Exchanges.about(Nothing).cells), Question(None)


def sums(first: float, *counts: float) -> ClusterSums:
    given = torch.zeros(len(counts), 2, dtype=torch.float64)
    given[0, 0] = first
    return ClusterSums(given, torch.tensor(counts, dtype=torch.float64))


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (sums(1, -1, 2), "it counts fewer than no samples"),
        (sums(1, 5, 4), "it counts 9 samples, and the client holds 8"),
        (sums(1e300, 1, 2), r"means lie beyond 1e\+15"),
    ],
)
def test_what_no_images_have(update: ClusterSums, reason: str) -> None:
    with pytest.raises(RefusedUpdateError, match=reason):
        WORK.check(QUESTION, update, SENDERS)


@pytest.mark.parametrize("counts", [(5, 3), (0, 8), (0, 0), (2.5, 0.25)])
def test_what_images_may_have(counts: tuple[float, ...]) -> None:
    WORK.check(QUESTION, sums(min(counts[0], 1.0), *counts), SENDERS)
