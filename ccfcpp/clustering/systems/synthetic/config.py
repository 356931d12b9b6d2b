"""The configuration of GANs, and of the deep clustering network."""

from typing import Annotated

from pydantic import Field

from ccfcpp.core.config import Count, Positive, PositiveNumber, PositiveShare, Section, Weight


class GANConfig(Section):
    """The GANs that clients train to make synthetic images (SDA-FC, PPFC-GAN)."""

    noise: Positive = 62
    """Noise inputs of the generator, besides a one-hot code of k."""
    generator_width: Positive = 1024
    """Units of the generator's first layer."""
    generator_channels: tuple[Positive, ...] = (128, 64)
    """Channels before each doubling of the resolution, which ends at the images' size."""
    discriminator_channels: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of its convolutions, each of which halves the resolution."""
    discriminator_width: Positive = 1024
    """Units of the discriminator's last hidden layer."""
    epochs: Positive = 50
    """Passes over a client's images."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 64
    """Images of a client in a step."""
    generator_rate: PositiveNumber = 1.8e-3
    """The generator's learning rate in the first epoch."""
    discriminator_rate: PositiveNumber = 2e-4
    """Learning rates of the first epoch."""
    rate_decay: PositiveShare = 0.99
    """Factor of both learning rates from epoch to epoch."""
    images: Positive | None = None
    """Synthetic images that a client sends; as many as it holds if it is null."""


class DCNConfig(Section):
    """The deep clustering network at the server (PPFC-GAN)."""

    widths: tuple[Positive, ...] = (500, 500, 2000)
    """Hidden widths of the encoder; the decoder mirrors them."""
    latent: Positive = 10
    """Latent dimensions of the autoencoder."""
    pretrain_epochs: Count = 50
    """Epochs on the reconstruction alone, before k-means gives the first centroids."""
    epochs: Count = 50
    """Epochs of alternating updates."""
    batch_size: Positive = 256
    """Synthetic images in a step."""
    learning_rate: PositiveNumber = 1e-3
    """Learning rate of Adam."""
    weight: Weight = 1.0
    """λ: the k-means term besides the reconstruction."""
    initial_count: Positive = 100
    """Samples that each centroid counts as its own at first, so that it does not jump."""
