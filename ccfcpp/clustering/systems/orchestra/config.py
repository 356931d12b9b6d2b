"""Settings of Orchestra; the defaults are those of its public code, for CIFAR-10."""

from typing import Annotated

from pydantic import Field

from ccfcpp.core.config import BelowOne, Positive, PositiveNumber, Section


class OrchestraConfig(Section):
    """Settings of Orchestra's local training, and of its clustering on both sides."""

    rounds: Positive = 100
    """Number of rounds of local training and averaging."""
    widths: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of the convolutions."""
    latent: Positive = 512
    """Number of latent dimensions, and of units of the projector's hidden layer."""
    epochs: Positive = 10
    """Passes over a client's images in a round."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 16
    """Images in a batch of local training."""
    learning_rate: PositiveNumber = 0.003
    """Learning rate of local training, by gradient descent with momentum."""
    decay: BelowOne = 0.996
    """Share of itself that the target network keeps in each step; the rest is the online one's."""
    memory: Positive = 128
    """Number of the last views in training whose latents a client clusters."""
    local_clusters: Positive = 16
    """Number of clusters, and centroids, of a client."""
    global_clusters: Positive = 128
    """Number of clusters at the server, which it groups into the clusters of the result."""
    server_steps: Positive = 500
    """Steps of gradient descent in a round that move the global clusters' centroids."""
