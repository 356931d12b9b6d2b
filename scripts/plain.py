"""Plain implementation of CCFC++: reference for the speed in ``benchmark.py``, and for tests.

As in research code, clients train one after the other, with PIL transforms in DataLoader workers, a
loop over the clusters of a batch, scikit-learn's k-means and a loop over the models' parameters. It
shares only the network and the configuration with the fast implementation.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.systems.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.core.config import ViewsConfig

State = dict[str, Tensor]


class Views(Dataset[Any]):
    """Data set of images, each with ``views`` transformed copies."""

    def __init__(self, images: Tensor, transform: Callable[[Any], Tensor], views: int) -> None:
        self.images = [Image.fromarray(image) for image in images.squeeze(1).numpy()]
        self.transform = transform
        self.views = views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        image = self.images[index]
        return [self.transform(image) for _ in range(self.views)], index


def random_views(config: ClusterConfig, size: tuple[int, int]) -> Callable[[Any], Tensor]:
    """Return the random augmentation of the CCFC authors' code, for PIL images."""
    views = config.section(ViewsConfig)
    blur = transforms.GaussianBlur(kernel_size=5, sigma=views.blur)
    composed: Callable[[Any], Tensor] = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=views.area, ratio=views.ratio),
            transforms.RandomRotation(views.rotation),
            transforms.RandomApply([blur], p=views.blur_probability),
            transforms.ToTensor(),
        ]
    )
    return composed


class PlainFederation:
    """Federation in one process: a server, and clients with a model and an optimizer each.

    Args:
        make_model: Builds the network.
        images: Each client's images, uint8 of shape (samples, 1, height, width).
        config: The configuration; only the options of the published preset are supported.
        clusters: Number of clusters k.
        workers: Number of DataLoader workers.
        device: Device of the models.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        images: Sequence[Tensor],
        config: ClusterConfig,
        clusters: int,
        workers: int = 2,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.training = config.section(TrainingConfig)
        self.loss = config.section(LossConfig)
        self.centroids = config.section(CentroidConfig)
        self.clusters = clusters
        self.workers = workers
        self.device = device
        self.images = images
        self.models = [make_model().to(device) for _ in images]
        self.global_model = make_model().to(device)
        self.inertia = 0.0  # of the clients' last k-means, summed
        self.new_optimizers()

    def new_optimizers(self) -> None:
        """Reset the clients' optimizers, for a new phase of training."""
        rate = self.training.learning_rate
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=rate) for m in self.models]

    def pretrain_round(self) -> None:
        """Train every client on two random views, and average the models."""
        size = (self.images[0].shape[2], self.images[0].shape[3])
        transform = random_views(self.config, size)
        for client, images in enumerate(self.images):
            self._start(client)
            batches = self._batches(Views(images, transform, 2))
            for (first, second), _ in batches:
                self.pretrain_step(client, first, second)
        self.average()

    def pretrain_step(self, client: int, first: Tensor, second: Tensor) -> None:
        """Train a client for one step by SimSiam's loss and the model-contrastive term."""
        model = self.models[client]
        first, second = first.to(self.device), second.to(self.device)
        (z1, p1), (z2, p2) = model(first), model(second)
        with torch.no_grad():
            g1, g2 = self.global_model(first)[1], self.global_model(second)[1]
        loss = (distance(p1, z2).mean() + distance(p2, z1).mean()) / 2
        drift = (distance(p1, g1).mean() + distance(p2, g2).mean()) / 2
        self._descend(client, loss + self.loss.lam * drift)

    def contrast_round(
        self, centroids: Tensor, orders: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Train every client with pseudo-labels, and average the models.

        Args:
            centroids: Global centroids, of shape (clusters, dimensions).
            orders: The order of each client's samples; None: random.
        """
        for client, images in enumerate(self.images):
            latents, references = self.represent(self.global_model, images)
            directions = F.normalize(centroids).to(latents)
            labels = (F.normalize(latents) @ directions.T).argmax(dim=1)
            self._start(client)
            order = None if orders is None else orders[client]
            dataset = Views(images, transforms.ToTensor(), 1)
            for (batch,), index in self._batches(dataset, order):
                z, p = self.models[client](batch.to(self.device))
                loss = self.contrast(z, p, references[index], labels[index])
                covariance = torch.cov(z.T).square().sum() / z.shape[1] ** 2
                self._descend(client, loss + self.loss.eta * covariance)
        self.average()

    def contrast(self, z: Tensor, p: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of the CCFC++ paper's Eq. (2) by a loop over the clusters."""
        terms = []
        for cluster in range(self.clusters):
            members = (labels == cluster).nonzero().flatten()
            if len(members) < self.loss.min_cluster_size:
                continue
            pairs = distance(p[members].unsqueeze(1), z[members].unsqueeze(0)).mean()
            drift = distance(p[members], reference[members]).mean()
            terms.append(pairs + self.loss.lam * drift)
        return torch.stack(terms).mean() if terms else 0 * p.sum()

    def cluster(self) -> Tensor:
        """Run k-means at each client, then at the server over all centroids."""
        points = [self.represent(m, i)[0] for m, i in zip(self.models, self.images, strict=True)]
        return self.kmeans(points)

    def kmeans(self, latents: Sequence[Tensor]) -> Tensor:
        """Run k-means on each client's latents, then on all centroids; return the final ones."""
        rule = self.centroids
        self.inertia = 0.0
        local = []
        for own in latents:
            model = KMeans(self.clusters, n_init=rule.restarts, max_iter=rule.iterations)
            local.append(model.fit(F.normalize(own).cpu().numpy()).cluster_centers_)
            self.inertia += model.inertia_
        model = KMeans(self.clusters, n_init=rule.restarts, max_iter=rule.iterations)
        centres = model.fit(np.concatenate(local)).cluster_centers_
        return torch.from_numpy(centres).to(self.device)

    @torch.no_grad()
    def represent(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents z and predictions p of all images, in evaluation mode."""
        model.eval()
        dataset = Views(images, transforms.ToTensor(), 1)
        loader = DataLoader(dataset, self.training.batch_size, num_workers=self.workers)
        parts = [model(batch.to(self.device)) for (batch,), _ in loader]
        return torch.cat([z for z, _ in parts]), torch.cat([p for _, p in parts])

    def average(self) -> None:
        """Set the global model to the clients' average, weighted by their numbers of images."""
        total = sum(len(images) for images in self.images)
        mean: State = copy.deepcopy(self.models[0].state_dict())
        for name in mean:
            mean[name] = sum(
                model.state_dict()[name] * (len(images) / total)
                for model, images in zip(self.models, self.images, strict=True)
            )
        self.global_model.load_state_dict(mean)

    def _start(self, client: int) -> None:
        self.models[client].load_state_dict(self.global_model.state_dict())
        self.models[client].train()
        self.global_model.eval()

    def _batches(self, dataset: Views, order: Sequence[int] | None = None) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            self.training.batch_size,
            shuffle=order is None,
            sampler=None if order is None else list(order),
            num_workers=self.workers,
            # BatchNorm cannot be trained on one sample.
            drop_last=len(dataset) % self.training.batch_size == 1,
        )

    def _descend(self, client: int, loss: Tensor) -> None:
        self.optimizers[client].zero_grad()
        torch.autograd.backward(loss)
        self.optimizers[client].step()


def distance(p: Tensor, z: Tensor) -> Tensor:
    """Return the negative cosine similarity of rows; z gets no gradient."""
    return -F.cosine_similarity(p, z.detach(), dim=-1)
