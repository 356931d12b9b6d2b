"""Deep clustering against a slow, obvious version."""

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.synthetic.config import DCNConfig
from ccfcpp.clustering.systems.synthetic.deep_clustering import (
    DeepClustering,
    DeepClusters,
    deep_clustering_loss,
    move_centroids,
    rowwise_squared_distances,
)
from ccfcpp.clustering.systems.synthetic.networks import Autoencoder
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.state import build
from tests.support.clustering import digits
from tests.support.federation import CPU

TINY = DCNConfig(
    widths=(12, 8), latent=3, pretrain_epochs=2, epochs=2, batch_size=7, learning_rate=0.01
)
"""Configuration whose fit takes some milliseconds."""

SERVER = Randomness(3).at_round(0)


def deep_clustering(
    config: DCNConfig, clusters: int = 4, device: torch.device = CPU, precision: str = "float32"
) -> DeepClustering:
    settings: Tree = {
        "method": "ppfc-gan",
        "dcn": config.model_dump(),
        "centroids": {"restarts": 3, "iterations": 20},
        "compute": {"precision": precision},
    }
    return DeepClustering(Problem(validate(ClusterConfig, settings), (1, 8, 8), clusters, device))


def fit(config: DCNConfig, images: Tensor, randomness: Randomness = SERVER) -> DeepClusters:
    return deep_clustering(config).fit(images, randomness)


def few_digits(count: int = 30) -> Tensor:
    return digits()[0][:count]


def squared_norm(vector: Tensor) -> Tensor:
    return vector.square().sum()


@dataclass
class PlainDCN:
    """The paper's algorithm as written: PyTorch's Adam, and a loop over the samples."""

    model: Autoencoder
    config: DCNConfig
    images: Tensor
    centroids: Tensor = field(default_factory=lambda: torch.empty(0))
    labels: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.config.learning_rate)

    def cluster(self, seed: int, clusters: int) -> None:
        with torch.no_grad():
            latents = self.model.encode(self.images)
        found = kmeans(latents, clusters, seed=seed, restarts=3, iterations=20)
        self.centroids = found.centroids.to(latents.dtype)
        self.labels = [self.nearest(latent) for latent in latents]
        self.counts = [self.config.initial_count] * len(self.centroids)

    def nearest(self, latent: Tensor) -> int:
        return int(torch.stack([(latent - m).norm() for m in self.centroids]).argmin())

    def pretrain(self, order: list[int]) -> None:
        for batch in self.batches(order):
            self.step(torch.stack([self.reconstruction(i) for i in batch]).mean())

    def train(self, order: list[int]) -> tuple[float, float]:
        totals = torch.zeros(2)
        for batch in self.batches(order):
            reconstruction = torch.stack([self.reconstruction(i) for i in batch])
            clustering = torch.stack([self.clustering(i) for i in batch])
            self.step((reconstruction + self.config.weight / 2 * clustering).mean())
            totals += torch.stack([reconstruction.sum(), clustering.sum()]).detach()
            with torch.no_grad():
                latents = [self.model.encode(self.images[[i]])[0] for i in batch]
            for i, latent in zip(batch, latents, strict=True):
                self.labels[i] = self.nearest(latent)
            for i, latent in zip(batch, latents, strict=True):
                k = self.labels[i]
                self.counts[k] += 1
                self.centroids[k] -= (self.centroids[k] - latent) / self.counts[k]
        reconstructed, clustered = (totals / len(order)).tolist()
        return reconstructed, clustered

    def batches(self, order: list[int]) -> list[list[int]]:
        size = self.config.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]

    def reconstruction(self, i: int) -> Tensor:
        _, reconstructed = self.model(self.images[[i]])
        return squared_norm(reconstructed[0] - self.images[i].flatten())

    def clustering(self, i: int) -> Tensor:
        latent = self.model.encode(self.images[[i]])[0]
        return squared_norm(latent - self.centroids[self.labels[i]])

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("weight", [0.3, 20.0])
def test_the_whole_fit_is_the_plain_algorithms(weight: float) -> None:
    config = TINY.model_copy(update={"weight": weight})
    images = few_digits()
    found = fit(config, images)
    model = build(
        deep_clustering(config).make_model, SERVER.generator("deep clustering: model")
    ).double()
    plain = PlainDCN(model, config, images.double() / 255)

    def order(epoch: int) -> list[int]:
        generator = SERVER.generator(f"deep clustering: batches {epoch}")
        indices: list[int] = torch.randperm(len(images), generator=generator).tolist()
        return indices

    for epoch in range(2):
        plain.pretrain(order(epoch))
    plain.cluster(SERVER.integer("deep clustering: k-means"), 4)
    first_labels = list(plain.labels)
    for epoch in range(2, 4):
        reconstruction, clustering = plain.train(order(epoch))
    assert plain.labels != first_labels  # else the assignments were never put to the test
    assert found.centroids.dtype == torch.float32
    torch.testing.assert_close(found.centroids.double(), plain.centroids, rtol=1e-5, atol=1e-6)
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(found.model[name], tensor, rtol=1e-6, atol=1e-8)
    assert found.figures == pytest.approx(
        {"reconstruction": reconstruction, "clustering": clustering}
    )


