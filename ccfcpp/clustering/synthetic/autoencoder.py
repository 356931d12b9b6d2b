"""The fully connected autoencoder of the deep clustering network."""

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn


def _linear_layers(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers from each width to the next, with a ReLU between two of them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


class FlatEncoder(nn.Sequential):
    """From images to latents: linear layers with ReLU between them, the last one linear.

    Args:
        image_shape: Channels, height and width of an image.
        widths: Hidden widths; none for a single linear layer.
        latent: Dimensions of the latent space.
    """

    def __init__(self, image_shape: Sequence[int], widths: Sequence[int], latent: int) -> None:
        super().__init__(nn.Flatten(), *_linear_layers([math.prod(image_shape), *widths, latent]))


class Autoencoder(nn.Module):
    """Encoder f and its mirror image, the decoder g, both with linear outputs.

    With ``widths`` (500, 500, 2000) and ``latent`` 10 this is the network for MNIST of Yang, Fu,
    Sidiropoulos and Hong, *Towards K-means-friendly Spaces* (ICML 2017).

    Args:
        image_shape: Channels, height and width of an image.
        widths: Hidden widths of the encoder; the decoder has them in reverse.
        latent: Dimensions of the latent space.
    """

    def __init__(self, image_shape: Sequence[int], widths: Sequence[int], latent: int) -> None:
        super().__init__()
        self.encoder = FlatEncoder(image_shape, widths, latent)
        mirrored = [latent, *reversed(widths), math.prod(image_shape)]
        self.decoder = nn.Sequential(*_linear_layers(mirrored))

    def encode(self, images: Tensor) -> Tensor:
        """Latents f(x): floats (batch, channels, height, width) to (batch, latent)."""
        latents: Tensor = self.encoder(images)
        return latents

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Latents f(x), and reconstructions g(f(x)) of shape (batch, channels · height · width).

        Args:
            images: Floats in [0, 1] of shape (batch, channels, height, width).
        """
        latents = self.encode(images)
        return latents, self.decoder(latents)
