"""Images, clusters and a partition, as a configuration asks for them."""

import torch

from ccfcpp.clustering.experiment import ClusteringExperiment
from tests.support.clustering import digits, tiny


def test_a_part_of_the_images_is_alike_for_every_seed() -> None:
    experiments = [
        ClusteringExperiment(tiny("km", {"data": {"images": 60}, "seed": seed})) for seed in (0, 1)
    ]
    first, second = (experiment.data for experiment in experiments)
    assert len(first) == 60
    assert torch.equal(first.images, second.images)
    assert first.labels is not None
    images, labels = digits()
    places = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in first.images]
    assert places == sorted(places)
    assert torch.equal(labels[places], first.labels)
    assert len(ClusteringExperiment(tiny("km", {"data": {"images": 5000}})).data) == 1797
