"""Orchestra: clients train towards global clusters, which the server makes of their local ones.

Source: Lubana et al., *Orchestra: Unsupervised Federated Learning via Globally Consistent
Clustering* (ICML 2022), and its public code. Latents and centroids, (n, d), have length 1.

A client sends its networks, its number of images, and at most ``local_clusters`` centroids, each
the mean of a few views' latents (8 by default), perhaps of one image, unless
``privacy.smallest_count`` or an owner's rule wants more. These tell the server which kinds of
images it holds. It needs each client's: secure sums and differential privacy are refused.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import CentroidUpdate, required_centroids, sum_by_group
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate, local_training_exchange
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel
from ccfcpp.clustering.systems.ccfc.server import ModelAggregation
from ccfcpp.clustering.systems.orchestra.config import OrchestraConfig
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.images import to_float
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientSide, EachClient, Metrics, RefusedUpdateError
from ccfcpp.models.encoders import ConvBackbone
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatSGD
from ccfcpp.models.state import random_state
from ccfcpp.models.steps import batch_lengths

TRAINING = local_training_exchange("training", with_centroids=True)
GLOBAL = "global centroids"  # in models, as in the public code; of shape (global clusters, d)
TEMPERATURE, SHARPNESS, LOCAL_STEPS = 0.1, 25.0, 5
LOCAL_SCALINGS, GLOBAL_SCALINGS = 10, 100
SERVER_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


def clustering_loss(z: Tensor, targets: Tensor, centroids: Tensor) -> Tensor:
    """Return the cross-entropy of the softmax over global clusters of latents and of targets."""
    wanted = (targets @ centroids.T / TEMPERATURE).softmax(dim=1)
    return F.cross_entropy(z @ centroids.T / TEMPERATURE, wanted)


@torch.no_grad()
def assign_equally(points: Tensor, centroids: Tensor, scalings: int) -> Tensor:
    """Assign points softly to clusters of equal size, by Sinkhorn-Knopp: (points, clusters).

    Rows sum to 1, and columns to nearly the same number. Source: Genevay, Dulac-Arnold and Vert,
    *Differentiable Deep Clustering with Cluster Size Constraints* (2019).
    """
    kernel = (SHARPNESS * (points @ centroids.T).double()).softmax(dim=1)
    rows = kernel.new_ones(len(kernel))
    for _ in range(scalings):
        columns = 1 / (kernel.T @ rows)
        rows = 1 / (kernel @ columns)
    return (rows.unsqueeze(1) * kernel * columns).to(points)


def local_centroids(
    latents: Tensor, clusters: int, source: torch.Generator, least: int = 0
) -> Tensor:
    """Return centroids of a client's clusters of equal size, with ``least`` latents or more.

    Empty clusters restart from a latent.
    """
    centroids = latents[torch.randperm(len(latents), generator=source)[:clusters]]
    for _ in range(LOCAL_STEPS):
        labels = assign_equally(latents, centroids, LOCAL_SCALINGS).argmax(dim=1)
        sums = sum_by_group(labels, latents, len(centroids)).to(latents)
        drawn = latents[torch.randint(len(latents), (len(centroids),), generator=source)]
        sizes = labels.bincount(minlength=len(centroids))
        centroids = F.normalize(torch.where(sizes.unsqueeze(1) == 0, drawn, sums))
    return centroids[sizes >= least]


def global_centroids(points: Tensor, start: Tensor, steps: int) -> Tensor:
    """Move global centroids by descent on minus the cosine of equal and softmax assignments."""
    centroids, velocity = start, torch.zeros_like(start)
    for _ in range(steps):
        leaf = centroids.detach().requires_grad_()
        predicted = (points @ leaf.T / TEMPERATURE).softmax(dim=1)
        wanted = assign_equally(points, leaf, GLOBAL_SCALINGS)
        loss = -F.cosine_similarity(wanted, predicted).mean()
        (slope,) = torch.autograd.grad(loss, leaf)
        velocity = MOMENTUM * velocity + slope + WEIGHT_DECAY * centroids
        centroids = F.normalize(centroids - SERVER_RATE * velocity)
    return centroids


@dataclass(frozen=True)
class GlobalClustering(ModelAggregation):
    """Server side of a round: averages networks, then moves and groups the global centroids."""

    system: "Orchestra"

    def aggregate(
        self, state: EncoderState, updates: Iterable[TrainingUpdate], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Average the networks, move the global centroids, and group their clusters by k-means."""
        local: list[Tensor] = []

        def models() -> Iterator[TrainingUpdate]:
            for update in updates:
                local.extend([] if update.local is None else [update.local.centroids])
                yield replace(update, local=None)

        after, metrics = super().aggregate(state, models(), randomness)
        points = F.normalize(torch.cat(local)).to(state.model[GLOBAL])
        moved = global_centroids(points, state.model[GLOBAL], self.system.config.server_steps)
        means = F.normalize(assign_equally(points, moved, GLOBAL_SCALINGS).T @ points)
        k, seed = self.system.problem.clusters, randomness.integer("k-means")
        model, centroids = after.model | {GLOBAL: moved}, kmeans(means, k, seed=seed).centroids
        return replace(after, model=model, centroids=centroids), metrics


