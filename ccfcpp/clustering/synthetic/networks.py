"""Generator and discriminator of the clients' GANs.

Source: the networks of SDA-FC's published system for 28×28 images, of which PPFC-GAN has the same;
other sizes take as many doublings and halvings.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ccfcpp.clustering.synthetic.config import GANConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.encoders import ConvBackbone


class Generator(nn.Module):
    """From noise and a code to an image.

    Two linear layers, and transposed convolutions 4×4 with stride 2 that double the resolution.
    Images whose size is no multiple of what is doubled are cut from the middle of larger ones.

    Args:
        image_shape: Channels, height and width of an image.
        codes: Number of codes.
        config: The GAN's configuration.

    Raises:
        UsageError: There is no doubling at all.
    """

    def __init__(self, image_shape: Sequence[int], codes: int, config: GANConfig) -> None:
        super().__init__()
        channels, self.height, self.width = image_shape
        before = config.generator_channels
        if not before:
            raise UsageError("gan.generator_channels = [] is refused: give one number at least")
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
    """From images (batch, channels, height, width) to logits (batch, 1): is the image real?

    It does not see the code.

    Args:
        image_shape: Channels, height and width of an image.
        config: The GAN's configuration.

    Raises:
        UsageError: The images are too small for so many halvings.
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
