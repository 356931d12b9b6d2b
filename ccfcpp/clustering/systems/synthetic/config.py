"""Settings of the clients' GANs, and of the server's deep clustering network."""

from typing import Annotated

from pydantic import Field

from ccfcpp.core.config import Count, Positive, PositiveNumber, PositiveShare, Section, Weight


class GANConfig(Section):
    """Settings of the GANs that clients train to make synthetic images (SDA-FC, PPFC-GAN)."""

    noise: Positive = 62
    """Number of noise inputs of the generator; it also gets a one-hot code of length k."""
    generator_width: Positive = 1024
    """Units of the generator's first layer."""
    generator_channels: tuple[Positive, ...] = (128, 64)
    """Channels of the generator before each layer that doubles the resolution."""
    discriminator_channels: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of the discriminator's convolutions, each of which halves the resolution."""
    discriminator_width: Positive = 1024
    """Units of the discriminator's last hidden layer."""
    epochs: Positive = 50
    """Passes over a client's images in the whole run."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 64
    """Images of a client in a training step."""
    generator_rate: PositiveNumber = 1.8e-3
    """The generator's learning rate in the first epoch."""
    discriminator_rate: PositiveNumber = 2e-4
    """The discriminator's learning rate in the first epoch."""
    rate_decay: PositiveShare = 0.99
    """Factor by which both learning rates are multiplied after each epoch."""
    images: Positive | None = None
    """Number of synthetic images that a client sends; null: as many as it has images."""


class DCNConfig(Section):
    """Settings of the server's deep clustering network (PPFC-GAN)."""

    widths: tuple[Positive, ...] = (500, 500, 2000)
    """Hidden widths of the encoder; the decoder mirrors them."""
    latent: Positive = 10
    """Number of latent dimensions of the autoencoder."""
    pretrain_epochs: Count = 50
    """Epochs of training on the reconstruction alone, before k-means on the latents."""
    epochs: Count = 50
    """Epochs in which network and centroids are updated alternately."""
    batch_size: Positive = 256
    """Synthetic images in a training step."""
    learning_rate: PositiveNumber = 1e-3
    """Learning rate of Adam."""
    weight: Weight = 1.0
    """Weight λ of the k-means term; the reconstruction has the weight 1."""
    initial_count: Positive = 100
    """Number of samples that each centroid is taken to have at first, so that it moves slowly."""