@given(st.integers(1, 6), st.integers(0, 99), st.floats(0, 10))
def test_the_loss_and_its_gradient_by_the_book(batch: int, seed: int, weight: float) -> None:
    generator = Randomness(seed).generator("loss")

    def normal(dimensions: int) -> Tensor:
        return torch.randn(batch, dimensions, generator=generator, dtype=torch.float64)

    x, reconstructed, latents, own = normal(5), normal(5), normal(3), normal(3)
    reconstructed.requires_grad_()
    latents.requires_grad_()
    loss = deep_clustering_loss(
        rowwise_squared_distances(reconstructed, x), rowwise_squared_distances(latents, own), weight
    )
    expected = 0.0
    for i in range(batch):
        expected += math.dist(reconstructed[i].tolist(), x[i].tolist()) ** 2
        expected += weight / 2 * math.dist(latents[i].tolist(), own[i].tolist()) ** 2
    assert loss.item() == pytest.approx(expected / batch)
    to_reconstructed, to_latents = torch.autograd.grad(loss, [reconstructed, latents])
    torch.testing.assert_close(to_reconstructed, 2 * (reconstructed - x) / batch)
    torch.testing.assert_close(to_latents, weight * (latents - own) / batch)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    counts=st.lists(st.integers(1, 1000), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_centroids_move_as_sample_after_sample(
    labels: list[int], counts: list[int], seed: int
) -> None:
    generator = Randomness(seed).generator("centroids")
    start = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    latents = 10 * torch.randn(len(labels), 3, generator=generator, dtype=torch.float64)
    own_counts = torch.tensor(counts, dtype=torch.float64)
    moved, new_counts = move_centroids(start, own_counts, latents, torch.tensor(labels))
    expected, seen = start.clone(), list(counts)
    for latent, k in zip(latents, labels, strict=True):
        seen[k] += 1
        expected[k] -= (expected[k] - latent) / seen[k]
    torch.testing.assert_close(moved, expected)
    assert new_counts.tolist() == seen
    assert own_counts.tolist() == counts


def test_an_empty_cluster_keeps_its_centroid_to_the_bit() -> None:
    start = torch.tensor([[0.1, 0.7], [123.4, -0.3], [1.0, 1.0]])
    counts = torch.full((3,), 100.0, dtype=torch.float64)
    latents, labels = torch.tensor([[5.0, 5.0], [7.0, 2.0]]), torch.tensor([0, 2])
    moved, counts = move_centroids(start, counts, latents, labels)
    assert torch.equal(moved[1], start[1])
    assert (moved[[0, 2]] != start[[0, 2]]).all()
    assert counts.tolist() == [101, 100, 101]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_no_more_images_than_clusters(count: int) -> None:
    """With eight, the last batch of seven has a single image."""
    images = few_digits(count)
    found = deep_clustering(TINY, clusters=8).fit(images, SERVER)
    assert found.centroids.shape == (count, 3)
    assert torch.isfinite(found.centroids).all()
    latents = deep_clustering(TINY).encode(found.model, images)
    assert latents.shape == (count, 3)
    assert (nearest(latents, found.centroids) < count).all()


def test_images_that_are_all_the_same() -> None:
    found = fit(TINY, few_digits(1).repeat(20, 1, 1, 1))
    assert 1 <= len(found.centroids) <= 4
    assert torch.isfinite(found.centroids).all()


def test_no_image_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        fit(TINY, few_digits(0))


def assert_equal(first: DeepClusters, second: DeepClusters) -> None:
    assert torch.equal(first.centroids, second.centroids)
    assert first.figures == second.figures
    assert all(torch.equal(tensor, second.model[name]) for name, tensor in first.model.items())


def test_the_randomness_alone_decides() -> None:
    images, before = few_digits(), torch.random.get_rng_state()
    reused = deep_clustering(TINY)
    first = reused.fit(images, SERVER)
    other = reused.fit(images, Randomness(4).at_round(0))
    assert_equal(first, reused.fit(images, SERVER))
    assert_equal(first, fit(TINY, images))
    assert not torch.equal(first.centroids, other.centroids)
    assert not torch.equal(first.centroids, fit(TINY, images, SERVER.at_round(1)).centroids)
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_weight_the_network_learns_to_reconstruct_alone() -> None:
    alone = fit(TINY.model_copy(update={"pretrain_epochs": 4, "epochs": 0}), few_digits())
    beside = fit(TINY.model_copy(update={"weight": 0.0}), few_digits())
    pulled = fit(TINY, few_digits())
    assert all(torch.equal(tensor, beside.model[name]) for name, tensor in alone.model.items())
    assert alone.figures["reconstruction"] == beside.figures["reconstruction"]
    assert any(not torch.equal(tensor, pulled.model[name]) for name, tensor in alone.model.items())
    assert alone.figures.keys() == {"reconstruction"}
    assert beside.figures.keys() == pulled.figures.keys() == {"reconstruction", "clustering"}


def test_without_any_epoch_it_is_k_means_on_the_initial_latents() -> None:
    found = fit(TINY.model_copy(update={"pretrain_epochs": 0, "epochs": 0}), few_digits())
    latents = deep_clustering(TINY).encode(found.model, few_digits())
    seed = SERVER.integer("deep clustering: k-means")
    assert torch.equal(
        found.centroids, kmeans(latents, 4, seed=seed, restarts=3, iterations=20).centroids
    )
    assert found.figures == {}


def test_latents_are_the_encoders_over_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ccfcpp.clustering.systems.synthetic.deep_clustering.forward_batch", lambda size: 4
    )
    deep = deep_clustering(TINY)
    model = build(deep.make_model, Randomness(0).generator("model"))
    images = few_digits(11)
    latents = deep.encode(model.state_dict(), images)
    torch.testing.assert_close(latents, model.encode(images.float() / 255).detach())
    assert not latents.requires_grad
    encoder = {n: t for n, t in model.state_dict().items() if n.startswith("encoder.")}
    assert torch.equal(deep.encode(encoder, images), latents)


