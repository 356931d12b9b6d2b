"""What a client of CCFC and CCFC++ does with its own images."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccfcpp.config import ClusterConfig, TrainingConfig
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.batches import shuffled_batches
from ccfcpp.engine.aggregation import ModelState
from ccfcpp.engine.client import Client
from ccfcpp.losses import cluster_contrast, decorrelation, negative_cosine, siamese
from ccfcpp.models.contrastive import ContrastiveModel
from ccfcpp.models.initialisation import allocate
from ccfcpp.randomness import Randomness

_FORWARD_BATCH = 1024
_FORWARD_PIXELS = 1024 * 28 * 28


@dataclass(frozen=True)
class Representations:
    """What a model that is not trained makes of a client's images.

    Attributes:
        latents: z of shape (samples, latent).
        predictions: p of the same shape.
    """

    latents: Tensor
    predictions: Tensor


def to_float(images: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1], laid out channels-last, which convolutions prefer."""
    return (images.to(torch.get_default_dtype()) / 255).contiguous(
        memory_format=torch.channels_last
    )


def contrast_learning_rate(training: TrainingConfig, number: int) -> float:
    """The learning rate of round ``number``, counted from the start of the run.

    With the cosine schedule (Loshchilov and Hutter 2017, without restarts) it starts at the
    configured rate in the first cluster-contrastive round and would reach 0 after the last.
    """
    if training.schedule == "constant":
        return training.learning_rate
    done = (number - training.pretrain_rounds) / training.rounds
    return training.learning_rate * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def represent(model: ContrastiveModel, images: Tensor) -> Representations:
    """Run a model in evaluation mode over images of shape (samples, channels, height, width)."""
    model.eval()
    # Large images go in smaller batches, so that memory does not grow with their size.
    size = min(_FORWARD_BATCH, max(1, _FORWARD_PIXELS // images[0, 0].numel()))
    parts = [model(to_float(batch)) for batch in torch.split(images, size)]
    latents, predictions = (torch.cat(part) for part in zip(*parts, strict=True))
    return Representations(latents, predictions)


class LocalTrainer:
    """Two copies of the network, the one that is trained and the frozen global one.

    One trainer serves all clients of a process in turn: it holds nothing of a client once a method
    has returned.

    Args:
        make_model: Builds the network; its weights come with the messages.
        config: The run's configuration.
        device: Where both live.
    """

    def __init__(
        self,
        make_model: Callable[[], ContrastiveModel],
        config: ClusterConfig,
        device: torch.device,
    ) -> None:
        self.device = device
        self.config = config
        self.model = allocate(make_model, device)
        self.frozen = allocate(make_model, device).requires_grad_(False).eval()

    def global_representations(
        self, model: ModelState, version: int, client: Client
    ) -> Representations:
        """What the global model makes of the client's images: one pass for each of its versions."""
        known = client.scratch.get("representations")
        if known is None or known[0] != version:
            self.frozen.load_state_dict(model)
            known = (version, represent(self.frozen, client.images))
            client.scratch["representations"] = known
        representations: Representations = known[1]
        return representations

    def local_representations(self, client: Client) -> Representations:
        """What the model just trained makes of the client's images."""
        return represent(self.model, client.images)

    def trained_model(self) -> ModelState:
        """A copy of the weights and buffers of the model just trained."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def pretrain(
        self, start: ModelState, global_model: ModelState, client: Client, randomness: Randomness
    ) -> float | None:
        """Contrastive pre-training on two random views of each image.

        Args:
            start: The weights to start from.
            global_model: The frozen model of the model-contrastive term.
            client: The client.
            randomness: The source, set to the round and the client.

        Returns:
            Mean loss of the batches; None where the client has no batch of two samples.
        """
        weights = self.config.loss
        self.frozen.load_state_dict(global_model)

        def losses() -> Iterable[Tensor]:
            for epoch in range(self.config.training.local_epochs):
                shape = (client.images.shape[2], client.images.shape[3])
                views = draw_views(
                    2 * len(client),
                    self.config.views,
                    shape,
                    randomness.generator(f"views {epoch}"),
                ).to(self.device)
                for batch in self._batches(client, randomness, epoch):
                    images = to_float(client.images[batch])
                    first = render_views(images, views[batch])
                    second = render_views(images, views[batch + len(client)])
                    (z1, p1), (z2, p2) = self.model(first), self.model(second)
                    loss = siamese((p1, p2), (z1, z2))
                    if weights.lam:
                        g1, g2 = self.frozen(first)[1], self.frozen(second)[1]
                        drift = negative_cosine(p1, g1).mean() + negative_cosine(p2, g2).mean()
                        loss = loss + weights.lam * drift / 2
                    if weights.pretrain_eta:
                        collapse = decorrelation(z1) + decorrelation(z2)
                        loss = loss + weights.pretrain_eta * collapse / 2
                    yield loss

        rate = self.config.training.learning_rate
        return self._train(start, client, "pretraining", rate, losses())

    def contrast(
        self,
        global_model: ModelState,
        seen: Representations,
        labels: Tensor,
        clusters: int,
        client: Client,
        randomness: Randomness,
    ) -> float | None:
        """Cluster-contrastive training, Eq. (10) of the paper.

        Args:
            global_model: The weights to start from.
            seen: What the global model makes of the client's images.
            labels: int64 pseudo-labels of shape (samples,).
            clusters: Number of clusters the labels come from.
            client: The client.
            randomness: The source, set to the round and the client.

        Returns:
            Mean loss of the batches; None where the client has no batch of two samples.
        """
        weights = self.config.loss

        def losses() -> Iterable[Tensor]:
            for epoch in range(self.config.training.local_epochs):
                for batch in self._batches(client, randomness, epoch):
                    latents, predictions = self.model(to_float(client.images[batch]))
                    global_predictions = seen.predictions[batch] if weights.lam else None
                    loss = cluster_contrast(
                        predictions,
                        latents,
                        global_predictions,
                        labels[batch],
                        clusters,
                        weights.lam,
                        weights.min_cluster_size,
                    )
                    if weights.eta:
                        loss = loss + weights.eta * decorrelation(latents)
                    yield loss

        rate = contrast_learning_rate(self.config.training, randomness.round)
        return self._train(global_model, client, "contrast", rate, losses())

    def _batches(self, client: Client, randomness: Randomness, epoch: int) -> Iterable[Tensor]:
        generator = randomness.generator(f"batches {epoch}")
        size = self.config.training.batch_size
        return (batch.to(self.device) for batch in shuffled_batches(len(client), size, generator))

    def _train(
        self,
        start: ModelState,
        client: Client,
        phase: str,
        learning_rate: float,
        losses: Iterable[Tensor],
    ) -> float | None:
        """Descend the losses from ``start``, with the client's own Adam state of this phase."""
        self.model.load_state_dict(start)
        self.model.train()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate, fused=True)
        if self.config.training.keep_optimizer:
            _restore_optimizer(optimizer, self.model, client, phase)
        history = []
        for loss in losses:
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            history.append(loss.detach())
        if self.config.training.keep_optimizer:
            _keep_optimizer(optimizer, self.model, client, phase)
        return float(torch.stack(history).mean()) if history else None


def _restore_optimizer(
    optimizer: torch.optim.Adam, model: nn.Module, client: Client, phase: str
) -> None:
    """Take the client's moments up again, if it has any of this phase."""
    if f"{phase}/step" not in client.memory:
        return
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        state["step"] = client.memory[f"{phase}/step"].clone()
        for moment in ("exp_avg", "exp_avg_sq"):
            # The copy has the parameter's memory layout, which the fused step relies on.
            saved = client.memory[f"{phase}/{moment}/{name}"]
            state[moment] = torch.empty_like(parameter).copy_(saved)


def _keep_optimizer(
    optimizer: torch.optim.Adam, model: nn.Module, client: Client, phase: str
) -> None:
    """Remember the moments; those of another phase are forgotten."""
    kept: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        if not state:
            return  # No step was taken: what the client remembers still stands.
        kept[f"{phase}/step"] = state["step"]
        for moment in ("exp_avg", "exp_avg_sq"):
            kept[f"{phase}/{moment}/{name}"] = state[moment]
    client.memory = kept
