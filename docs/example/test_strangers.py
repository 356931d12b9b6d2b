"""What this package adds works: `pytest` runs it."""

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from ccfcpp import FederatedClustering, load


@pytest.mark.parametrize("method", ["fed-lloyd", "fed-mixture", "fed-votes"])
def test_a_system_finds_the_directions_of_stripes(method: str) -> None:
    """Its clients hold stripes of all directions, and a new image gets the cluster of its like."""
    data = load("stripes")
    images, owners = np.asarray(data.images), np.arange(len(data)) // 4 % 5
    model = FederatedClustering(4, method=method, device="cpu").fit(images, clients=owners)
    assert normalized_mutual_info_score(data.labels, model.labels_) > 0.6
    assert (model.predict(images) == model.labels_).all()