@pytest.mark.parametrize("phase", ["pretrain_epochs", "epochs"])
def test_divergence_names_the_learning_rate(phase: str) -> None:
    config = TINY.model_copy(
        update={"pretrain_epochs": 0, "epochs": 0, "learning_rate": 1e15, phase: 3}
    )
    with pytest.raises(FederationError, match=r"dcn\.learning_rate = 1e\+15 .* lower"):
        fit(config, few_digits())


def test_precisions_and_devices(device: torch.device) -> None:
    images = few_digits().to(device)
    exact = deep_clustering(TINY, device=device).fit(images, SERVER)
    again = deep_clustering(TINY, device=device).fit(images.cpu(), SERVER)
    rounded = deep_clustering(TINY, device=device, precision="bfloat16").fit(images, SERVER)
    assert_equal(exact, again)
    assert exact.centroids.device.type == device.type
    assert not torch.equal(exact.centroids, rounded.centroids)
    reconstruction = exact.figures["reconstruction"]
    assert rounded.figures["reconstruction"] == pytest.approx(reconstruction, rel=0.1)


def test_training_in_turns_makes_digits_easier_to_cluster() -> None:
    """Over seeds 0 to 4 the NMI rises from 0.68–0.73 to 0.73–0.78, by 0.04 at least."""
    images, classes = digits()
    config = DCNConfig(
        widths=(128, 128, 256), pretrain_epochs=10, batch_size=32, learning_rate=2e-3, weight=3.0
    )

    def nmi(epochs: int) -> float:
        deep = deep_clustering(config.model_copy(update={"epochs": epochs}), clusters=10)
        found = deep.fit(images, Randomness(0).at_round(0))
        labels = nearest(deep.encode(found.model, images), found.centroids)
        return float(normalized_mutual_info_score(classes.numpy(), labels.numpy()))

    pretrained, trained = nmi(epochs=0), nmi(epochs=8)
    assert trained > 0.7
    assert trained > pretrained + 0.01
