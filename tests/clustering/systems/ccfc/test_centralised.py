"""One client that holds everything is plain centralised training, written out here."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.ccfc.config import LossConfig
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.models.state import build
from tests.support.clustering import (
    clients_of_sizes,
    digits,
    run_small,
    small_algorithm,
    small_config,
)

SAMPLES = 75  # With batches of 32, the last batch is a short one.


def d(p: Tensor, z: Tensor) -> Tensor:
    return -F.cosine_similarity(p, z.detach(), dim=-1)


def covariance_term(z: Tensor) -> Tensor:
    return torch.cov(z.T).square().sum() / z.shape[1] ** 2


def cluster_loss(p: Tensor, z: Tensor, p_global: Tensor, labels: Tensor, lam: float) -> Tensor:
    terms = []
    for c in range(3):
        members = labels == c
        if members.sum() >= 2:
            pairs = d(p[members].unsqueeze(1), z[members].unsqueeze(0)).mean()
            terms.append(pairs + lam * d(p[members], p_global[members]).mean())
    return torch.stack(terms).mean() if terms else 0 * p.sum()


def centralised(make: Callable[[], ContrastiveModel]) -> tuple[ContrastiveModel, Tensor]:
    """Two rounds of pre-training and two of cluster-contrastive training in one place."""
    config, images = small_config(), digits()[0][:SAMPLES].double() / 255
    weights, view_choices = config.section(LossConfig), config.section(ViewsConfig)
    model = build(make, Randomness(0, 0, 0).generator("model"))
    frozen = build(make, Randomness(0).generator("model")).eval()
    centroids = torch.empty(0)
    for number in range(4):
        if number in (0, 2):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        randomness = Randomness(0, number, 0)
        if number < 2:
            drawn = draw_views(2 * SAMPLES, view_choices, (8, 8), randomness.generator("views 0"))
        else:
            with torch.no_grad():
                z, p_global = frozen(images)
            labels = (F.normalize(z, dim=1) @ F.normalize(centroids.double(), dim=1).T).argmax(
                dim=1
            )
        model.train()
        order = torch.randperm(SAMPLES, generator=randomness.generator("batches 0"))
        for start in range(0, SAMPLES, 32):
            i = order[start : start + 32]
            if number < 2:
                views = [render_views(images[i], drawn[i + k * SAMPLES]) for k in (0, 1)]
                (z1, p1), (z2, p2) = (model(view) for view in views)
                g1, g2 = (frozen(view)[1] for view in views)
                loss = (d(p1, z2) + d(p2, z1) + weights.lam * (d(p1, g1) + d(p2, g2))).mean() / 2
                both = covariance_term(z1) + covariance_term(z2)
                loss = loss + weights.pretrain_eta * both / 2
            else:
                z, p = model(images[i])
                loss = cluster_loss(p, z, p_global[i], labels[i], weights.lam)
                loss = loss + weights.eta * covariance_term(z)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        frozen.load_state_dict(model.state_dict())
        with torch.no_grad():
            points = F.normalize(frozen(images)[0], dim=1)
        seed = randomness.integer("k-means")
        found = kmeans(points, 3, seed=seed, restarts=2, iterations=10)
        centroids = found.centroids
    return model, centroids


@pytest.mark.usefixtures("double_precision")
def test_one_client_with_everything_is_centralised_training() -> None:
    algorithm = small_algorithm(small_config())
    model, centroids = centralised(algorithm.make_model)
    state, _ = run_small(small_config(), clients_of_sizes(SAMPLES))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state.model[name], tensor, atol=1e-6, rtol=0, msg=name)
    assert state.centroids is not None
    # The server's k-means over the k centroids of one client gives them back.
    torch.testing.assert_close(state.centroids, centroids.float(), atol=1e-5, rtol=0)
