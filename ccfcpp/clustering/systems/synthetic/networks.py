"""Generator and discriminator of the clients' GANs, and the server's autoencoder.

Source of the GANs: SDA-FC's public code for 28×28 images; PPFC-GAN has the same networks. For
other image sizes, the layers are the same.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.encoders import ConvBackbone


class Generator(nn.Module):
    """Generator of a GAN: maps noise and a one-hot code of length ``codes`` to an image.

    It has two linear layers, and 4×4 transposed convolutions with stride 2, which double the
    resolution. If that does not give the image size exactly, larger images are cropped.

    Raises:
        UsageError: ``gan.generator_channels`` is empty.
    """

    def __init__(self, image_shape: Sequence[int], codes: int, config: GANConfig) -> None:
        super().__init__()
        channels, self.height, self.width = image_shape
        before = config.generator_channels
        if not before:
            raise UsageError("gan.generator_channels = [] is refused: give at least one number")
        scale = 2 ** len(before)
        start = (before[0], -(-self.height // scale), -(-self.width // scale))
        features = start[0] * start[1] * start[2]
        layers: list[nn.Module] = [
            nn.Linear(config.noise + codes, config.generator_width),
            nn.BatchNorm1d(config.generator_width),
            nn.ReLU(),
            nn.Linear(config.generator_width, features),
            nn.BatchNorm1d(features),
            nn.ReLU(),
            nn.Unflatten(1, start),
        ]
        for inputs, outputs in pairwise(before):
            layers += [_doubling(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.network = nn.Sequential(*layers, _doubling(before[-1], channels), nn.Sigmoid())

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (batch, noise + codes) to images (batch, channels, height, width) in [0, 1]."""
        images: Tensor = self.network(inputs)
        top = (images.shape[2] - self.height) // 2
        left = (images.shape[3] - self.width) // 2
        return images[:, :, top : top + self.height, left : left + self.width]


class Discriminator(nn.Sequential):
    """Discriminator of a GAN: maps images to logits (batch, 1) of being real, without the code.

    Raises:
        UsageError: The images are too small for so many layers that halve the resolution.
    """

    def __init__(self, image_shape: Sequence[int], config: GANConfig) -> None:
        backbone = ConvBackbone(
            image_shape, config.discriminator_channels, key="gan.discriminator_channels"
        )
        super().__init__(
            backbone,
            nn.Linear(backbone.features, config.discriminator_width),
            nn.BatchNorm1d(config.discriminator_width),
            nn.LeakyReLU(0.2),
            nn.Linear(config.discriminator_width, 1),
        )


def _doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=4, stride=2, padding=1)


def _linear_layers(widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers from each width to the next, with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


class Autoencoder(nn.Module):
    """Autoencoder: an encoder f, and a decoder g with the reverse widths; both end linearly.

    With ``widths`` (500, 500, 2000) and ``latent`` 10 this is the network for MNIST of Yang, Fu,
    Sidiropoulos and Hong, *Towards K-means-friendly Spaces* (ICML 2017).
    """

    def __init__(self, image_shape: Sequence[int], widths: Sequence[int], latent: int) -> None:
        super().__init__()
        sizes = [math.prod(image_shape), *widths, latent]
        self.encoder = nn.Sequential(nn.Flatten(), *_linear_layers(sizes))
        self.decoder = nn.Sequential(*_linear_layers(sizes[::-1]))

    def encode(self, images: Tensor) -> Tensor:
        """Return latents f(x) of float images (batch, channels, height, width): (batch, latent)."""
        latents: Tensor = self.encoder(images)
        return latents

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents f(x), and reconstructions g(f(x)) of shape (batch, pixels)."""
        latents = self.encode(images)
        return latents, self.decoder(latents)