class Orchestra(ClusteringAlgorithm[EncoderState]):
    """Orchestra: an image belongs to the centroid most like its latent by the target network."""

    state_type = EncoderState
    by_angle = True

    def __init__(self, problem: Problem) -> None:
        _, height, width = problem.image_shape
        if height != width:
            raise UsageError(
                f"orchestra turns images by 90 degrees, and these of {height} by {width} pixels "
                f"are not square: give data.image_size = {min(height, width)}"
            )
        self.problem, self.config = problem, problem.config.section(OrchestraConfig)
        if self.config.global_clusters < problem.clusters:
            raise UsageError(
                KeyValue("orchestra.global_clusters", self.config.global_clusters),
                f" cannot be grouped into {problem.clusters} clusters: give as many at least",
            )
        self.views, self.rounds = problem.config.section(ViewsConfig), self.config.rounds
        self.rule = CentroidRule(CentroidConfig(), self.config.local_clusters)
        self.global_model = GlobalModel(self._network("target"))
        self.by_model = self.global_model.latents_by

    def _model(self, name: str) -> nn.Module:
        """Build CCFC's network, but to predict turns; its weights' names begin with ``name``."""
        latent, widths = self.config.latent, self.config.widths
        backbone = ConvBackbone(self.problem.image_shape, widths, "orchestra.widths")
        model = ContrastiveModel(backbone, latent, latent, predictor_width=4)
        model.predictor = nn.Sequential(nn.Linear(latent, 4))
        return nn.Sequential(OrderedDict([(name, model)]))

    def _network(self, name: str) -> FlatNetwork:
        return FlatNetwork(lambda: self._model(name), self.problem.device, name == "online")

    def initial_state(self, randomness: Randomness) -> EncoderState:
        """Return random weights, the same of both networks, and random global centroids."""
        source, there = randomness.generator("model"), self.problem.device
        online = random_state(lambda: self._model("online"), source, there)
        target = {name.replace("online", "target"): one.clone() for name, one in online.items()}
        drawn = torch.randn(self.config.global_clusters, self.config.latent, generator=source)
        return EncoderState(online | target | {GLOBAL: F.normalize(drawn).to(there)})

    def exchanges(self, number: int, state: EncoderState) -> Sequence[GlobalClustering]:
        """Return the training; in the first round, before it, local clustering alone."""
        server = GlobalClustering(TRAINING, self.rule, self.config.latent, True, self)
        return [server] if number else [server, server]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of the training."""
        return ClientSide.of(EachClient(TRAINING, partial(self._train, context.least)))

    def _train(
        self, least: int, known: EncoderState, client: Client, own: Randomness
    ) -> TrainingUpdate | RefusedUpdateError:
        """Train, unless there are no clusters yet; cluster the target network's last latents."""
        if len(client) < 2:
            return RefusedUpdateError("it has a single image, and a batch needs two")
        online, target, config = self._network("online"), self._network("target"), self.config
        online.load(known.model)
        target.load(known.model)
        target.train()  # so that BatchNorm standardises latents over the batch
        optimizer = FlatSGD(online, config.learning_rate, MOMENTUM, WEIGHT_DECAY)
        latents, losses, epochs = [], [], 1 if known.centroids is None else config.epochs
        for first, second, turned, turns in self._batches(client, own, epochs, least):
            with torch.no_grad():
                target.weights.lerp_(online.weights, 1 - config.decay)
                latents.append(F.normalize(target(first)[0]))
            if known.centroids is not None:
                z = F.normalize(online(second)[0])
                loss = clustering_loss(z, latents[-1], known.model[GLOBAL])
                loss = loss + F.cross_entropy(online(turned)[1], turns)
                online.backward(loss)
                optimizer.step()
                losses.append(float(loss.detach()))
        seen, source = torch.cat(latents), own.generator("centroids")
        # A cluster of so many views is of so many images if these are of one epoch. With a floor it
        # is the whole epoch: a server could ask for all views but one.
        most = len(seen) // epochs if least else len(seen)
        memory = seen[-(most if least > 1 else min(config.memory, most)) :]
        clusters = min(config.local_clusters, max(1, len(memory) // max(1, least)))
        found = local_centroids(memory, clusters, source, least)
        if len(found) == 0:
            return RefusedUpdateError(f"none of its clusters has {least} images")
        sizes = torch.full_like(found[:, 0], len(client) / len(found), dtype=torch.float64)
        model = known.model | online.state() | target.state()
        mean = sum(losses) / len(losses) if losses else None
        return TrainingUpdate(model, len(client), mean, CentroidUpdate(found.float(), sizes))

    def _batches(
        self, client: Client, own: Randomness, epochs: int, least: int = 0
    ) -> Iterator[list[Tensor]]:
        """Yield three views of a batch's images, the third turned, and its quarter turns."""
        shape = client.images.shape[2], client.images.shape[3]
        for epoch in range(epochs):
            source = own.generator(f"batches {epoch}")
            order = torch.randperm(len(client), generator=source)
            lengths = batch_lengths(len(client), self.config.batch_size, least)
            for batch in torch.split(order, lengths):
                if len(batch) > 1:  # for BatchNorm
                    images = to_float(client.images[batch]).repeat(3, 1, 1, 1)
                    drawn = draw_views(len(images), self.views, shape, source)
                    turns = torch.randint(4, (len(batch),), generator=source)
                    first, second, third = render_views(images, drawn.to(images.device)).chunk(3)
                    turned = [torch.rot90(third[i], int(n), (1, 2)) for i, n in enumerate(turns)]
                    yield [first, second, torch.stack(turned), turns.to(images.device)]

    def represent(self, state: EncoderState, client: Client) -> Tensor:
        """Return the target network's latents of a client's images, of shape (samples, d)."""
        return self.global_model.representations(state, client).latents

    def assign(self, state: EncoderState, client: Client) -> Tensor:
        """Return the centroid most like each image's latent, int64 of shape (samples,)."""
        return self.rule.assign(self.represent(state, client), required_centroids(state.centroids))

    def final_model(self, state: EncoderState) -> EncoderState:
        """Return what clients need to assign images: the target network and the centroids."""
        return state
